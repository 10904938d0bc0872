"""Conversion between frozen dataclasses and plain JSON values, with every decoded field checked.

Unknown fields are ignored, so that an older reader understands a newer writer; a missing or
ill-typed field is refused with its path.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

Message = TypeVar("Message")


def encode(message: Any) -> Any:
    """Turn a message into plain JSON values (dicts, lists, strings, numbers, None)."""
    if dataclasses.is_dataclass(message) and not isinstance(message, type):
        return {
            item.name: encode(getattr(message, item.name)) for item in dataclasses.fields(message)
        }
    if isinstance(message, Mapping):
        return {str(key): encode(value) for key, value in message.items()}
    if isinstance(message, tuple | list):
        return [encode(value) for value in message]
    if isinstance(message, StrEnum):
        return message.value
    return message


def decode(expected: type[Message], value: Any, path: str = "") -> Message:
    """Turn JSON values into an `expected` message.

    Raises:
        ValueError: with the path of the field that is missing or has the wrong type.
    """
    return typing.cast(Message, _decode(expected, value, path or expected.__name__))


def is_nested_deeper(value: Any, num_levels: int) -> bool:
    """Return whether plain JSON values have more levels of lists and objects; no recursion."""
    level = [value]
    for _ in range(num_levels + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)


def _decode(expected: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(expected)
    if expected is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _decode_optional(expected, value, path)
    if origin is tuple:
        return _decode_tuple(expected, value, path)
    if origin in (dict, Mapping):
        return _decode_mapping(expected, value, path)
    if dataclasses.is_dataclass(expected):
        return _decode_message(expected, value, path)
    if isinstance(expected, type) and issubclass(expected, StrEnum):
        try:
            return expected(value)
        except ValueError:
            choices = ", ".join(expected)
            raise ValueError(f"{path} must be one of {choices}, got {value!r}") from None
    return _decode_scalar(expected, value, path)


def _decode_optional(expected: Any, value: Any, path: str) -> Any:
    if value is None:
        return None
    (inner,) = (option for option in typing.get_args(expected) if option is not type(None))
    return _decode(inner, value, path)


def _decode_tuple(expected: Any, value: Any, path: str) -> tuple[Any, ...]:
    types_of_items = typing.get_args(expected)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{path} must be a list, got {_describe(value)}")
    if types_of_items[-1] is Ellipsis:
        types_of_items = types_of_items[:1] * len(value)
    if len(types_of_items) != len(value):
        raise ValueError(f"{path} must have {len(types_of_items)} items, got {len(value)}")
    pairs = zip(types_of_items, value, strict=True)
    return tuple(_decode(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(pairs))


def _decode_mapping(expected: Any, value: Any, path: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must be an object, got {_describe(value)}")
    key_type, value_type = typing.get_args(expected)
    return {
        _decode_key(key_type, key, path): _decode(value_type, item, f"{path}[{key}]")
        for key, item in value.items()
    }


def _decode_key(expected: Any, key: Any, path: str) -> Any:
    try:
        return expected(key)
    except ValueError:
        raise ValueError(f"{path} has the key {key!r:.60}, which is no {expected}") from None


def _decode_message(expected: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must be an object, got {_describe(value)}")
    known: dict[str, Any] = {}
    hints = _type_hints(expected)
    for item in dataclasses.fields(expected):
        if item.name in value:
            known[item.name] = _decode(hints[item.name], value[item.name], f"{path}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path}.{item.name} is missing")
    return expected(**known)


@cache
def _type_hints(expected: Any) -> dict[str, Any]:
    return typing.get_type_hints(expected)


def _decode_scalar(expected: Any, value: Any, path: str) -> Any:
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{path} is too large: {_describe(value)}") from None
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ValueError(f"{path} must be {_NAMES[expected]}, got {_describe(value)}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _describe(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.60}"
