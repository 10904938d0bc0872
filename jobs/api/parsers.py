"""YAML bodies, for job specs kept in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import yaml
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

LIMIT_BYTES = 1024**2


class _PlainLoader(yaml.SafeLoader):
    """Reads plain values only: an alias can make a short text enormous."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not accepted; write the value out")
        return super().compose_node(parent, index)


def yaml_read(text: bytes) -> Any:
    """Read a YAML (or JSON) document.

    Raises:
        ParseError: it is too large or no YAML.
    """
    if len(text) > LIMIT_BYTES:
        raise ParseError(f"At most {LIMIT_BYTES} bytes of YAML.")
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ParseError(f"This is no YAML: {error}") from None


class YamlParser(BaseParser):
    """`Content-Type: application/yaml`."""

    media_type = "application/yaml"

    def parse(
        self,
        stream: IO[bytes],
        _media_type: str | None = None,
        _parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        return yaml_read(stream.read(LIMIT_BYTES + 1))
