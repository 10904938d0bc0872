"""Conversion between frozen dataclasses and plain JSON values, with every decoded field checked.

Unknown fields are ignored, so that an older reader understands a newer writer; a missing or
ill-typed field is refused with its path.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeVar

Message = TypeVar("Message")
#: Turns one plain value into what is expected; raises _MisfitError.
_Decoder = Callable[[Any], Any]

_PLAIN = frozenset({int, float, str, bool, type(None)})
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def encode(message: Any) -> Any:
    """Turn a message into plain JSON values (dicts, lists, strings, numbers, None)."""
    kind = type(message)
    if kind in _PLAIN:
        return message
    if dataclasses.is_dataclass(kind):
        return {name: encode(getattr(message, name)) for name in _field_names(kind)}
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
    try:
        return typing.cast(Message, _decoder(typing.cast(Any, expected))(value))
    except _MisfitError as misfit:
        raise ValueError(f"{path or expected.__name__}{misfit.path} {misfit.text}") from None


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


class _MisfitError(Exception):
    """A value that is not what is expected, with its path from the value that is decoded."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path

    def below(self, step: str) -> _MisfitError:
        """Return the same error seen from one level above."""
        return _MisfitError(self.text, step + self.path)


@cache
def _decoder(expected: Any) -> _Decoder:
    """Return the decoder of a type; looking at types takes longer than decoding does."""
    origin, parts = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return lambda value: value
    if origin in (types.UnionType, typing.Union):
        (inner,) = (option for option in parts if option is not type(None))
        return partial(_optional_decode, _decoder(inner))
    if origin is tuple and parts[-1] is Ellipsis:
        return partial(_items_decode, _decoder(parts[0]))
    if origin is tuple:
        return partial(_tuple_decode, [_decoder(part) for part in parts])
    if origin in (dict, Mapping):
        return partial(_mapping_decode, parts[0], _decoder(parts[1]))
    if dataclasses.is_dataclass(expected):
        return partial(_message_decode, expected)
    if isinstance(expected, type) and issubclass(expected, StrEnum):
        return partial(_choice_decode, expected)
    return _float_decode if expected is float else partial(_scalar_decode, expected)


def _optional_decode(decoder: _Decoder, value: Any) -> Any:
    return None if value is None else decoder(value)


def _items_decode(decoder: _Decoder, value: Any) -> tuple[Any, ...]:
    _list_check(value)
    decoded: list[Any] = []
    try:
        for item in value:
            decoded.append(decoder(item))  # noqa: PERF401  its length is the place of an error
    except _MisfitError as misfit:
        raise misfit.below(f"[{len(decoded)}]") from None
    return tuple(decoded)


def _tuple_decode(decoders: Sequence[_Decoder], value: Any) -> tuple[Any, ...]:
    _list_check(value)
    if len(decoders) != len(value):
        raise _MisfitError(f"must have {len(decoders)} items, got {len(value)}")
    return tuple(
        _at(f"[{place}]", decoder, item)
        for place, (decoder, item) in enumerate(zip(decoders, value, strict=True))
    )


def _list_check(value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise _MisfitError(f"must be a list, got {_describe(value)}")


def _mapping_decode(key_type: Any, decoder: _Decoder, value: Any) -> dict[Any, Any]:
    _object_check(value)
    return {
        _key_decode(key_type, key): _at(f"[{key}]", decoder, item) for key, item in value.items()
    }


def _object_check(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _MisfitError(f"must be an object, got {_describe(value)}")


def _key_decode(expected: Any, key: Any) -> Any:
    try:
        return expected(key)
    except ValueError:
        raise _MisfitError(f"has the key {key!r:.60}, which is no {expected}") from None


def _at(step: str, decoder: _Decoder, value: Any) -> Any:
    try:
        return decoder(value)
    except _MisfitError as misfit:
        raise misfit.below(step) from None


def _message_decode(expected: Any, value: Any) -> Any:
    _object_check(value)
    known: dict[str, Any] = {}
    for name, decoder, is_needed in _fields(expected):
        if name in value:
            try:
                known[name] = decoder(value[name])
            except _MisfitError as misfit:
                raise misfit.below(f".{name}") from None
        elif is_needed:
            raise _MisfitError("is missing", f".{name}")
    return expected(**known)


@cache
def _fields(expected: Any) -> list[tuple[str, _Decoder, bool]]:
    """List the fields of a message: name, decoder, and whether it has no default."""
    hints, none = typing.get_type_hints(expected), dataclasses.MISSING
    return [
        (item.name, _decoder(hints[item.name]), item.default is item.default_factory is none)
        for item in dataclasses.fields(expected)
    ]


@cache
def _field_names(kind: Any) -> list[str]:
    return [item.name for item in dataclasses.fields(kind)]


def _choice_decode(expected: type[StrEnum], value: Any) -> Any:
    try:
        return expected(value)
    except ValueError:
        choices = ", ".join(expected)
        raise _MisfitError(f"must be one of {choices}, got {value!r}") from None


def _float_decode(value: Any) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _MisfitError(f"is too large: {_describe(value)}") from None
    result: float = _scalar_decode(float, value)
    return result


def _scalar_decode(expected: Any, value: Any) -> Any:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise _MisfitError(f"must be {_NAMES[expected]}, got {_describe(value)}")
    return value


def _describe(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.60}"
