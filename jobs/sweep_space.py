"""Space of a sweep: a list of values or a range per setting, and the settings drawn from it."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

JOBS_LIMIT = 500  # of a sweep
NAMES_LIMIT = 20  # settings of a space
VALUES_LIMIT = 100  # of a setting
DEFAULT_MAX_RUNNING = 4
_NAME_LIMIT = 100
_EXPONENT = re.compile(r"[-+]?[0-9]{1,15}[eE][-+]?[0-9]{1,2}")
_RANGE_FIELDS = ("low", "high", "scale", "num", "integer")
#: Tries to draw settings that no job has yet, per job.
_TRIES = 20


class Scale(StrEnum):
    """Spacing of the values of a range."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Numbers from `low` to `high`, both included.

    Attributes:
        num: values of a grid; None: only for draws.
        is_integer: whole numbers only.
    """

    low: float
    high: float
    scale: Scale = Scale.LINEAR
    num: int | None = None
    is_integer: bool = False

    def grid(self) -> list[Any]:
        """Return `num` values at equal distances on the scale, without repeats."""
        assert self.num is not None, "a grid has a number of values"
        steps = [place / max(self.num - 1, 1) for place in range(self.num)]
        return list(dict.fromkeys(self._at(part) for part in steps))

    def draw(self, rng: random.Random) -> Any:
        """Draw a value, evenly on the scale."""
        if self.is_integer and self.scale is Scale.LINEAR:
            return rng.randint(int(self.low), int(self.high))
        return self._at(rng.random())

    def _at(self, part: float) -> Any:
        if self.scale is Scale.LOG:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + part * (high - low))
        else:
            value = self.low + part * (self.high - self.low)
        if self.is_integer:
            return min(max(round(value), int(self.low)), int(self.high))
        # Six digits are enough to tell settings apart, and can be read.
        return min(max(float(f"{value:.6g}"), self.low), self.high)


Space = Mapping[str, Sequence[Any] | ValueRange]


class SpaceError(ValueError):
    """A space, or the number of its jobs, breaks a rule; the text names the setting."""


def space_read(given: Any, *, is_grid: bool) -> Space:
    """Check a space as it was given.

    Raises:
        SpaceError: it is none.
    """
    if not isinstance(given, Mapping) or not given:
        raise SpaceError("Give an object of settings, such as {hidden_units: [32, 64]}.")
    if len(given) > NAMES_LIMIT:
        raise SpaceError(f"A sweep is over at most {NAMES_LIMIT} settings.")
    for name in given:
        if not (isinstance(name, str) and 0 < len(name) <= _NAME_LIMIT and name.isprintable()):
            raise SpaceError(f"{name!r:.50} is no name of a setting.")
    return {name: _values_read(name, values, is_grid=is_grid) for name, values in given.items()}


def _values_read(name: str, given: Any, *, is_grid: bool) -> Sequence[Any] | ValueRange:
    if isinstance(given, Mapping):
        return _range_read(name, given, is_grid=is_grid)
    if not isinstance(given, list) or not 0 < len(given) <= VALUES_LIMIT:
        raise SpaceError(
            f"{name}: give a list of 1 to {VALUES_LIMIT} values, or a range with low and high."
        )
    values = [_number_read(value) for value in given]
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def _range_read(name: str, given: Mapping[str, Any], *, is_grid: bool) -> ValueRange:
    unknown = [str(field) for field in given if field not in _RANGE_FIELDS]
    if unknown:
        raise SpaceError(f"{name}: no field {unknown[0]:.50}; use {', '.join(_RANGE_FIELDS)}.")
    low, high = (_number_read(given.get(end)) for end in ("low", "high"))
    if not (_is_number(low) and _is_number(high) and low < high):
        text = f"{name}: give numbers low and high up to 1e15, the smaller one first."
        raise SpaceError(text)
    scale = given.get("scale", Scale.LINEAR)
    if scale not in [*Scale]:
        raise SpaceError(f"{name}: scale is one of {', '.join(Scale)}.")
    if scale == Scale.LOG and low <= 0:
        raise SpaceError(f"{name}: on a log scale low has to be above 0.")
    is_integer = given.get("integer", False)
    if not isinstance(is_integer, bool):
        raise SpaceError(f"{name}: integer is true or false.")
    if is_integer and not (float(low).is_integer() and float(high).is_integer()):
        raise SpaceError(f"{name}: of an integer range low and high are whole numbers.")
    num = given.get("num")
    if num is not None and not (type(num) is int and 2 <= num <= VALUES_LIMIT):
        raise SpaceError(f"{name}: num is a whole number from 2 to {VALUES_LIMIT}.")
    if is_grid and num is None:
        raise SpaceError(f"{name}: a grid needs num, its number of values; or give draws.")
    return ValueRange(low, high, Scale(scale), num, is_integer)


def _number_read(value: Any) -> Any:
    """Read `1e-4` as the number that it is; for YAML it is text without a dot before the e."""
    is_number = isinstance(value, str) and _EXPONENT.fullmatch(value)
    return float(value) if is_number else value


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and abs(value) <= 1e15


def settings_drawn(space: Space, num_draws: int | None, seed: int) -> list[dict[str, Any]]:
    """Return the settings of each job: the grid, or different random draws, in a fixed order.

    A space with fewer combinations than draws gives fewer jobs. The same seed gives the same draws,
    in whatever order the settings are given.

    Raises:
        SpaceError: the grid has too many jobs.
    """
    space = dict(sorted(space.items()))
    if num_draws is None:
        return list(_grid(space))
    assert num_draws <= JOBS_LIMIT
    rng = random.Random(seed)  # noqa: S311 - no secret
    found: dict[str, dict[str, Any]] = {}
    for _ in range(_TRIES * num_draws):
        if len(found) == num_draws:
            break
        drawn = {
            name: values.draw(rng) if isinstance(values, ValueRange) else rng.choice(values)
            for name, values in space.items()
        }
        found.setdefault(json.dumps(drawn, sort_keys=True), drawn)
    return list(found.values())


def _grid(space: Space) -> Iterator[dict[str, Any]]:
    axes = [
        values.grid() if isinstance(values, ValueRange) else values for values in space.values()
    ]
    num_jobs = math.prod(map(len, axes))
    if num_jobs > JOBS_LIMIT:
        raise SpaceError(
            f"This grid has {num_jobs:,} jobs, and a sweep at most {JOBS_LIMIT}: give fewer "
            "values, or draws."
        )
    for combination in itertools.product(*axes):
        yield dict(zip(space, combination, strict=True))
