"""Parsers of request bodies with limits: JSON, and YAML for job specs kept in files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any

import yaml
from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser

LIMIT_BYTES = 1024**2


class BoundedJsonParser(JSONParser):
    """DRF's JSON parser with a limit on size and depth."""

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        limit_bytes = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        text = stream.read(limit_bytes + 1)
        if len(text) > limit_bytes:
            raise ParseError(f"At most {limit_bytes} bytes of JSON.")
        try:
            return super().parse(io.BytesIO(text), media_type, parser_context)
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None


class _PlainLoader(yaml.SafeLoader):
    """Loads plain values only: with aliases a short text could expand to an enormous one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not accepted; write the value out")
        return super().compose_node(parent, index)


def yaml_read(text: bytes) -> Any:
    """Read a YAML (or JSON) document.

    Raises:
        ParseError: the text is too large or not YAML.
    """
    if len(text) > LIMIT_BYTES:
        raise ParseError(f"At most {LIMIT_BYTES} bytes of YAML.")
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ParseError(f"This is no YAML: {error}") from None


class YamlParser(BaseParser):
    """Parser of `Content-Type: application/yaml`."""

    media_type = "application/yaml"

    def parse(
        self,
        stream: IO[bytes],
        _media_type: str | None = None,
        _parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        return yaml_read(stream.read(LIMIT_BYTES + 1))
