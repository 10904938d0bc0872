"""Serializer fields of a submission; each takes JSON values and the text of a form alike."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from enum import StrEnum
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.protocol.codec import decode, encode, is_nested_deeper
from controlplane.core.protocol.tuning import TuningSpec
from jobs.query_values import number_read, whole_read
from jobs.submission import (
    CHECKPOINT_CHOICE,
    NOTE_LIMIT,
    SECRET_NAME,
    SECRETS_LIMIT,
    TAG,
    TAGS_LIMIT,
    unprintable,
)

SETTINGS_LIMIT_BYTES = 64 * 1024
SETTINGS_DEPTH_LIMIT = 32
KINDS_LIMIT = 20
_RANGE_KEYS = frozenset({"low", "high", "log"})
_TOO_DEEP = f"Nest lists and objects at most {SETTINGS_DEPTH_LIMIT} levels deep."


class WholeField(serializers.IntegerField):
    """A whole number within `[low, high]`."""

    def __init__(self, low: int, high: int, **options: Any) -> None:
        message = f"Give a whole number from {low} to {high}."
        codes = ("invalid", "min_value", "max_value", "max_string_length")
        options["error_messages"] = dict.fromkeys(codes, message)
        super().__init__(min_value=low, max_value=high, **options)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | str):
            self.fail("invalid")
        if isinstance(data, str) and whole_read(data.removeprefix("-")) is None:
            self.fail("invalid")
        return super().to_internal_value(data)


class NumberField(serializers.FloatField):
    """A finite number, within `[low, high]` if there are bounds."""

    default_error_messages: ClassVar = {
        "invalid": "Give a number.",
        "infinite": "Give a finite number.",
    }

    def __init__(self, low: float | None = None, high: float | None = None, **options: Any) -> None:
        if low is not None and high is not None:
            message = f"Give a number from {low:.15g} to {high:.15g}."
            options["error_messages"] = dict.fromkeys(("min_value", "max_value"), message)
        super().__init__(min_value=low, max_value=high, **options)

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or (isinstance(data, str) and number_read(data) is None):
            self.fail("invalid")
        try:
            number = super().to_internal_value(data)
        except OverflowError:
            self.fail("infinite")
        if not math.isfinite(number):
            self.fail("infinite")
        return number


class TextField(serializers.CharField):
    """Printable text of 1 to `limit` characters; joiners only between two others that are seen."""

    default_error_messages: ClassVar = {"invalid": "Give text."}

    def __init__(self, limit: int, **options: Any) -> None:
        message = f"Give 1 to {limit} printable characters."
        options["error_messages"] = dict.fromkeys(("blank", "max_length"), message) | {
            "unprintable": f"{message[:-1]}, without {{character}}."
        }
        super().__init__(max_length=limit, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        text = super().to_internal_value(data)
        if wrong := unprintable(text):
            name = unicodedata.name(wrong, "a control character").lower()
            self.fail("unprintable", character=f"U+{ord(wrong):04X} ({name})")
        return text


class CheckpointField(serializers.CharField):
    """A checkpoint of a job: `newest`, `now`, or the step of a kept one, as text or number."""

    default_error_messages: ClassVar = {
        "invalid": "Give newest, now, or the step of a kept checkpoint."
    }

    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, bool) or not isinstance(data, str | int):
            self.fail("invalid")
        if not CHECKPOINT_CHOICE.fullmatch(text := str(data).strip()):
            self.fail("invalid")
        return text


class EnumField(serializers.ChoiceField):
    """A member of an enumeration, by its value."""

    def __init__(self, options: type[StrEnum], **more: Any) -> None:
        names = [option.value for option in options]
        more["error_messages"] = {"invalid_choice": f"Choose one of {', '.join(names)}."}
        super().__init__(choices=names, **more)
        self.options = options

    def to_internal_value(self, data: Any) -> StrEnum:
        return self.options(super().to_internal_value(data))


class FlagField(serializers.BooleanField):
    """True or false, as a boolean or as a word."""

    default_error_messages: ClassVar = {"invalid": "Give true or false."}


class SettingsField(serializers.DictField):
    """An object of plain JSON values, as an object or as JSON text."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except ValueError as error:
                raise serializers.ValidationError(f"Not valid JSON: {error}.") from None
            except RecursionError:
                raise serializers.ValidationError(_TOO_DEEP) from None
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise serializers.ValidationError(
                'Give an object with text keys, such as {"learning_rate": 0.001}.'
            )
        if is_nested_deeper(data, SETTINGS_DEPTH_LIMIT):
            raise serializers.ValidationError(_TOO_DEEP)
        try:
            text = json.dumps(data, allow_nan=False, ensure_ascii=False)
            size_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise serializers.ValidationError("Use text without lone surrogates.") from None
        except (TypeError, ValueError):
            raise serializers.ValidationError(
                "Use text, finite numbers, true, false, null, lists and objects; "
                f"{_unfit_place(data) or 'a key'} is none of them."
            ) from None
        if size_bytes > SETTINGS_LIMIT_BYTES:
            raise serializers.ValidationError(f"At most {SETTINGS_LIMIT_BYTES} bytes of JSON.")
        if "\\u0000" in text.replace("\\\\", ""):
            raise serializers.ValidationError("Use text without NUL characters.")
        return json.loads(text)  # YAML has other keys than text in inner objects


def _unfit_place(value: Any, place: str = "") -> str:
    """Return the place of the first value that JSON does not have, such as "net.rates[0]"."""
    if isinstance(value, dict):
        parts = [(f"{place}.{key}".lstrip("."), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{place}[{number}]", item) for number, item in enumerate(value)]
    else:
        is_fit = value is None or isinstance(value, str | int)
        is_fit |= isinstance(value, float) and math.isfinite(value)
        return "" if is_fit else place
    return next(filter(None, (_unfit_place(item, where) for where, item in parts)), "")


class SpaceField(SettingsField):
    """Ranges of tunables, checked and complete, as an object or as JSON text; may be empty."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        if not value:
            return value
        for name, span in value.items():
            if isinstance(span, dict) and (unknown := sorted(span.keys() - _RANGE_KEYS)):
                text = f"tuning.space.{name} has {unknown[0]!r:.50}; give low, high and log."
                raise serializers.ValidationError(text)
        try:
            spec = decode(TuningSpec, {"space": value}, "tuning")
        except ValueError as error:
            raise serializers.ValidationError(f"{error}.") from None
        return encode(spec)["space"]


class _WordsField(serializers.ListField):
    """Different words, as a list or as comma-separated text."""

    child = serializers.CharField()
    limit: ClassVar[int]
    pattern: ClassVar[re.Pattern[str]]
    noun: ClassVar[str]
    complaint: ClassVar[str]

    def to_internal_value(self, data: Any) -> list[str]:
        words = [word.strip() for word in data.split(",")] if isinstance(data, str) else data
        if not isinstance(words, list | tuple) or len(words) > self.limit:
            raise serializers.ValidationError(f"Give a list of at most {self.limit} {self.noun}.")
        words = [word for word in words if word != ""]
        for word in words:
            if not isinstance(word, str) or not self.pattern.fullmatch(word):
                raise serializers.ValidationError(f"{word!r:.50} {self.complaint}")
        return list(dict.fromkeys(words))


class KindsField(_WordsField):
    """Kinds of accelerator."""

    limit, noun = KINDS_LIMIT, "kinds"
    pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
    complaint = "is no kind of accelerator; see the nodes page."


class SecretNamesField(_WordsField):
    """Names of secrets."""

    limit, noun, pattern = SECRETS_LIMIT, "names", SECRET_NAME
    complaint = "is no name of a secret; those of yours are on the account page."


TAG_SCHEMA = {"type": "string", "pattern": f"^({TAG.pattern})$"}


@extend_schema_field({"type": "array", "items": TAG_SCHEMA, "maxItems": TAGS_LIMIT})
class TagsField(_WordsField):
    """Tags of a job."""

    limit, noun, pattern = TAGS_LIMIT, "tags", TAG
    complaint = (
        "is no tag; use 1 to 40 of a-z, A-Z, 0-9 and . _ : / -, with a letter or digit first."
    )


class NoteField(serializers.CharField):
    """Text of a few lines."""

    def __init__(self, **options: Any) -> None:
        message = f"Give text of at most {NOTE_LIMIT} characters."
        options["error_messages"] = dict.fromkeys(("invalid", "max_length"), message)
        super().__init__(max_length=NOTE_LIMIT, allow_blank=True, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)
