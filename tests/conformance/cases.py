"""Cases of the conformance suite and their outcomes: equal, refused or failed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.arrays import ArraySource
from agents.trainer.validate.job_file import LoadedJob
from agents.trainer.validate.model_checks import built_model_check, model_check
from agents.trainer.validate.run import Findings, loaded_job_check
from agents.trainer.validate.split_checks import splitting_check
from tests.agents.trainer.local_jobs import training_spec
from tests.conformance.harness import (
    ONE_NODE,
    ONE_TRAINER,
    THREE_TRAINERS,
    Accumulation,
    Arrays,
    Engine,
    Logs,
    Schedule,
    Trained,
    built,
    train_by_fit,
    variables_of,
)
from tests.support.starts import count_start

#: Differences that rounding makes, relative to the largest change of a variable in training.
TOLERANCE = 2e-5
#: Differences of single-precision numbers themselves, in units of their last place.
LAST_PLACES = 64
#: Changes of a variable below this share of the largest one of its kind count as that share: the
#: gradient of a bias before a normalisation is nothing but rounding.
SMALLEST_SHARE = 3e-2
#: A refusal says what to do instead: one of these words stands in it.
ADVICE = ("use ", "put ", "give ", "leave ", "set ", "move ", "keep ", "take ", "write ", "turn ")


class Result(StrEnum):
    """The outcome of a case."""

    EQUAL = "equal"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case and its reason.

    Attributes:
        error: the largest difference from Keras, relative to the change of the variable.
        control: for a case with a control schedule, by how much `fit` differs from itself there.
    """

    result: Result
    note: str = ""
    code: str = ""
    error: float = 0.0
    control: float = 0.0
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        """The reason in one line: a failure's note, a refusal's code, or the largest error."""
        return self.note if self.result is Result.FAILED else self.code or f"{self.error:.1e}"

    def to_json(self) -> dict[str, Any]:
        """Turn into what is kept: no times, which differ from run to run."""
        stored = {
            "result": self.result.value,
            "code": self.code,
            "note": self.note,
            "error": float(f"{self.error:.1e}"),
        }
        return {**stored, "control": float(f"{self.control:.1e}")} if self.control else stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcome:
        return cls(**{**stored, "result": Result(stored["result"])})


@dataclass(frozen=True)
class Case:
    """A small model that exercises one way of a class.

    Attributes:
        subject: the name of the class that the case is about.
        name: which of its options.
        build: makes the compiled model, the same each time it is called after seeding.
        arrays: `(x[, y[, sample_weight]])`.
        refused: the code with which the validation has to refuse it; empty when it trains.
        tolerance: see `TOLERANCE`; another one has a reason in `note`.
        control: a longer schedule over which the model cannot be compared: there `fit` differs from
            `fit` with first weights moved by one unit in their last place, too. Measured each time.
        is_sum: the loss is a sum over the batch.
        places: [n], unmasked places of each example, over which the loss is a mean.
        note: what the generated page says about it.
        is_dense: `fit` is given the sums of gradients of repeated rows. Keras's Adam and others
            square the gradient of each repetition by itself, which no sum of slices can.
        module: the public module of the class; several have classes of one name.
    """

    subject: str
    name: str
    build: Callable[[], keras.Model]
    arrays: Arrays
    refused: str = ""
    tolerance: float = TOLERANCE
    schedule: Schedule = field(default_factory=Schedule)
    control: Schedule | None = None
    is_sum: bool = False
    places: np.ndarray | None = None
    note: str = ""
    is_dense: bool = False
    module: str = ""

    @property
    def key(self) -> str:
        """Name the case in reports and tests."""
        subject = f"{self.module}.{self.subject}" if self.module else self.subject
        return f"{subject}: {self.name}" if self.name else subject


def case_try(case: Case) -> Outcome:
    """Let the product refuse a case, or train it in all ways and compare."""
    count_start("cases of Keras's classes")
    started_at = time.perf_counter()
    try:
        engine = _accepted(case)
        if isinstance(engine, JobCodeError):
            outcome = _refused(case, engine)
        elif case.refused:
            outcome = Outcome(Result.FAILED, f"accepted, but {case.refused} was expected")
        else:
            outcome = _trained(case, engine)
    except Exception as error:
        outcome = Outcome(Result.FAILED, f"{type(error).__name__}: {error!s:.600}")
    finally:
        keras.config.set_dtype_policy("float32")
        keras.config.set_floatx("float32")
    return replace(outcome, seconds=time.perf_counter() - started_at)


def _accepted(case: Case) -> Engine | JobCodeError:
    """Do what a validation does before its trial steps; if that refuses, ask the whole validation.

    Its trial steps are left to the training that follows.
    """
    smallest = case.schedule.batch_size // 4
    try:
        model = model_made(case)
        model_check(model)
        built(model, case.arrays)
        built_model_check(model, smallest)
        engine = Engine(model, case.arrays, case.schedule)
        splitting_check(model, engine.source.fetch(np.arange(2 * smallest + 1)))
    except Exception:
        refusal = validation_refusal(case)
        if refusal is None:
            raise
        return refusal
    return engine


def validation_refusal(case: Case) -> JobCodeError | None:
    """Run the product's own validation as a whole; gives what it refuses the case with."""
    spec = training_spec(
        num_virtual_nodes=4, global_batch_size=case.schedule.batch_size, shuffle=False
    )
    with TemporaryDirectory() as folder:
        try:
            with user_code(Path(folder), "code", "build(settings) in job.py"):
                model = model_made(case)
            job = LoadedJob(model, ArraySource(case.arrays, "data.train"), None)
            loaded_job_check(spec, job, Path(folder), Findings())
        except JobCodeError as error:
            return error
    return None


def model_made(case: Case) -> keras.Model:
    """Build the case's model, the same each time."""
    keras.utils.set_random_seed(1)
    return case.build()


def _refused(case: Case, refusal: JobCodeError) -> Outcome:
    message = f"{refusal.code}: {refusal.message}"
    if refusal.code != case.refused:
        wanted = f"{case.refused} was expected" if case.refused else "it should train"
        return Outcome(Result.FAILED, f"refused with {message:.600}, but {wanted}", refusal.code)
    faults = []
    if case.subject not in refusal.message:
        faults.append("does not name the class")
    if not any(word in refusal.message.lower() for word in ADVICE):
        faults.append("does not say what to do instead")
    if faults:
        return Outcome(
            Result.FAILED, f"refusal {' and '.join(faults)}: {message:.600}", refusal.code
        )
    return Outcome(Result.REFUSED, refusal.message, refusal.code)


def _trained(case: Case, engine: Engine) -> Outcome:
    start = dict(enumerate(np.array(variable) for variable in variables_of(engine.model)))
    reference = _like(case, start)
    whole = engine.train(ONE_NODE)
    fitted = train_by_fit(reference, case.arrays, case.schedule, case.is_dense)
    errors = {"fit": differences(whole, fitted, start)}
    by_one = engine.train(ONE_TRAINER)
    by_three = engine.train(THREE_TRAINERS)
    if unequal := bits_unequal(by_one, by_three):
        return Outcome(Result.FAILED, f"1 and 3 trainers differ in bits: {unequal}")
    if len(engine.functions.turns) > 1:  # with no state that slices would change
        errors["slices"] = differences(by_one, fitted, start)
    else:
        loop = Accumulation(_like(case, start), case.arrays, case.is_sum, case.places)
        errors["loop"] = differences(by_one, loop.train(case.schedule), start)
    faults = [
        f"{where} by {way}: {error:.2g}"
        for way, found in errors.items()
        for where, error in found.items()
        if not error <= case.tolerance
    ]
    worst = max((error for found in errors.values() for error in found.values()), default=0.0)
    if faults:
        return Outcome(Result.FAILED, f"differs: {', '.join(faults[:4])}", error=worst)
    if not any(changed(whole, start)):
        return Outcome(Result.FAILED, "nothing was trained")
    control = 0.0 if case.control is None else control_difference(case, start, case.control)
    if case.control is not None and control <= case.tolerance:
        note = f"{case.control} can be compared: fit differs from itself by {control:.2g} only"
        return Outcome(Result.FAILED, note, error=worst)
    return Outcome(Result.EQUAL, case.note, error=worst, control=control)


def control_difference(case: Case, start: Mapping[int, np.ndarray], schedule: Schedule) -> float:
    """Give by how much `fit` differs from `fit` with all weights moved by one unit in last place.

    No implementation can be nearer to `fit` than `fit` itself is under such a change.
    """
    moved = {
        number: np.nextafter(value, value.dtype.type(np.inf)) if value.dtype.kind == "f" else value
        for number, value in start.items()
    }
    trained, expected = (
        train_by_fit(_like(case, values), case.arrays, schedule, case.is_dense)
        for values in (moved, start)
    )
    return max(differences(trained, expected, start).values(), default=0.0)


def _like(case: Case, start: Mapping[int, np.ndarray]) -> keras.Model:
    """Build the case's model with the same variables."""
    model = built(model_made(case), case.arrays)
    for variable, value in zip(variables_of(model), start.values(), strict=True):
        variable.assign(value)
    return model


def changed(trained: Trained, start: Mapping[int, np.ndarray]) -> list[bool]:
    """Say of each variable but the optimizer's counter whether training has changed it."""
    return [
        value.size > 1 and value.tobytes() != start[_number(path)].tobytes()
        for path, value in trained.variables.items()
    ]


def bits_unequal(one: Trained, other: Trained) -> list[str]:
    """List variables and epochs whose bits differ."""
    found = [
        path
        for path, value in one.variables.items()
        if value.tobytes() != other.variables[path].tobytes()
    ]
    for epoch, (mine, theirs) in enumerate(zip(one.logs, other.logs, strict=True)):
        if repr(mine) != repr(theirs):
            found.append(f"logs of epoch {epoch}")
    return found


def differences(
    trained: Trained, expected: Trained, start: Mapping[int, np.ndarray]
) -> dict[str, float]:
    """Give the largest difference of each variable and log, relative to its largest change."""
    changes = {
        path: _largest(value, start[_number(path)]) for path, value in expected.variables.items()
    }
    largest: dict[str, float] = {}
    for path, change in changes.items():
        largest[_group(path)] = max(largest.get(_group(path), 0.0), change)
    errors: dict[str, float] = {}
    pairs = zip(trained.variables.values(), expected.variables.items(), strict=True)
    for new, (path, wanted) in pairs:
        scale = max(changes[path], SMALLEST_SHARE * largest[_group(path)])
        errors[path] = _difference(new, wanted, scale)
    errors |= _log_differences(trained.logs, expected.logs)
    return errors


def _difference(new: np.ndarray, wanted: np.ndarray, scale: float) -> float:
    if wanted.dtype.kind in "biu":
        return 0.0 if np.array_equal(new, wanted) else float("inf")
    off = _largest(new, wanted)
    if not np.isfinite(off):
        return float("inf")
    excess = off - LAST_PLACES * 2.0**-24 * _largest(wanted, np.zeros_like(wanted))
    return excess / scale if excess > 0.0 else 0.0


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    """Give the largest difference of two arrays."""
    if not one.size:
        return 0.0
    return float(np.max(np.abs(one.astype("float64") - other.astype("float64"))))


def _group(path: str) -> str:
    return path.partition(" ")[0]


def _log_differences(logs: Logs, expected: Logs) -> dict[str, float]:
    errors: dict[str, float] = {}
    for epoch, pair in enumerate(zip(logs, expected, strict=True)):
        mine, theirs = (sorted((_name(name), value) for name, value in each.items())
                        for each in pair)  # fmt: skip
        if [name for name, _ in mine] != [name for name, _ in theirs]:
            errors[f"names of epoch {epoch}, {mine} and {theirs}"] = float("inf")
            continue
        for (name, value), (_, wanted) in zip(mine, theirs, strict=True):
            off = abs(value - wanted) / max(abs(wanted), 1e-3)
            errors[f"{name} of epoch {epoch}"] = off if np.isfinite(off) else float("inf")
    return errors


def _name(name: str) -> str:
    """Take off the number that Keras gives to the second and later ones of a name."""
    return re.sub(r"_\d+$", "", name)


def _number(path: str) -> int:
    return int(path.partition(" ")[2].partition(":")[0])
