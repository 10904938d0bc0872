"""Runs real steps of a job on slices of growing size, and measures their time and memory.

A size is skipped if it would exceed the free memory or the time limit, extrapolated from smaller
slices. Memory at skipped sizes follows from the line through the tried ones.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from agents.trainer.model.batch_scaling import BatchScaling
from agents.trainer.model.optimizers import optimizer_of
from agents.trainer.model.state import ModelState, as_array
from agents.trainer.model.stateful_ops import refuse_untracked_writes
from agents.trainer.model.tunables import tunables_of
from agents.trainer.selection.state import selection_of
from agents.trainer.step.batch_plan import TRAINING_STREAM, step_seeds
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.merging import why_not_merged
from agents.trainer.validate.gradient_trial import gradients_check
from agents.trainer.validate.job_file import LoadedJob
from agents.trainer.validate.merging_trial import merging_try
from agents.trainer.validate.selection_trial import candidates_choose
from controlplane.core.estimates.memory import line_fit
from controlplane.core.protocol.selection import PASS_BATCHES
from controlplane.core.protocol.wire import ReductionMode, TrainingSpec

#: Steps per size, at least; the fastest time and the highest peak count.
REPEATS = 2
#: Steps per size, at most, and the time after which none is added. The peak of a step depends on
#: the timing of threads: of 30 equal steps, up to a third held a buffer more than the others.
PEAK_REPEATS = 32
PEAK_LIMIT_S = 0.5
#: Time limit for the steps of one size, as estimated from the previous size.
SIZE_LIMIT_S = 15.0
#: Slices of the batch on which a selection pass and a step are compared, at most.
COMPARED_SLICES = 16
#: Passes and steps that are compared, in turns.
COMPARED_REPEATS = 9
#: Usual time from the order of a trainer to its first step.
TRAINER_START_S = 10.0
#: Share of the free memory that a trial may take, because other processes run on this node.
FREE_SHARE = 0.5
#: Ratio of successive sizes; the largest follows its half, for the line through both.
GROWTH = 4
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


@dataclass(frozen=True)
class SliceMeasurements:
    """Measurements of the steps of one slice size.

    Attributes:
        examples: size of the slice.
        seconds: time of one slice, from the fastest step.
        peak_bytes: peak above the process with the built model; None if not measured.
    """

    examples: int
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class StepFacts:
    """Facts for the report, and warnings for the job's submitter.

    Attributes:
        sums: names of losses that are sums over the batch.
    """

    facts: dict[str, Any]
    warnings: list[str]
    sums: Collection[str] = ()


def steps_try(
    spec: TrainingSpec, job: LoadedJob, sizes: Sequence[int], budget_bytes: int | None = None
) -> StepFacts:
    """Run steps with the engine's own functions on two slices at a time, up to `max(sizes)`.

    Restores the model's state at the end.

    Args:
        sizes: examples of each virtual node of a full batch.
        budget_bytes: most memory of a step above the built process; by default `FREE_SHARE` of
            the free memory.

    Raises:
        JobCodeError: a step changes what is no part of the job's state, or its gradients do not
            add up.
    """
    order = job.train.order(spec.seed, 0, spec.shuffle)
    selection = selection_of(spec, len(job.train))
    tunables = tunables_of(job.model, spec)
    scaling = None
    if spec.batch_size_min is not None:
        scaling = BatchScaling(optimizer_of(job.model), spec.global_batch_size)
    state = ModelState(job.model, scaling=scaling, selection=selection, tunables=tunables)
    _give_back_freed()
    process_bytes = memory_read("VmRSS")
    before = [np.array(as_array(value)) for value in state.capture()]
    if process_bytes is not None:
        process_bytes += state.num_bytes  # the copy in `before` is not part of a step
    budget = round(FREE_SHARE * free_bytes()) if budget_bytes is None else budget_bytes
    started_at = time.perf_counter()
    sample = job.train.fetch(order[:1])
    functions = StepFunctions(job.model, state, sample, job.validation is not None)
    losses: list[float] = []
    trials: list[SliceMeasurements] = []
    trace_s = 0.0
    largest = max(sizes)
    reason = ""
    try:
        for examples in slice_ladder(largest, len(order)):
            if reason := _why_not(examples, trials, budget):
                break
            arguments = _arguments(job, order, examples, len(functions.seeds))
            if not trials:  # one-time costs of the first step count as tracing
                losses.append(_first_step(functions, arguments))
                trace_s = time.perf_counter() - started_at
            trials.append(_measure(functions, arguments, examples, process_bytes, losses))
        merging = _merging_facts(spec, job, functions, order, trials)
        times = _selection_facts(job, functions, order, trials[-1], sizes)
    finally:  # also for what is checked after a step that failed
        state.put(before)
        before.clear()
    _split_gradients_check(job, functions, order, trials)
    last = trials[-1]
    warnings = [f"a slice of {largest} examples was not tried here: {reason}"] if reason else []
    warnings += _loss_warnings(losses)
    warnings += _parallel_warnings(spec, last.seconds / last.examples)
    facts: dict[str, Any] = {
        "trace_s": round(trace_s, 3),
        "slice_s": round(last.seconds * largest / last.examples, 5),
        "slice_examples": largest,
        "state_bytes": state.num_bytes,
    }
    memory = _memory_facts(trials, process_bytes, state.num_bytes)
    facts |= merging | times | ({"memory": memory} if memory else {})
    return StepFacts(facts, warnings, functions.virtual_node.sums)


def _split_gradients_check(
    job: LoadedJob,
    functions: StepFunctions,
    order: np.ndarray,
    trials: Sequence[SliceMeasurements],
) -> None:
    """Compare the gradients of a slice with those of its halves, as far as one was tried."""
    fitting = trials[-1].examples
    # One example alone is rounded in another way than among several.
    few = trials[0].examples if fitting < 4 else max(2, trials[0].examples)
    if 2 * few <= min(fitting, len(order)):
        gradients_check(functions, keras.tree.flatten(job.train.fetch(order[: 2 * few])))


def _loss_warnings(losses: Sequence[float]) -> list[str]:
    """Warn of first losses that are not finite."""
    broken = [loss for loss in losses if not np.isfinite(loss)]
    if not broken:
        return []
    return [
        f"the loss of {len(broken)} of {len(losses)} first steps is {broken[0]}; look at the "
        "learning rate and the data (unless on_nonfinite is continue, the job stops at such a "
        "step)"
    ]


def _merging_facts(
    spec: TrainingSpec,
    job: LoadedJob,
    functions: StepFunctions,
    order: np.ndarray,
    trials: Sequence[SliceMeasurements],
) -> dict[str, Any]:
    """Return, for a job in fast mode, whether its virtual nodes can be merged, and why not."""
    if spec.reduction is not ReductionMode.FAST:
        return {}
    reason = why_not_merged(spec)
    several = next((trial.examples for trial in trials if trial.examples > 1), None)
    if reason or several is None:
        return {"is_merged": not reason, "not_merged_because": reason}
    return merging_try(functions, _arguments(job, order, several, len(functions.seeds)))


def _parallel_warnings(spec: TrainingSpec, example_s: float) -> list[str]:
    """Warn if parallel trials take longer to start than to run with one accelerator."""
    if spec.tuning is None or not spec.tuning.parallel:
        return []
    trial_s = spec.tuning.trial_steps * spec.global_batch_size * example_s
    if trial_s >= TRAINER_START_S:
        return []
    return [
        f"the {spec.tuning.trial_steps:,} steps of a trial take about {trial_s:.1f} s with one "
        f"accelerator, and each parallel trial has to start first, in {TRAINER_START_S:.0f} s or "
        "more; without tuning.parallel, or with more trial_steps, tuning would end sooner"
    ]


def _selection_facts(
    job: LoadedJob,
    functions: StepFunctions,
    order: np.ndarray,
    trial: SliceMeasurements,
    sizes: Sequence[int],
) -> dict[str, Any]:
    """Return, if the job selects by losses, the seconds per example of a pass and of a step.

    Both are medians with all that belongs to them: reading the examples, and choosing among them.
    Candidates are read while other batches run, chosen examples only once they are known.
    """
    selection = functions.state.selection
    if functions.losses is None or selection is None:
        return {}
    affordable = int(SIZE_LIMIT_S / (2 * COMPARED_REPEATS * max(trial.seconds, 1e-9)))
    num_slices = max(2, min(len(sizes), COMPARED_SLICES, affordable))
    pass_slices = max(1, min(num_slices, sum(sizes) // trial.examples))
    pass_examples = min(PASS_BATCHES * trial.examples, len(order))
    num_seeds = len(functions.seeds)
    pass_s, step_s = [], []
    for _ in range(1 + COMPARED_REPEATS):
        started_at = time.perf_counter()
        arguments = _arguments(job, order, pass_examples, num_seeds, pass_slices)
        num_examples = int(arguments[-1].shape[0])
        read_at = time.perf_counter()
        num_chosen = candidates_choose(functions, order[:num_examples], arguments)
        passed_at = time.perf_counter()
        pass_s.append(max(passed_at - read_at, read_at - started_at) / num_examples)
        arguments = _arguments(job, order, trial.examples, num_seeds, num_slices)
        _step(functions, arguments)
        selection.queued(num_chosen)
        selection.dequeue(num_chosen)
        step_s.append((time.perf_counter() - passed_at) / int(arguments[-1].shape[0]))
    times = {"loss_s": statistics.median(pass_s[1:]), "step_s": statistics.median(step_s[1:])}
    return {"selection": times}


def slice_ladder(largest: int, num_examples: int) -> list[int]:
    """List the sizes to try, ascending: ..., half the largest, the largest.

    If the largest is 1, size 2 is added if there are examples: a line needs two sizes.
    """
    if largest == 1:
        return [1, 2][:num_examples]
    sizes = [largest, largest // 2]
    while sizes[-1] >= GROWTH:
        sizes.append(sizes[-1] // GROWTH)
    return sizes[::-1]


def memory_read(field: str) -> int | None:
    """Read one of the kernel's memory counters of this process, in bytes; None if missing.

    `VmRSS` is the resident memory, `VmHWM` its peak since the start or the last reset, `VmData` the
    allocated data segments.
    """
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def _give_back_freed() -> None:
    """Return memory that glibc keeps after `free` to the kernel, so that it does not count."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_bytes() -> int:
    """Return the free memory, in bytes, of the machine or of its container, whichever is less."""
    free = int(psutil.virtual_memory().available)
    for limit, usage in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            left = int(limit.read_text(encoding="ascii")) - int(usage.read_text(encoding="ascii"))
            free = min(free, max(left, 0))
    return free


def _why_not(examples: int, trials: Sequence[SliceMeasurements], budget: int) -> str:
    """Return why a size must not be tried; empty if allowed, as the first size always is."""
    if not trials:
        return ""
    last = trials[-1]
    seconds = last.seconds * 2 * REPEATS * examples / last.examples
    if seconds > SIZE_LIMIT_S:
        return f"{2 * REPEATS} of them would take about {seconds:.0f} s"
    if last.peak_bytes is None:
        return ""
    expected = last.peak_bytes * examples / last.examples
    if len(trials) > 1:
        base, slope = line_fit(_peaks(trials))
        expected = base + slope * examples
    if expected > budget:
        return f"it would take about {expected / 1e6:,.0f} MB, too much of what is free here"
    return ""


def _measure(
    functions: StepFunctions,
    arguments: list[Any],
    examples: int,
    process_bytes: int | None,
    losses: list[float],
) -> SliceMeasurements:
    """Run steps on slices of one size; appends their losses to `losses`."""
    _give_back_freed()
    with suppress(OSError):
        _RESET.write_text(_RESET_PEAK, encoding="ascii")
    times_s: list[float] = []
    while len(times_s) < REPEATS or (len(times_s) < PEAK_REPEATS and sum(times_s) < PEAK_LIMIT_S):
        started_at = time.perf_counter()
        losses.append(_step(functions, arguments))
        times_s.append(time.perf_counter() - started_at)
    peak = memory_read("VmHWM")
    above = None if peak is None or process_bytes is None else max(peak - process_bytes, 0)
    num_slices = int(arguments[0].shape[0])
    return SliceMeasurements(examples, min(times_s) / num_slices, above)


def _first_step(functions: StepFunctions, arguments: list[Any]) -> float:
    """Trace and run a step of training and one of validation, if any; returns the loss."""
    loss = _step(functions, arguments)
    for turn in functions.turns:
        update = turn.apply.get_concrete_function()
        refuse_untracked_writes(update.graph, functions.state.variables)
    if functions.has_validation:
        functions.count(functions.validate(*arguments)[0])
    return loss


def _step(functions: StepFunctions, arguments: list[Any]) -> float:
    return float(functions.train_step(*arguments)[1][0])


def _peaks(trials: Sequence[SliceMeasurements]) -> list[tuple[int, float]]:
    """List the size and the peak of the trials whose memory was measured."""
    return [(trial.examples, trial.peak_bytes) for trial in trials if trial.peak_bytes is not None]


def _memory_facts(
    trials: Sequence[SliceMeasurements], process_bytes: int | None, copied_bytes: int
) -> dict[str, Any] | None:
    points = _peaks(trials)
    if not points or process_bytes is None:
        return None
    base, slope = line_fit(points)
    return {
        "process_bytes": process_bytes - copied_bytes,
        "base_bytes": round(base),
        "bytes_per_example": round(slope),
        "measured_slices": [examples for examples, _ in points],
    }


def _arguments(
    job: LoadedJob, order: np.ndarray, examples: int, num_seeds: int, num_slices: int = 2
) -> list[Any]:
    """Make the arguments of the engine's step for some virtual nodes, fewer if data are short.

    Rows of the program: offset, length, merges after it (all but the first one), 1 for the first.
    """
    slices = [examples] * max(1, min(num_slices, len(order) // examples))
    program = [
        [index * examples, examples, int(index > 0), int(index == 0)]
        for index in range(len(slices))
    ]
    fixed = (
        np.array(program, np.int32),
        np.full(len(slices), 1.0 / len(slices), np.float32),
        np.int32(1),
        step_seeds(0, TRAINING_STREAM, 0, range(len(slices)), len(slices), num_seeds),
    )
    arrays = keras.tree.flatten(job.train.fetch(order[: sum(slices)]))
    return [tf.convert_to_tensor(value) for value in (*fixed, *arrays)]
