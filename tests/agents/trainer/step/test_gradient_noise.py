"""The noise that the engine reports against gradients taken slice by slice without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from controlplane.core.estimates.noise_scale import GradientNoise, gradient_noise
from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.agents.trainer.step.test_functions import EpochByVirtualNodes, half_precision, plain
from tests.support.present import present

BATCH_SIZE = 16
RANDOM = np.random.default_rng(8)
X = RANDOM.normal(size=(BATCH_SIZE, 4)).astype("float32")
Y = RANDOM.normal(size=(BATCH_SIZE, 1)).astype("float32")


def slice_gradient(model: keras.Model, x: Any, y: Any) -> np.ndarray:
    """Differentiate the mean loss of some examples, all variables in one vector."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return np.concatenate([np.asarray(gradient, "float64").ravel() for gradient in gradients])


def direct_noise(model: keras.Model, bounds: list[tuple[int, int]]) -> GradientNoise | None:
    """Apply the formulas to directly computed gradients, weighted by examples."""
    gradients = [slice_gradient(model, X[low:high], Y[low:high]) for low, high in bounds]
    weights = [(high - low) / BATCH_SIZE for low, high in bounds]
    squares = sum(w * float(g @ g) for w, g in zip(weights, gradients, strict=True))
    mean = sum(w * g for w, g in zip(weights, gradients, strict=True))
    return gradient_noise(squares, len(bounds), float(mean @ mean))


EVEN, UNEVEN = [(0, 4), (4, 8), (8, 12), (12, 16)], [(0, 5), (5, 10), (10, 16)]


@pytest.mark.parametrize(
    ("build", "tolerance", "bounds"),
    [
        pytest.param(plain, 1e-5, UNEVEN, id="plain-uneven"),
        pytest.param(half_precision, 2e-2, EVEN, id="loss scale-even"),
        pytest.param(plain, 1e-5, EVEN, id="plain-even", marks=pytest.mark.nightly),
        pytest.param(
            half_precision, 2e-2, UNEVEN, id="loss scale-uneven", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_step_tells_what_its_slices_gradients_tell(
    build: Any, tolerance: float, bounds: list[tuple[int, int]]
) -> None:
    keras.utils.set_random_seed(4)
    model = build()
    epoch = EpochByVirtualNodes(model, (X, Y), len(bounds))
    expected = present(direct_noise(model, bounds))
    told = present(gradient_noise(*epoch.train_once()[1:4]))
    assert (told.sqr, told.var) == pytest.approx((expected.sqr, expected.var), rel=tolerance)


def test_one_virtual_node_tells_nothing() -> None:
    epoch = EpochByVirtualNodes(plain(), (X, Y), 1)
    assert gradient_noise(*epoch.train_once()[1:4]) is None


JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(32, 6)).astype("float32")
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(300, activation="tanh"), keras.layers.Dense(60),
         keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    return model, (x, x[:, :1] * x[:, 1:2]), None
"""


def reported(folder: Path, mode: ReductionMode, num_workers: int) -> list[dict[str, float]]:
    """Train 3 steps of one batch each; gives the `noise` of all `steps` reports."""
    spec = training_spec(
        num_virtual_nodes=4,
        global_batch_size=32,
        shuffle=False,
        reduction=mode,
        merges=False,  # merged ones have fewer gradients to tell it from
        stop=StopCondition(kind=StopKind.STEPS, limit=3),
    )
    folder.mkdir()
    with local_job(folder, spec, JOB) as job:
        job.resize(num_workers)
        job.wait_finished()
        return [report.data["noise"] for report in job.step_reports()]


def test_reports_carry_the_noise_alike_over_mappings(tmp_path: Path) -> None:
    exact = reported(tmp_path / "one", ReductionMode.EXACT, 1)
    assert reported(tmp_path / "two", ReductionMode.EXACT, 2)[0] == exact[0]
    fast = reported(tmp_path / "fast", ReductionMode.FAST, 2)[0]
    assert fast == pytest.approx(exact[0], rel=1e-4)
    assert exact[0]["var"] > 0.0
