"""Bounds of all values in trainer reports and validation facts, which job code can forge.

A reader turns one JSON value into a value that rows, policies and pages can hold, or raises
ValueError. A report with an unreadable value that it cannot do without is refused; measurements and
other optional values become None. Names that are not listed here are left out.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.plain_text import plain_text, plain_values
from controlplane.core.protocol.selection import LABEL_LENGTH, MOST_CHOSEN_LIMIT, PICTURE_SIDE
from controlplane.core.protocol.tuning import NUM_POINTS
from controlplane.core.protocol.wire import ReportKind, TrainerReport

Reader = Callable[[Any], Any]

#: Exclusive bounds.
STEP_LIMIT = BYTES_LIMIT = 2**63
EXAMPLES_LIMIT = 2**53 + 1
SECONDS_LIMIT = 1e7
#: Least measured time: ratios of two times stay finite.
SECONDS_LEAST = 1e-9
#: Trainers of a job, and virtual nodes.
COUNT_LIMIT = 4096
#: Largest statistics of gradients: sums of their squares stay finite.
MAGNITUDE_LIMIT = 1e100
#: Examples of one report of steps; the sum over a job's reports fits a column of 64 bits.
_REPORTED_EXAMPLES_LIMIT = 2**40
#: Columns of 31 bits whose value may still grow by one.
_NUMBER_LIMIT = 2**31 - 1
#: Of generations, which go on from the newest that is heard of: half of what a column holds.
GENERATION_LIMIT = 2**30
#: Of a part of a log, whose end fits a column of 64 bits as well.
_OFFSET_LIMIT = 2**62
#: Trials of a job.
TRIALS_LIMIT = 10_000
NAMES_LIMIT, _NAME_LENGTH = 200, 100
_TEXT_LENGTH, _TRACEBACK_LENGTH, _SUMMARY_LENGTH = 2000, 20_000, 60_000


def whole(low: int, limit: int) -> Reader:
    """Make a reader of whole numbers from `low` to below `limit`."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"is no whole number: {type(value).__name__}")
        if not low <= value < limit:
            raise ValueError(f"is not from {low} to below {limit}")
        return value

    return read


def number(low: float = -sys.float_info.max, limit: float = sys.float_info.max) -> Reader:
    """Make a reader of finite numbers from `low` to `limit`."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"is no number: {type(value).__name__}")
        if not low <= value <= limit:  # False for nan, exact for integers of any size
            raise ValueError(f"is not from {low:g} to {limit:g}")
        return float(value)

    return read


def text(length: int, *, from_end: bool = False) -> Reader:
    """Make a reader of text, which is cut to `length` characters; surrogates become "?"."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"is no text: {type(value).__name__}")
        cut = value[-length:] if from_end else value[:length]
        return cut.encode(errors="replace").decode()

    return read


def flag(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"is neither true nor false: {type(value).__name__}")
    return value


def listed(reader: Reader, limit: int = NAMES_LIMIT) -> Reader:
    """Make a reader of lists, without unreadable items and items after the first `limit`."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"is no list: {type(value).__name__}")
        items = (optional(reader)(item) for item in value[:limit])
        return [item for item in items if item is not None]

    return read


def mapped(reader: Reader) -> Reader:
    """Make a reader of objects with `NAMES_LIMIT` names at most; an unreadable value is None."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"is no object: {type(value).__name__}")
        items = list(value.items())[:NAMES_LIMIT]
        return {_name(name): optional(reader)(item) for name, item in items}

    return read


def fields(**readers: Reader) -> Reader:
    """Make a reader of objects with these fields, which may be missing."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"is no object: {type(value).__name__}")
        return {name: reader(value[name]) for name, reader in readers.items() if name in value}

    return read


def optional(reader: Reader) -> Reader:
    """Make a reader that returns None for an unreadable value."""

    def read(value: Any) -> Any:
        try:
            return reader(value)
        except ValueError:
            return None

    return read


_name = text(_NAME_LENGTH)
_line = text(_TEXT_LENGTH)
_traceback = text(_TRACEBACK_LENGTH, from_end=True)
_step = whole(0, STEP_LIMIT)
_examples = whole(0, EXAMPLES_LIMIT)
_bytes = whole(0, BYTES_LIMIT)
_seconds = number(0.0, math.nextafter(SECONDS_LIMIT, 0.0))
_measured_s = number(SECONDS_LEAST, math.nextafter(SECONDS_LIMIT, 0.0))
_memory = number(0.0, math.nextafter(float(BYTES_LIMIT), 0.0))
_value = optional(number())
_moment = number(-MAGNITUDE_LIMIT, MAGNITUDE_LIMIT)
_slot = whole(0, _NUMBER_LIMIT)
_epoch = whole(0, _NUMBER_LIMIT)
_nonfinite = fields(
    metric=optional(text(_NAME_LENGTH + 1)),
    value=text(_NAME_LENGTH),
    step=_step,
    epoch=_epoch,
    last_finite=_value,
    last_finite_step=optional(_step),
    num_skipped=_step,
    until_step=optional(_step),
)
_passed = fields(
    candidates=whole(0, _REPORTED_EXAMPLES_LIMIT),
    analysed=whole(0, _REPORTED_EXAMPLES_LIMIT),
    seconds=_seconds,
)


def _example_count(value: Any) -> list[int]:
    """Read an example's place in the data and a number."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("is no pair of numbers")
    return [_examples(item) for item in value]


def _picture(value: Any) -> dict[str, Any]:
    """Read a picture of at most `PICTURE_SIDE` rows and columns."""
    side = whole(1, PICTURE_SIDE + 1)
    reader = fields(height=side, width=side, channels=whole(1, 4), pixels=_pixels)
    read: dict[str, Any] = reader(value)
    sizes = (read.get(name, 0) for name in ("height", "width", "channels"))
    num_bytes = len(base64.b64decode(read.get("pixels", ""), validate=True))
    if not num_bytes or num_bytes != math.prod(sizes) or read.get("channels") == 2:
        raise ValueError("is no picture of one or three bytes a pixel")
    return read


def _pixels(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4 * PICTURE_SIDE**2:
        raise ValueError(f"is no text of {4 * PICTURE_SIDE**2} characters at most")
    return value


_preview = fields(place=_examples, label=text(LABEL_LENGTH), picture=optional(_picture))
_upload_errors = optional(mapped(_line))

_READERS: Mapping[ReportKind, Mapping[str, Reader]] = {
    ReportKind.PHASE: {"phase": _name},
    ReportKind.READY: {"profile": optional(mapped(_measured_s))},
    ReportKind.SWITCHED: {
        "step": _step,
        "pause_s": optional(_seconds),
        "bytes_moved": optional(_bytes),
        "adopted": optional(whole(0, _NUMBER_LIMIT)),
    },
    ReportKind.DIGEST: {"step": _step, "sha256": _name, "role": _name},
    ReportKind.STEPS: {
        "first_step": _step,
        "last_step": _step,
        "epoch": _epoch,
        "examples": whole(0, _REPORTED_EXAMPLES_LIMIT),
        "candidates": optional(whole(0, _REPORTED_EXAMPLES_LIMIT)),
        "analysed": optional(whole(0, _REPORTED_EXAMPLES_LIMIT)),
        "pass_s": optional(_seconds),
        "seconds": _seconds,
        "loss": _value,
        "last_loss": _value,
        "num_accelerators": whole(1, COUNT_LIMIT + 1),
        "batch_size": optional(whole(1, _NUMBER_LIMIT)),
        "learning_rate": _value,
        "compute_s": optional(mapped(_measured_s)),
        "nonfinite": optional(_nonfinite),
        "noise": optional(fields(sqr=_moment, var=_moment)),
    },
    ReportKind.EPOCH: {
        "epoch": _epoch,
        "step": _step,
        "logs": mapped(_value),
        "nonfinite": optional(listed(_nonfinite)),
        "most_chosen": optional(listed(_example_count, MOST_CHOSEN_LIMIT)),
        "previews": optional(listed(_preview, MOST_CHOSEN_LIMIT)),
    },
    ReportKind.CHECKPOINTED: {
        "step": _step,
        "epoch": optional(_epoch),
        "bytes": _bytes,
        "sha256": _name,
        "is_last": optional(flag),
        "superseded": optional(flag),
        "upload_errors": _upload_errors,
    },
    ReportKind.PART: {"upload_errors": _upload_errors},
    ReportKind.SELECTION_ENDED: {
        "epoch": _epoch,
        "step": _step,
        "reason": text(_NAME_LENGTH),
        "ratio": number(),
    },
    ReportKind.TRIAL: {
        "number": whole(1, TRIALS_LIMIT + 1),
        "search": whole(1, TRIALS_LIMIT + 1),
        "values": mapped(_value),
        "step": _step,
        "steps": _step,
        "start_loss": _value,
        "losses": optional(listed(number(), 2 * NUM_POINTS)),
        "verdict": optional(_name),
        "speed": number(0.0),
        "end": optional(_name),
        "is_running": flag,
        "search_end": optional(_name),
    },
    ReportKind.LEFT: {},
    ReportKind.FINISHED: {
        "step": _step,
        "reason": optional(_name),
        "metrics": mapped(_value),
        "digest": optional(text(64)),
        "files": optional(listed(_name)),
        "num_examples": _examples,
        "passed": optional(_passed),
        "upload_errors": _upload_errors,
    },
    ReportKind.FAILED: {
        "code": _name,
        "message": optional(text(1000)),
        "traceback": optional(_traceback),
        "step": optional(_step),
        "epoch": optional(_epoch),
        "nonfinite": optional(_nonfinite),
        "upload_errors": _upload_errors,
    },
    ReportKind.STALLED: {
        "step": optional(_step),
        "unreachable": optional(listed(_slot, COUNT_LIMIT)),
    },
    ReportKind.EXITED: {
        "exit_code": optional(whole(-(2**31), 2**31)),
        "was_missing": optional(flag),
    },
}

_FACTS: Mapping[str, Reader] = {
    "num_examples": _examples,
    "num_validation_examples": _examples,
    "steps_per_epoch": _examples,
    "slice_examples": _examples,
    "num_parameters": _bytes,
    "num_trainable_parameters": _bytes,
    "state_bytes": _bytes,
    "build_s": _seconds,
    "trace_s": _seconds,
    "slice_s": _seconds,
    "selection": fields(loss_s=_measured_s, step_s=_measured_s),
    "memory": fields(
        process_bytes=_memory,
        base_bytes=_memory,
        bytes_per_example=_memory,
        measured_slices=listed(_examples),
    ),
    "data_fingerprint": _name,
    "is_merged": flag,
    "not_merged_because": _line,
    "metrics": listed(_name),
    "outputs": listed(_line),
    "warnings": listed(_line),
    "summary": text(_SUMMARY_LENGTH),
}


def is_addressed(job_id: int, slot: int, *, sequence: int = 0, offset: int = 0) -> bool:
    """Return whether columns can hold the numbers that a report or a chunk of a log names."""
    is_numbered = 0 <= slot < _NUMBER_LIMIT and 0 <= sequence < _NUMBER_LIMIT
    return is_numbered and 0 < job_id < STEP_LIMIT and 0 <= offset < _OFFSET_LIMIT


def report_read(report: TrainerReport) -> TrainerReport:
    """Return a report with plain, bounded data.

    Raises:
        ValueError: its generation, or a value that it cannot do without, is out of its bounds.
    """
    if not 0 <= report.generation < GENERATION_LIMIT:
        raise ValueError(f"generation is not from 0 to below {GENERATION_LIMIT}")
    data = {}
    for name, reader in _READERS[report.kind].items():
        if name in report.data:
            try:
                data[name] = reader(plain_values(report.data[name]))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    return dataclasses.replace(report, data=data)


def facts_read(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read the bounded facts of a validation, without unreadable and unknown ones."""
    plain = {name: plain_values(facts[name]) for name in _FACTS if name in facts}
    found = {name: optional(_FACTS[name])(value) for name, value in plain.items()}
    return {name: value for name, value in found.items() if value is not None}


def validation_read(report: ValidationReport) -> ValidationReport:
    """Return a validation's result with plain, bounded texts and facts."""
    return dataclasses.replace(
        report,
        code=None if report.code is None else _name(plain_text(report.code)),
        field=None if report.field is None else _name(plain_text(report.field)),
        message=_line(plain_text(report.message)),
        traceback=_traceback(plain_text(report.traceback)),
        facts=facts_read(report.facts),
    )
