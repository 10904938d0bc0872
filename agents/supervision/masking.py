"""Masks the values of a job's secrets in texts of its trainers.

A value is found whole: as it is, escaped as in JSON or Python, percent-encoded, or as base64 of its
own. Parts of a value, single lines of it, and other encodings are not found.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

STARS = "***"
#: Bytes of a form that have to match before the rest of it is compared.
_PROBE_BYTES = 8


class Mask:
    """The forms of some secrets, longest first."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value)}
        self._texts = sorted(forms, key=len, reverse=True)
        self._forms = [form.encode() for form in self._texts]
        self.longest_bytes = max(map(len, self._forms), default=0)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def value(self, value: Any) -> Any:
        """Return plain JSON values with every secret in their texts replaced by `STARS`."""
        if isinstance(value, str):
            for text in self._texts:
                value = value.replace(text, STARS)
        elif isinstance(value, dict):
            return {self.value(name): self.value(item) for name, item in value.items()}
        elif isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a message, under the protocol's own names, with values masked."""
        return {name: self.value(item) for name, item in values.items()}

    def data(self, data: bytes) -> bytes:
        """Return `data` with one star for each byte of a secret, so that offsets stay."""
        masked = bytearray(data)
        for form in self._forms:
            found = data.find(form)
            while found >= 0:
                masked[found : found + len(form)] = b"*" * len(form)
                found = data.find(form, found + len(form))
        return bytes(masked)

    def num_begun(self, data: bytes) -> int:
        """Return how many bytes at the end of `data` are the beginning of a secret."""
        return max((_begun(data, form) for form in self._forms), default=0)


def _forms(value: str) -> set[str]:
    encoded = value.encode()
    forms = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
        base64.b64encode(encoded).decode().rstrip("="),
        base64.urlsafe_b64encode(encoded).decode().rstrip("="),
    }
    return forms - {""}


def _begun(data: bytes, form: bytes) -> int:
    start = max(0, len(data) - len(form) + 1)
    probe = form[:_PROBE_BYTES]
    found = data.find(probe, start)
    while found >= 0:
        if form.startswith(data[found:]):
            return len(data) - found
        found = data.find(probe, found + 1)
    lengths = range(min(len(probe) - 1, len(data)), 0, -1)
    return next((length for length in lengths if data.endswith(probe[:length])), 0)
