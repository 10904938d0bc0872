"""States of other jobs: those that fit, those that do not, and forged files."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import pytest

from agents.trainer.contract.failures import TrainerError
from agents.trainer.model.fork import fork_read, is_forked_state
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.progress import NO_GUARD, Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState, checkpoint_write
from agents.trainer.model.tunables import Tunables
from controlplane.core.protocol.fork import ForkSpec
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import TrainingSpec
from controlplane.core.selection.guard import BreakEvenGuard
from controlplane.core.tuning.course import JobSteps, TuningCourse, course_begin
from tests.agents.trainer.local_jobs import training_spec

STEP = 7
VALUES = {"learning_rate": 0.1}
SPACE = {"learning_rate": TunableRange(low=0.01, high=1.0)}
CURSOR = Progress(step=STEP, epoch=2, batch=1, examples=20)


def optimizer_of(kind: str) -> keras.optimizers.Optimizer:
    kinds: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
        "adam": lambda: keras.optimizers.Adam(0.1),
        "slow": lambda: keras.optimizers.Adam(0.001),
        "schedule": lambda: keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        ),
        "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
        "sgd": lambda: keras.optimizers.SGD(0.1),
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    }
    return kinds[kind]()


def state_of(
    units: int = 3,
    name: str = "head",
    dtype: str = "float32",
    optimizer: str = "adam",
    metrics: tuple[str, ...] = ("mae",),
    data: str = "data",
    tuned: tuple[str, ...] = (),
) -> ModelState:
    keras.utils.clear_session()
    layers = [keras.layers.Dropout(0.5), keras.layers.Dense(units, name=name, dtype=dtype)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(optimizer_of(optimizer), "mse", metrics=list(metrics))
    model_build(model, (np.ones((2, 2), "float32"), np.ones((2, units), "float32")))
    tunables = Tunables(model.optimizer, tuned, 8) if tuned else None
    state = ModelState(model, tunables=tunables)
    state.data_fingerprint = data
    return state


@functools.cache
def saved_bytes(**made: Any) -> bytes:
    """Give the file of a state, which takes long to build."""
    with TemporaryDirectory() as folder:
        return saved(Path(folder), state_of(**made)).read_bytes()


@pytest.fixture(scope="module")
def target() -> ModelState:
    """Give a built state for tests that change nothing."""
    return state_of()


def copied(folder: Path, **made: Any) -> Path:
    path = folder / "restore.npz"
    path.write_bytes(saved_bytes(**made))
    return path


def saved(folder: Path, state: ModelState, progress: Progress = CURSOR) -> Path:
    """Save a state with other values than a built one has."""
    for number, variable in enumerate(state.variables):
        value = variable.value
        variable.value.assign(np.full(value.shape, number + 1, value.dtype.as_numpy_dtype))
    path = folder / "restore.npz"
    checkpoint_write(path, state, state.capture(), progress.to_json())
    return path


def spec_of(path: Path, *, step: int = STEP, order: bool = True, **kept: bool) -> TrainingSpec:
    flags = {"keeps_order": order, "keeps_rate": True, "keeps_seed": True} | kept
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return training_spec(fork=ForkSpec(sha256=sha256, step=step, **flags))


def values_of(state: ModelState) -> dict[str, bytes]:
    return {
        spec.name: np.asarray(variable.value).tobytes()
        for spec, variable in zip(state.specs, state.variables, strict=True)
    }


def test_a_state_of_the_same_job_comes_whole(tmp_path: Path) -> None:
    source = state_of()
    path = saved(tmp_path, source)
    target = state_of()
    assert fork_read(path, target, spec_of(path)) == CURSOR
    assert values_of(target) == values_of(source)


def test_measured_times_of_the_other_job_are_left_out(tmp_path: Path) -> None:
    guard = BreakEvenGuard(generation=4, loss_s=(0.1,), step_s=(0.2,), num_costly=2, cost=1.2)
    path = saved(tmp_path, state_of(), replace(CURSOR, guard=guard))
    assert fork_read(path, state_of(), spec_of(path)).guard == NO_GUARD


def test_a_search_under_way_is_left_at_its_root(tmp_path: Path) -> None:
    """The present state is a trial's; metrics, which are no part of a branch, are those of now.

    Tunables are the root's, too.
    """
    tuning = course_begin(TuningCourse(), TuningSpec(space=SPACE), VALUES, JobSteps(500, 400, 50))
    progress = replace(CURSOR, tuning=tuning)
    source, path = state_of(tuned=("batch_size",)), tmp_path / "restore.npz"
    saved(tmp_path, source)
    source.branches.fork(0)
    for variable in source.variables:
        variable.value.assign(np.zeros(variable.value.shape, variable.value.dtype.as_numpy_dtype))
    values = source.capture_whole()
    checkpoint_write(path, source, values, progress.to_json(), progress.parked)
    target = state_of(tuned=("batch_size",))
    size = len(source.variables)  # see `saved`
    assert fork_read(path, target, spec_of(path)) == replace(CURSOR, train_batch_size=size)
    trial = values_of(source)
    source.branches.switch(0)
    root = values_of(source)
    num_first = sum(source.group_sizes)
    names = [spec.name for spec in source.specs]
    expected = {name: root[name] for name in (*names[:num_first], names[-1])}
    assert values_of(target) == expected | {name: trial[name] for name in names[num_first:-1]}


@pytest.mark.parametrize(
    ("size", "tuned", "found"),
    [(16.0, "batch_size", 16), (8.0, "batch_size", None), (16.0, "momentum", None)],
    ids=["another", "the submitted one", "not tuned by the fork"],
)
def test_a_tuned_batch_size_goes_on_with_the_tunables_that_it_is_one_of(
    size: float, tuned: str, found: int | None, tmp_path: Path
) -> None:
    source = state_of(tuned=("batch_size",))
    assert source.tunables is not None
    source.tunables.assign({"batch_size": size})
    path = tmp_path / "restore.npz"
    cursor = replace(CURSOR, train_batch_size=int(size))
    checkpoint_write(path, source, source.capture(), cursor.to_json())
    target = state_of(tuned=(tuned,))
    progress = fork_read(path, target, spec_of(path))
    assert progress.train_batch_size == found
    assert (progress.examples > 0) == (tuned == "batch_size"), "its epoch begins anew"
    assert target.tunables is not None
    assert target.tunables.values == {tuned: {"batch_size": size, "momentum": 0.9}[tuned]}


@pytest.mark.parametrize("size", [math.nan, -8.0, 0.0, 1e9])
def test_a_batch_size_that_cannot_be_is_refused(size: float, tmp_path: Path) -> None:
    source = state_of(tuned=("batch_size",))
    assert source.tunables is not None
    source.tunables.assign({"batch_size": size})
    path = tmp_path / "restore.npz"
    checkpoint_write(path, source, source.capture(), CURSOR.to_json())
    with pytest.raises(TrainerError, match="its batch size is") as refused:
        fork_read(path, state_of(tuned=("batch_size",)), spec_of(path))
    assert refused.value.code == "state_damaged"


def test_a_fork_that_tunes_and_selects_begins_its_epoch_with_a_search(tmp_path: Path) -> None:
    path, state = copied(tmp_path), state_of()
    selecting = replace(
        spec_of(path, order=False),
        selection=SelectionSpec(method=SelectionMethod.RANDOM, start=1),
    )
    assert fork_read(path, state, selecting).activity is Activity.SELECT
    both = replace(spec_of(path), selection=selecting.selection, tuning=TuningSpec(space=SPACE))
    progress = fork_read(path, state, both)
    assert (progress.epoch, progress.activity) == (CURSOR.epoch, Activity.TRAIN)
    assert (progress.batch, progress.examples, progress.queued) == (0, 0, 0)
    schedule = TrainingSchedule(20, 0, 5, both.stop, selection=both.selection)
    assert schedule.bounds(progress) == (0, 5), "chosen examples of an empty queue"
    beta = TuningSpec(space={"selection_beta": TunableRange(low=0.5, high=2.0)})
    assert fork_read(path, state, replace(both, tuning=beta)).activity is Activity.SELECT


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"name": "top"}, "'sequential/top/kernel' .* where .* 'sequential/head/kernel'"),
        ({}, {"units": 4}, r"head/kernel' \(float32 \[2, 4\]\) where .* \(float32 \[2, 3\]\)"),
        ({}, {"dtype": "float64"}, r"head/kernel' \(float64 \[2, 3\]\) where .* \(float32"),
        ({}, {"optimizer": "sgd"}, "optimizer .* 'sgd/iteration' .* 'adam/iteration'"),
        ({}, {"optimizer": "amsgrad"}, r"this job's optimizer has 'adam/\S+_velocity_hat'"),
        ({"optimizer": "amsgrad"}, {}, r"the saved state has 'adam/\S+_velocity_hat'"),
        ({"optimizer": "momentum"}, {"optimizer": "sgd"}, r"the saved state has 'sgd/\S+momentum'"),
        ({}, {"optimizer": "schedule"}, "the saved state has 'adam/learning_rate'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_first_variable(
    before: dict[str, Any], after: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = copied(tmp_path, **before)
    target = state_of(**after)
    built = values_of(target)
    with pytest.raises(TrainerError, match=words) as refused:
        fork_read(path, target, spec_of(path))
    assert refused.value.code == "state_misfit"
    assert values_of(target) == built, "a refused state changed something"


@pytest.mark.parametrize("optimizer", ["slow", "schedule", "adam"])
def test_the_learning_rate_is_the_one_asked_for_if_anything_was_changed(
    optimizer: str, tmp_path: Path
) -> None:
    path = copied(tmp_path)
    target = state_of(optimizer=optimizer)
    built = values_of(target)
    fork_read(path, target, spec_of(path, keeps_rate=False))
    came = values_of(target)
    kept = {name for name in built if came[name] == built[name]}
    assert {name.partition(":")[2] for name in kept} <= {"adam/learning_rate"}
    assert bool(kept) == (optimizer != "schedule")


@pytest.mark.parametrize(
    ("change", "order"),
    [({"data": "other"}, True), ({"metrics": ("mse",)}, True), ({}, False)],
)
def test_with_other_data_order_or_metrics_the_epoch_begins_anew(
    change: dict[str, Any], order: bool, tmp_path: Path
) -> None:
    cursor = Progress(step=STEP, epoch=2, batch=3, examples=9, activity=Activity.VALIDATE)
    path = copied(tmp_path)
    with_meta(path, progress=cursor.to_json())
    target = state_of(**change)
    progress = fork_read(path, target, spec_of(path, order=order))
    assert progress == Progress(step=STEP, epoch=2)
    assert all(not np.any(np.asarray(variable.value)) for variable in target.metrics)
    assert np.all(np.asarray(target.trainable[0].value) == 1.0)


def test_another_seed_gives_other_random_numbers(tmp_path: Path) -> None:
    path = copied(tmp_path)
    target = state_of()
    built = [np.asarray(variable.value).tobytes() for variable in target.seeds]
    fork_read(path, target, spec_of(path, keeps_seed=False))
    assert [np.asarray(variable.value).tobytes() for variable in target.seeds] == built


def test_a_normalisation_stays_adapted_to_the_data_of_the_fork(tmp_path: Path) -> None:
    def adapted_to(data: list[float]) -> tuple[keras.layers.Normalization, ModelState]:
        keras.utils.clear_session()
        layer = keras.layers.Normalization(axis=None)
        layer.adapt(np.array(data, "float32"))
        model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model_build(model, (np.ones((2, 1), "float32"), np.ones((2, 1), "float32")))
        return layer, ModelState(model)

    path = saved(tmp_path, adapted_to([1.0, 3.0])[1])
    layer, state = adapted_to([10.0, 14.0])
    fork_read(path, state, spec_of(path))
    assert (float(layer.adapt_mean), float(layer.adapt_variance)) == (12.0, 4.0)
    assert float(np.ravel(layer.mean)[0]) == 12.0, "what steps compute with is what is saved"
    assert np.ravel(state.trainable[0]) == 1.0, "weights are those of the file"


def test_only_the_other_jobs_file_is_taken_as_such(tmp_path: Path) -> None:
    path = copied(tmp_path)
    fork = spec_of(path).fork
    assert is_forked_state(path, fork)
    assert not is_forked_state(path, None)
    path.write_bytes(path.read_bytes() + b"\0")
    assert not is_forked_state(path, fork)


def rewritten(path: Path, compression: int = zipfile.ZIP_STORED, **arrays: np.ndarray) -> None:
    """Write the archive again, with some arrays replaced, added or (None) left out."""
    with np.load(path, allow_pickle=False) as archive:
        entries = {name: archive[name] for name in archive.files} | arrays
    with zipfile.ZipFile(path, "w", compression) as written:
        for name, value in entries.items():
            if value is not None:
                stream = io.BytesIO()
                np.save(stream, value, allow_pickle=True)
                written.writestr(f"{name}.npy", stream.getvalue())


def with_meta(path: Path, **changes: Any) -> None:
    with np.load(path, allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].tobytes())
    meta = {name: value for name, value in (meta | changes).items() if value is not None}
    rewritten(path, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))


FORGERIES: dict[str, Callable[[Path], None]] = {
    "no archive": lambda path: path.write_bytes(b"not a zip"),
    "half": lambda path: path.write_bytes(path.read_bytes()[:300]),
    "compressed": lambda path: rewritten(path, zipfile.ZIP_DEFLATED),
    "no meta": lambda path: rewritten(path, meta=None),
    "no variable": lambda path: rewritten(path, v0=None),
    "a pickle": lambda path: rewritten(path, v0=np.array([{"code": print}], dtype=object)),
    "a pickled meta": lambda path: rewritten(path, meta=np.array([print], dtype=object)),
    "one bit": lambda path: rewritten(path, v0=np.zeros(24, np.uint8)),
    "short bytes": lambda path: rewritten(path, v0=np.zeros(3, np.uint8)),
    "meta is a list": lambda path: rewritten(path, meta=np.frombuffer(b"[1]", np.uint8)),
    "no groups": lambda path: with_meta(path, groups=None),
    "groups of text": lambda path: with_meta(path, groups=["a", "b"]),
    "odd format": lambda path: with_meta(path, format=99),
    "endless shape": lambda path: with_meta(path, variables=[["a", "float32", [2**62, 2**62]]]),
    "negative shape": lambda path: with_meta(path, variables=[["a", "float32", [-1]]]),
    "odd dtype": lambda path: with_meta(path, variables=[["0:a", "resource", []]]),
    "no digest": lambda path: with_meta(path, digest="0" * 64),
    "no progress": lambda path: with_meta(path, progress={}),
    "progress of text": lambda path: with_meta(path, progress={"step": "x"}),
    "another step": lambda path: with_meta(path, progress=Progress(step=9).to_json()),
    "before the begin": lambda path: with_meta(
        path, progress=Progress(step=STEP).to_json() | {"examples": -5}
    ),
    "endless examples": lambda path: with_meta(
        path, progress=Progress(step=STEP).to_json() | {"examples": 1e300}
    ),
    "too many branches": lambda path: with_meta(path, branches=[*range(17)]),
    "branches of text": lambda path: with_meta(path, branches="ab"),
    "a branch that is not there": lambda path: with_meta(path, branches=[0]),
    "odd activity": lambda path: with_meta(
        path, progress=Progress(step=STEP).to_json() | {"activity": "rest"}
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_file_is_refused_and_changes_nothing(
    forgery: str, target: ModelState, tmp_path: Path
) -> None:
    path = copied(tmp_path)
    FORGERIES[forgery](path)
    built = values_of(target)
    with pytest.raises(TrainerError) as refused:
        fork_read(path, target, spec_of(path))
    assert refused.value.code in ("state_damaged", "state_misfit")
    assert values_of(target) == built
