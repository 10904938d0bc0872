"""Bodies of requests, checked by serializers, for REST and the pages alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar

from rest_framework import serializers

from jobs.exceptions import InvalidInputError, messages_by_field

#: Unknown fields or query parameters that an answer names: each with all known ones.
UNKNOWN_LIMIT = 20
UNKNOWN_TEXT = "There is no such field; use {}."


class BodySerializer(serializers.Serializer):
    """A body that has no other fields than those of the serializer.

    Attributes:
        unknown_text: message about another field; `{}` stands for the names of the known ones.
    """

    unknown_text: ClassVar = UNKNOWN_TEXT

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Refuse unknown fields before anything else: a known one may be meant."""
        given = data if isinstance(data, Mapping) else {}
        if errors := unknown_fields(given, self.fields, self.unknown_text):
            raise serializers.ValidationError(errors)
        values: dict[str, Any] = super().to_internal_value(data)
        return values


def unknown_fields(
    given: Iterable[Any], known: Iterable[str], text: str = UNKNOWN_TEXT
) -> dict[str, list[str]]:
    """Return messages about the first fields that are not known; `{}` in `text` names those."""
    names = list(known)
    unknown = (str(name)[:60] for name in given if name not in names)
    return {name: [text.format(", ".join(names))] for name in islice(unknown, UNKNOWN_LIMIT)}


def checked(
    serializer: type[serializers.Serializer], values: Mapping[str, Any], *, partial: bool = False
) -> dict[str, Any]:
    """Return the valid fields of a body.

    Raises:
        InvalidInputError: with messages for every wrong field.
    """
    filled = serializer(data=values, partial=partial)
    if not filled.is_valid():
        fields = messages_by_field(filled.errors)
        raise InvalidInputError("The input is not valid.", fields=fields)
    return dict(filled.validated_data)
