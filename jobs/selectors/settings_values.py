"""Settings of jobs as flat names and texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings inside objects by dotted name."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def settings_with(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some changed, also inside an object that is there: `net.depth`."""
    found = dict(settings)
    for name, value in changes.items():
        outer, _, inner = name.partition(".")
        if inner and name not in found and isinstance(found.get(outer), Mapping):
            found[outer] = settings_with(found[outer], {inner: value})
        else:
            found[name] = value
    return found


def value_text(value: Any) -> str:
    """Write a setting's value: text as it stands, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
