"""Parsers of request bodies with limits: JSON, and YAML for job specs kept in files."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any

import yaml
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, FormParser, JSONParser, MultiPartParser
from rest_framework.utils.json import strict_constant

from controlplane.plain_yaml import PlainDumper, PlainLoader

JSON_LIMIT_BYTES = 64 * 1024
#: A submission may carry its code as text.
SUBMISSION_LIMIT_BYTES = 2 * 1024**2
YAML_LIMIT_BYTES = 64 * 1024
#: Levels of a YAML document: those of `settings` and some around them.
YAML_DEPTH_LIMIT = 40
#: Escapes of JSON for one character beyond U+FFFF, which YAML does not know.
_PAIR = re.compile(rb"(?i)(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
#: Errors of PyYAML's constructors for tags with odd content, such as `!!timestamp foo`.
_YAML_ERRORS = (
    yaml.YAMLError,
    RecursionError,
    ValueError,
    TypeError,
    ArithmeticError,
    AttributeError,
    LookupError,
)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ParseError: it has a key twice, of which one would be lost.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ParseError(f"The JSON has {twice!r:.60} twice; delete one.")
    return values


def _finite(text: str) -> float:
    """Read a number with a point or an exponent.

    Raises:
        ParseError: it is beyond all floats, and would be taken as infinite.
    """
    if math.isinf(number := float(text)):
        raise ParseError(f"The JSON has the number {text:.60}, which is too large.")
    return number


class BoundedJsonParser(JSONParser):
    """DRF's JSON parser with a limit on size and depth, for text that is valid Unicode."""

    limit_bytes = JSON_LIMIT_BYTES

    def parse(
        self,
        stream: IO[bytes],
        _media_type: str | None = None,
        _parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        text = stream.read(self.limit_bytes + 1)
        if len(text) > self.limit_bytes:
            raise ParseError(f"At most {self.limit_bytes} bytes of JSON.")
        try:
            value = json.loads(
                text.decode("utf-8-sig"),
                object_pairs_hook=_object,
                parse_constant=strict_constant,
                parse_float=_finite,
            )
            if b"\\u" in text:
                json.dumps(value, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None
        except UnicodeEncodeError:
            raise ParseError("The JSON has a lone surrogate (\\ud800 to \\udfff).") from None
        except ValueError as error:
            raise ParseError(f"JSON parse error - {error}") from None
        return value


class SubmissionJsonParser(BoundedJsonParser):
    """Parser of submissions, which may carry code as text."""

    limit_bytes = SUBMISSION_LIMIT_BYTES


def yaml_read(text: bytes) -> Any:
    """Read a YAML (or JSON) document of plain values.

    Raises:
        ParseError: the text is too large or not YAML.
    """
    if len(text) > YAML_LIMIT_BYTES:
        raise ParseError(f"At most {YAML_LIMIT_BYTES} bytes of YAML.")
    if text.lstrip().startswith(b"{"):
        text = _PAIR.sub(_paired, text)
    try:
        _events_check(text)
        return yaml.load(text, Loader=PlainLoader)  # noqa: S506  a safe loader
    except _YAML_ERRORS as error:
        raise ParseError(f"This is no YAML: {error}") from None


def _paired(found: re.Match[bytes]) -> bytes:
    return found[1] + bytes.fromhex((found[2] + found[3]).decode()).decode("utf-16-be").encode()


def yaml_write(values: Mapping[str, Any], *, is_inline: bool = False) -> str:
    """Write plain values as the YAML that `yaml_read` reads as the same values.

    Args:
        is_inline: each list or object of scalars stands on one line.
    """
    style: dict[str, Any] = {"default_flow_style": None, "width": math.inf} if is_inline else {}
    text: str = yaml.dump(
        dict(values), Dumper=PlainDumper, sort_keys=False, allow_unicode=True, **style
    )
    return text


def _events_check(text: bytes) -> None:
    """Refuse deep nesting, and aliases, with which a short text could become an enormous value."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not accepted; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > YAML_DEPTH_LIMIT:
            raise yaml.YAMLError(f"it is nested deeper than {YAML_DEPTH_LIMIT} levels")


class YamlParser(BaseParser):
    """Parser of `Content-Type: application/yaml`."""

    media_type = "application/yaml"

    def parse(
        self,
        stream: IO[bytes],
        _media_type: str | None = None,
        _parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        return yaml_read(stream.read(YAML_LIMIT_BYTES + 1))


#: Parsers of submissions, by which code comes as text or as a file.
SUBMISSION_PARSERS = (SubmissionJsonParser, MultiPartParser, FormParser, YamlParser)
