"""Values that job code can put into its reports, and that no one may stumble over."""

from __future__ import annotations

from typing import Any


def nested(depth: int) -> Any:
    """Give lists within lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**70,
    10**400,
    -(10**400),
    1e-320,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    "",
    "text",
    "x" * 200_000,
    "\0",
    "\ud800",
    [1],
    {"a": 1},
    {"4": 1e300, "0": 10**400, "\ud800": "\0"},
    [10**400, None, {"a": []}],
    nested(900),
)
