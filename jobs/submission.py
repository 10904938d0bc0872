"""A checked submission, its limits, and the rules between its fields."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

from controlplane.core.estimates.batch_size import batch_bounds
from controlplane.core.protocol.selection import SelectionMethod
from controlplane.core.protocol.tuning import (
    NUM_POINTS,
    PARALLEL_FIELDS,
    SERIAL_FIELDS,
    TunableName,
    TunableRange,
    TuningSpec,
)
from controlplane.core.protocol.wire import (
    OnNonfinite,
    ReductionMode,
    StopCondition,
    StopKind,
    Task,
)
from controlplane.core.tuning.batch_sizes import batch_size_conflict
from controlplane.core.tuning.selection_beta import selection_beta_conflict
from controlplane.core.values.tiers import Tier

VIRTUAL_NODES_LIMIT = 4096
BATCH_LIMIT = 10_000_000
STOP_LIMIT = 100_000_000
SECRETS_LIMIT = 16  # of a job
TAGS_LIMIT = 20  # of a job
NOTE_LIMIT = 1000
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,39}")
#: Names that are environment variables of a shell, too.
SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
PRIORITY_RANGE = (1, 1000)
DEFAULT_PRIORITY = 100
#: Checkpoints of a job to start from: the newest kept one, or one that the job saves now.
NEWEST, NOW = "newest", "now"
CHECKPOINT_CHOICE = re.compile(rf"{NEWEST}|{NOW}|[0-9]{{1,18}}")
_JOINERS = frozenset("\u200c\u200d")
_SKIN_TONE = re.compile("[\U0001f3fb-\U0001f3ff]")
#: Letters at the end of a text of which two are a flag.
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]+$")
#: Joiners inside a text, which Persian words and families of emoji are written with.
_JOINER = re.compile(r"(?<=\S)[\u200c\u200d](?=[^\s\u200c\u200d])")
#: Stop condition of a prediction: one pass over the data.
ONE_PASS = StopCondition(kind=StopKind.EPOCHS, limit=1)

_NOT_FOR_PREDICTION = {
    "stop_kind": "A job that predicts ends with its data; leave this out.",
    "stop_limit": "A job that predicts ends with its data; leave this out.",
    "stop_metric": "A job that predicts has no metrics; leave this out.",
    "stop_target": "A job that predicts has no metrics; leave this out.",
    "shuffle": "Predictions come in the order of the data; leave this out or say false.",
    "allow_mixed_kinds": "A job that predicts runs on one kind; leave this out or say false.",
    "on_nonfinite": "A job that predicts has no loss; leave this out.",
    "batch_size_min": "The batch of a job that predicts is fixed; leave this out.",
    "batch_size_max": "The batch of a job that predicts is fixed; leave this out.",
    "forked_from": "A job that predicts trains no state; give source_job instead.",
    "selection_method": "A job that predicts trains on no example; leave selection out.",
    "tuning_space": "A job that predicts has no learning rate; leave tuning out.",
}
_TUNING_DEFAULTS = {field.name: field.default for field in fields(TuningSpec)}
_OFF: tuple[Any, ...] = ("", None, False, "false", "False", "off", "no", "0", 0, {}, "{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A checked submission, complete and within bounds."""

    name: str
    tags: tuple[str, ...]
    note: str
    task: Task
    source_job: int | None
    forked_from: int | None
    checkpoint: str
    template: str
    code: bytes
    code_name: str
    entry_file: str
    settings: dict[str, Any]
    secrets: tuple[str, ...]
    global_batch_size: int
    batch_size_min: int | None
    batch_size_max: int | None
    num_virtual_nodes: int
    min_accelerators: int
    max_accelerators: int
    accepted_kinds: tuple[str, ...]
    allow_mixed_kinds: bool
    tier: Tier
    priority: int
    project: str
    stop: StopCondition
    seed: int
    reduction: ReductionMode
    shuffle: bool
    on_nonfinite: OnNonfinite
    selection: dict[str, Any]
    tuning: dict[str, Any]

    def columns(self) -> dict[str, Any]:
        """Return `SUBMISSION_COLUMNS` and the stop condition as columns of a job."""
        found = {name: getattr(self, name) for name in SUBMISSION_COLUMNS}
        found |= {
            f"stop_{field.name}": getattr(self.stop, field.name) for field in fields(self.stop)
        }
        found["stop_metric"] = self.stop.metric or ""
        return {name: _as_column(value) for name, value in found.items()}


#: Fields of a submission that are columns of a job, by the same name.
SUBMISSION_COLUMNS = tuple(
    field.name
    for field in fields(Submission)
    if field.name not in ("source_job", "forked_from", "checkpoint", "project", "code", "stop")
)


def fingerprint(wanted: Any) -> str:
    """Return a digest of a checked request, a dataclass, as 64 hexadecimal digits.

    An empty field counts as none: a later version with a further field agrees while that is empty.
    """
    given = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    filled = [
        (name, fingerprint(value) if is_dataclass(value) else value)
        for name, value in sorted(given.items())
        if value
    ]
    return hashlib.sha256(repr(filled).encode()).hexdigest()


def _as_column(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def unprintable(name: str) -> str:
    """Return the first character of a name that is not printable; empty if all are.

    Joiners are printable between two others that are seen.
    """
    return next((one for one in _JOINER.sub("", name) if not one.isprintable()), "")


def name_start(name: str, limit: int) -> str:
    """Return the start of a name: at most `limit` characters, none without what belongs to it."""
    end = limit
    while 0 < end < len(name) and _is_inside(name, end):
        end -= 1
    return name[: end or limit]


def _is_inside(name: str, place: int) -> bool:
    """Return whether a place of a name is before a mark, skin tone or joiner, or in a flag."""
    before, after = name[place - 1], name[place]
    if unicodedata.category(after).startswith("M") or {before, after} & _JOINERS:
        return True
    letters = _FLAG_LETTERS.search(name, 0, place)
    is_flag_open = letters is not None and len(letters[0]) % 2 == 1
    return bool(_SKIN_TONE.match(after) or (is_flag_open and _FLAG_LETTERS.match(after)))


def prediction_values(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Drop from a training job's values those that a prediction cannot have, unless `given`."""
    return {
        name: value
        for name, value in values.items()
        if name in given
        or not (name in _NOT_FOR_PREDICTION or name.startswith(("selection", "tuning")))
    }


def field_conflicts(
    values: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for every broken rule between fields.

    Args:
        values: valid values by field; a rule with a missing or invalid field is skipped.
        given: the fields as they were given, without defaults.
    """
    if values["task"] is Task.PREDICT:
        given = {name: value for name, value in given.items() if value != SelectionMethod.NONE}
        wrong = (name for name in _NOT_FOR_PREDICTION if given.get(name) not in _OFF)
        yield from ((name, _NOT_FOR_PREDICTION[name]) for name in wrong)
    elif values.get("source_job") is not None:
        yield "source_job", "Only a job with task: predict takes the model of another job."
    if values.get("forked_from") is None and given.get("checkpoint") not in (None, "", NEWEST):
        yield "checkpoint", "Say whose: give forked_from, the number of a job."
    yield from _size_conflicts(values)
    yield from _batch_conflicts(values)
    yield from _selection_conflicts(values)
    yield from _tuning_conflicts(values, given)


def _size_conflicts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    batch_size, num_virtual_nodes = values.get("global_batch_size"), values.get("num_virtual_nodes")
    least, most = values.get("min_accelerators"), values.get("max_accelerators")
    if batch_size and num_virtual_nodes and batch_size < num_virtual_nodes:
        yield (
            "num_virtual_nodes",
            f"A batch of {batch_size} examples cannot be split over {num_virtual_nodes} virtual "
            "nodes; use at most as many as examples.",
        )
    if most and num_virtual_nodes and most > num_virtual_nodes:
        plural = "" if num_virtual_nodes == 1 else "s"
        yield (
            "max_accelerators",
            f"Its {num_virtual_nodes} virtual node{plural} can use at most as many accelerators.",
        )
    if least and most and least > most:
        yield "min_accelerators", f"This is more than the {most} it may have at most."


def _batch_conflicts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = ("batch_size_min", "batch_size_max", "global_batch_size", "num_virtual_nodes")
    if not {*names, "stop_kind"} <= {*values}:
        return
    low, high, batch_size, num_virtual_nodes = (values[name] for name in names)
    if low is None or high is None:
        if low is not None or high is not None:
            missing = "batch_size_min" if low is None else "batch_size_max"
            message = "Give both batch_size_min and batch_size_max, or neither: a fixed batch."
            yield missing, message
        return
    if values["stop_kind"] is StopKind.STEPS:
        yield (
            "stop_kind",
            "With a batch size that may change a step is no fixed amount of work: stop after "
            "epochs or at a metric, or leave out batch_size_min and batch_size_max.",
        )
    if num_virtual_nodes < 2:
        yield (
            "num_virtual_nodes",
            "Use at least 2: the batch size follows the noise between their gradients.",
        )
    if low > batch_size:
        yield "batch_size_min", f"Give at most {batch_size}, the batch that it begins with."
    if high < batch_size:
        yield "batch_size_max", f"Give at least {batch_size}, the batch that it begins with."
    if low < num_virtual_nodes:
        yield "batch_size_min", f"Give at least {num_virtual_nodes}, one example a virtual node."
    elif low <= high and batch_bounds(low, high, num_virtual_nodes) is None:
        yield (
            "batch_size_max",
            f"No multiple of the {num_virtual_nodes} virtual nodes lies between {low} and {high}; "
            "give wider bounds.",
        )


def _selection_conflicts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    method = values.get("selection_method", SelectionMethod.NONE)
    if method is SelectionMethod.NONE or values["task"] is Task.PREDICT:
        return
    start, end = values.get("selection_start"), values.get("selection_end")
    if start and end and end <= start:
        yield "selection_end", f"Give more than {start}, the first epoch that selects."
    if values.get("selection_control_every") and method is SelectionMethod.RANDOM:
        text = "Random selection is its own control; leave control_every out, or select by losses."
        yield "selection_control_every", text
    num_epochs = values.get("stop_limit")
    if start and num_epochs and start >= num_epochs and values.get("stop_kind") != StopKind.STEPS:
        yield (
            "selection_start",
            f"The job has the epochs 0 to {num_epochs - 1}, so no epoch would select; give at most "
            f"{num_epochs - 1}, or train for more epochs."
            if num_epochs > 1
            else "The first epoch trains on every example, so no epoch would select; train for "
            "more epochs.",
        )


def _tuning_conflicts(
    values: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    if not values.get("tuning_space") or values["task"] is Task.PREDICT:
        return
    if values.get("batch_size_min") is not None:
        yield (
            "tuning_space",
            "The platform may not change the batch size of trials that are compared: leave out "
            "tuning, or batch_size_min and batch_size_max.",
        )
    is_parallel = values.get("tuning_parallel") is True
    if conflict := _batch_size_conflict(values, is_parallel=is_parallel):
        yield "tuning_space", f"{conflict}."
    if conflict := _selection_beta_conflict(values, is_parallel=is_parallel):
        yield "tuning_space", f"{conflict}."
    if is_parallel and values.get("selection_method", SelectionMethod.NONE) != SelectionMethod.NONE:
        yield (
            "tuning_parallel",
            "Trials beside a job choose other examples than it does, so their losses say nothing: "
            "leave out selection, or tuning.parallel.",
        )
    steps = values.get("tuning_trial_steps")
    if steps and steps % NUM_POINTS:
        yield "tuning_trial_steps", f"Give a multiple of {NUM_POINTS}: it is judged by its tenths."
    for name in SERIAL_FIELDS if is_parallel else PARALLEL_FIELDS:
        value, default = values.get(f"tuning_{name}"), _TUNING_DEFAULTS[name]
        if value is not None and value != default and f"tuning_{name}" in given:
            fix = "leave it out, or leave out" if is_parallel else "leave it out, or give"
            yield (
                f"tuning_{name}",
                f"It is of trials {'in the job itself' if is_parallel else 'beside the job'}: "
                f"{fix} tuning.parallel.",
            )


def _batch_size_conflict(values: Mapping[str, Any], *, is_parallel: bool) -> str | None:
    span = values["tuning_space"].get(TunableName.BATCH_SIZE)
    number, stop_kind = values.get("num_virtual_nodes"), values.get("stop_kind")
    if span is None or number is None or stop_kind is None:
        return None
    return batch_size_conflict(
        TunableRange(**span),
        number,
        stop_kind,
        selects=values.get("selection_method", SelectionMethod.NONE) != SelectionMethod.NONE,
        is_parallel=is_parallel,
    )


def _selection_beta_conflict(values: Mapping[str, Any], *, is_parallel: bool) -> str | None:
    stop_kind = values.get("stop_kind")
    if TunableName.SELECTION_BETA not in values["tuning_space"] or stop_kind is None:
        return None
    return selection_beta_conflict(
        values.get("selection_method", SelectionMethod.NONE),
        stop_kind,
        has_end=values.get("selection_end") is not None,
        has_controls=values.get("selection_control_every") is not None,
        is_parallel=is_parallel,
    )
