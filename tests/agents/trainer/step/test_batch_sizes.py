"""A batch size that changes.

Plain Keras with the same sizes and rates does the same, and the same schedule of sizes gives the
same bits on any accelerators.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.collectives.groups import lone_group
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.local.local_cluster import LocalJob
from agents.trainer.model.keras_private import learning_rates_scaled
from agents.trainer.model.progress import Progress
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.stepper import Stepper
from agents.trainer.validate.job_file import job_load
from controlplane.core.protocol.wire import (
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    TrainingSpec,
)
from tests.agents.trainer.job_texts import SMALL_NETWORK
from tests.agents.trainer.local_jobs import (
    PLAIN_JOB,
    FaultyJob,
    local_job,
    membership_of,
    prepared,
    training_spec,
)
from tests.agents.trainer.scheduled_trainer import scheduled_program

SUBMITTED, NUM_VIRTUAL_NODES, NUM_EXAMPLES = 12, 3, 50
#: Examples of each step of two epochs: 12 + 12 + 24 + 2 (what is left), 24 + 6 * 4 + 2.
SIZES = [12, 12, 24, 24, 24, 6, 6, 6, 6, 6]

JOB = (
    SMALL_NETWORK
    + f"""
random = np.random.default_rng(8)
X = random.normal(size=({NUM_EXAMPLES}, 4)).astype("float32")
Y = (X[:, :1] + 0.5 * random.normal(size=({NUM_EXAMPLES}, 1)) > 0).astype("float32")

OPTIMIZERS = {{
    "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1),
}}


def build(settings):
    rate = 0.05
    if settings["has_schedule"]:
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
    optimizer = OPTIMIZERS[settings["optimizer"]](rate)
    return compiled(net(layers.Dense(5, activation="tanh")), optimizer), (X, Y), None
"""
)


def adaptive_spec(**changes: Any) -> TrainingSpec:
    values: dict[str, Any] = {
        "global_batch_size": SUBMITTED,
        "num_virtual_nodes": NUM_VIRTUAL_NODES,
        "batch_size_min": 6,
        "batch_size_max": 48,
        "stop": StopCondition(kind=StopKind.EPOCHS, limit=2),
    }
    return training_spec(**(values | changes))


def code_written(folder: Path) -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "job.py").write_text(textwrap.dedent(JOB))
    return folder


class LoneRuntime:
    """What a stepper needs of the runtime when it trains alone."""

    slot, hint = 0, "auto"


def trained_by_engine(work: BuiltJob, sizes: list[int]) -> tuple[list[float], list[int]]:
    """Do the steps of a job that is told another size before each; gives rates and sizes."""
    membership = membership_of({0: tuple(range(NUM_VIRTUAL_NODES))})
    planner = Planner(work.data.spec, membership, (0,), 0)
    stepper = Stepper(work.trace(), ReductionMode.EXACT, LoneRuntime(), lone_group(0))  # type: ignore[arg-type]
    progress, rates, taken = Progress(), [], []
    while not progress.is_over:
        asked = dataclasses.replace(membership, global_batch_size=sizes[progress.step])
        data = work.data.within(asked)
        if work.state.scaling is not None:
            work.state.scaling.enter(asked.global_batch_size)
        rate = work.learning_rate()
        assert rate is not None
        rates.append(rate)
        batch = data.local_batch(planner, data.order(progress), progress)
        stepper.step(batch, holds_next=lambda: False)
        taken.append(batch.plan.num_examples)
        progress = data.schedule.after_batch(progress, 0.0)
        if data.schedule.is_activity_over(progress):
            progress = data.schedule.after_activity(progress, {})
    return rates, taken


def gradient_of(model: keras.Model, x: Any, y: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, model(x, training=True)))
    return tape.gradient(loss, model.trainable_variables)


def slices_of(num_examples: int) -> list[tuple[int, int]]:
    cuts = [i * num_examples // NUM_VIRTUAL_NODES for i in range(NUM_VIRTUAL_NODES + 1)]
    return [(low, high) for low, high in itertools.pairwise(cuts) if high > low]


def noise_of(model: keras.Model, x: Any, y: Any) -> tuple[float, float]:
    """Give |G|² and one example's variance, from the gradients of the slices taken one by one."""
    mean, squares, number = 0.0, 0.0, 0
    for low, high in slices_of(len(x)):
        parts = gradient_of(model, x[low:high], y[low:high])
        flat = np.concatenate([np.asarray(part, "float64").ravel() for part in parts])
        share = (high - low) / len(x)
        mean, squares, number = mean + share * flat, squares + share * flat @ flat, number + 1
    var = (squares - mean @ mean) / (number - 1)
    return mean @ mean - var, var * len(x)


def trained_plainly(
    model: keras.Model,
    batches: list[tuple[Any, Any]],
    sizes: list[int],
    rate: Callable[[int], float],
) -> list[float]:
    """Train with a plain tape and the optimizer's rate set before each step; gives the rates."""
    is_sgd = isinstance(model.optimizer, keras.optimizers.SGD)
    sqr = var = 0.0
    weight = 0.0
    rates = []
    for step, (x, y) in enumerate(batches):
        scale = sizes[step] / SUBMITTED
        factor = np.sqrt(scale)
        if is_sgd:
            factor = 1.0
            if weight:
                square, variance = max(sqr / weight, 0.0), max(var / weight, 0.0)
                factor = (variance + square) / (variance / scale + square)
        model.optimizer.learning_rate = rate(step) * factor
        rates.append(rate(step) * factor)
        found_sqr, found_var = noise_of(model, x, y)
        model.optimizer.apply(gradient_of(model, x, y), model.trainable_variables)
        share = scale / 1000
        sqr += share * (found_sqr - sqr)
        var += share * (found_var / SUBMITTED - var)
        weight += share * (1.0 - weight)
    return rates


@pytest.mark.parametrize(
    ("optimizer", "has_schedule"),
    [
        ("sgd", False),
        ("adamw", True),
        pytest.param("sgd", True, marks=pytest.mark.nightly),
        pytest.param("adamw", False, marks=pytest.mark.nightly),
    ],
)
def test_it_is_plain_training_with_the_same_sizes_and_rates(
    optimizer: str, has_schedule: bool, tmp_path: Path
) -> None:
    settings = {"optimizer": optimizer, "has_schedule": has_schedule}
    spec = adaptive_spec(settings=settings)
    folder = code_written(tmp_path)
    work = workload_build(folder, spec, ReportWriter(tmp_path, 0, 0))
    start = [np.array(value) for value in work.model.get_weights()]
    rates, taken = trained_by_engine(work, SIZES)
    assert taken == [12, 12, 24, 2, 24, 6, 6, 6, 6, 2]

    plain = job_load(folder / "code", "job.py", settings | {"has_schedule": False}, spec.seed)
    plain.model.build((None, 4))
    plain.model.set_weights(start)
    batches, low, epoch = [], 0, 0
    for size in taken:
        order = plain.train.order(spec.seed, epoch, True)
        batches.append(plain.train.fetch(order[low : low + size])[:2])
        low += size
        if low == NUM_EXAMPLES:
            low, epoch = 0, epoch + 1
    decay = 0.7 if has_schedule else 1.0
    expected = trained_plainly(plain.model, batches, SIZES, lambda step: 0.05 * decay ** (step / 3))

    assert rates == pytest.approx(expected, rel=1e-4)
    factors = [found / (0.05 * decay ** (step / 3)) for step, found in enumerate(rates)]
    assert factors[:2] == pytest.approx([1.0, 1.0])
    if optimizer == "adamw":
        assert factors[2:6] == pytest.approx([2**0.5] * 3 + [0.5**0.5])
    else:
        assert all(1.0 < factor < 2.0 for factor in factors[2:5])
        assert all(0.5 < factor < 1.0 for factor in factors[5:])
    for mine, theirs in zip(work.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-6)


def test_without_bounds_nothing_is_added_to_the_state(tmp_path: Path) -> None:
    settings = {"optimizer": "sgd", "has_schedule": False}
    folder = code_written(tmp_path)
    found = []
    for bounds in ({}, {"batch_size_min": None, "batch_size_max": None}):
        spec = adaptive_spec(settings=settings, **bounds)
        specs = workload_build(folder, spec, ReportWriter(tmp_path, 0, 0)).state.specs
        found.append([(row.dtype, row.shape) for row in specs])
    assert found[0] == [*found[1], ("float64", (4,))]


@pytest.mark.parametrize(
    ("make", "rates"),
    [
        (lambda _, __: keras.optimizers.SGD(0.1), (0.1, 0.1)),
        (lambda _, __: keras.optimizers.SGD(lambda: 0.3), (0.3, 0.3)),
        (
            lambda _, __: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.1), initial_scale=1.0
            ),
            (0.1, 0.1),
        ),
    ],
    ids=["plain", "a function", "a loss scale"],
)
def test_every_rate_is_scaled_and_put_back(make: Any, rates: tuple[float, float]) -> None:
    variables = [keras.Variable(np.ones(2, "float32"), name=name) for name in ("a", "b")]
    optimizer = make(*variables)
    optimizer.build(variables)
    before = float(np.asarray(optimizer.learning_rate))

    @tf.function(autograph=False)
    def step(factor: Any) -> None:
        with learning_rates_scaled(optimizer, factor):
            optimizer.apply([tf.ones(2), tf.ones(2)], variables)

    step(tf.constant(0.5, tf.float64))
    for variable, rate in zip(variables, rates, strict=True):
        np.testing.assert_allclose(variable.numpy(), 1.0 - 0.5 * rate, rtol=1e-6)
    step(tf.constant(2.0, tf.float64))
    for variable, rate in zip(variables, rates, strict=True):
        np.testing.assert_allclose(variable.numpy(), 1.0 - 2.5 * rate, rtol=1e-6)
    assert float(np.asarray(optimizer.learning_rate)) == before


# ---- real trainers -------------------------------------------------------------------------------

SGD_JOB = PLAIN_JOB.replace("keras.optimizers.Adam(", "keras.optimizers.SGD(")
#: Last step of each generation, and the batch size of each; the job has 101 examples.
LAST_STEPS = {1: 3, 2: 5, 3: 11}
BATCH_SIZES = [None, 40, 10, 25]


def scheduled(job: LocalJob, sizes: list[int]) -> dict[str, Any]:
    """Go through the generations with so many trainers each; gives the leader's account."""
    job.program = scheduled_program(LAST_STEPS)
    memberships = []
    for size, batch_size in zip(sizes, BATCH_SIZES, strict=True):
        plan = job.plan(size, memberships[-1] if memberships else None)
        memberships.append(dataclasses.replace(plan, global_batch_size=batch_size))
    prepared(job, memberships)
    for membership in memberships:
        job.go(membership)
        job.wait_switched(membership)
    return job.wait_finished()


def steps_reported(job: FaultyJob) -> list[dict[str, Any]]:
    rows = [report.data for report in job.told(ReportKind.STEPS)]
    return sorted(rows, key=lambda row: row["first_step"])


def sizes_begin(job: FaultyJob) -> list[int]:
    """List the first step of each generation, after what its trainers said when they switched."""
    switched = {
        report.generation: report.data["step"] + 1 for report in job.told(ReportKind.SWITCHED)
    }
    return [switched[generation] for generation in sorted(switched)]


def test_a_schedule_of_sizes_gives_the_same_bits_on_any_accelerators(tmp_path: Path) -> None:
    spec = adaptive_spec(
        global_batch_size=20,
        num_virtual_nodes=5,
        batch_size_min=10,
        batch_size_max=40,
        stop=StopCondition(kind=StopKind.EPOCHS, limit=3),
    )
    results, tables = [], []
    for sizes in ([1, 1, 1, 1], [1, 2, 1, 1]):
        folder = tmp_path / "-".join(map(str, sizes))
        folder.mkdir()
        with local_job(folder, spec, SGD_JOB) as job:
            results.append(scheduled(job, sizes))
            tables.append(steps_reported(job))
            # The control plane draws changes of size by these.
            assert sizes_begin(job) == [1, 4, 6, 12]
            history = (job.output_folder() / "history.csv").read_text()
        results[-1]["history"] = history
    lone, moved = results
    assert moved["digest"] == lone["digest"]
    assert moved["history"] == lone["history"]
    for rows in tables:
        assert sum(row["examples"] for row in rows) == 3 * 101
        seen = {row["last_step"]: row for row in rows}
        assert [seen[step]["batch_size"] for step in (3, 5, 11)] == [20, 40, 10]
        assert rows[-1]["batch_size"] == 25
        # 3 * 20 + 40 + 1, then 5 times 10 (11 steps so far: 5 * 10 of 101), 25 + 25 + 1, 4 * 25 + 1
        assert rows[-1]["last_step"] == 5 + 6 + 2 + 5
