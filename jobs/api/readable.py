"""Texts in answers, as their reader may see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from jobs.selectors.access import Person, text_for


def reader_of(context: Mapping[str, Any]) -> Person:
    """Return whom an answer is for: the `reader` of the context, or the user of its request."""
    reader: Person = context["reader"] if "reader" in context else context["request"].user
    return reader


class ReadableText(serializers.CharField):
    """A stored text (`access.text_for`) for the reader of the context."""

    def __init__(self, **more: Any) -> None:
        super().__init__(read_only=True, **more)

    def to_representation(self, value: str) -> str:
        """Return the text for the reader."""
        text: str = text_for(reader_of(self.context), value)
        return text
