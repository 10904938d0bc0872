"""YAML of plain values, stricter than PyYAML where that would lose or misread what was written."""

from __future__ import annotations

import re
from typing import Any

import yaml

#: Numbers such as 1e-3, which YAML 1.2 and JSON know as numbers, and YAML 1.1 as text.
EXPONENT_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
#: Numbers of YAML 1.1 alone: 010 is 8, and 1:30 is 90.
_OLD_NUMBER = re.compile(r"[-+]?(?:0[0-7_]+|[0-9][0-9_]*:[0-9:._]+)")
#: Python writes no number of more than 4300 digits, and reads longer ones only in hexadecimal.
_NUMBER_LIMIT = 1000


class PlainLoader(yaml.CSafeLoader):
    """PyYAML's loader of plain values, with `EXPONENT_NUMBER`; it takes no key twice."""

    def construct_scalar(self, node: Any) -> Any:
        """Read a scalar.

        Raises:
            YAMLError: it is a number in YAML 1.1 and another one, or text, in YAML 1.2; or it is a
                number that nothing can print.
        """
        value = super().construct_scalar(node)
        if node.tag not in _NUMBER_TAGS:
            return value
        line = node.start_mark.line + 1
        if len(value) > _NUMBER_LIMIT:
            raise yaml.YAMLError(f"line {line} has a number of more than {_NUMBER_LIMIT} digits")
        if _OLD_NUMBER.fullmatch(value):
            raise yaml.YAMLError(
                f"{value:.60} (line {line}) is read as different numbers by different programs; "
                "write a number without leading zeros and colons, or text in quotes"
            )
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping.

        Raises:
            YAMLError: it has a key twice, of which YAML 1.1 would keep the last one.
        """
        found: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in found:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{key.value!r:.60} is there twice (line {line}); delete one")
            found.add(str(key.value))
        values: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return values


class PlainDumper(yaml.SafeDumper):
    """PyYAML's dumper of plain values; it quotes text that `PlainLoader` would read as a number."""


for _class in (PlainLoader, PlainDumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT_NUMBER, [*"-+.0123456789"])
