"""Jobs that select train the same bits on every kind of data, also while it is fetched ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import pytest
from keras import layers

from agents.trainer.collectives.groups import lone_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.data.sources import source_open
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState, state_digest
from agents.trainer.selection.state import selection_of
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.prefetch import JobData, SelectingFeeder
from agents.trainer.step.stepper import Stepper
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind
from tests.agents.trainer.data_kinds import KINDS, Parts, num_rows
from tests.agents.trainer.local_jobs import membership_of, training_spec
from tests.support.cases import some

NUM, BATCH, DATA_BATCH = 43, 10, 6
SELECTION = SelectionSpec(
    method=SelectionMethod.STALE_SELECTIVE_BACKPROP, history=32, stale_every=2, beta=0.5
)
SPEC = training_spec(
    global_batch_size=BATCH, num_virtual_nodes=3, shuffle=False, selection=SELECTION
)
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(NUM, 4)).astype("float32")
CODES = RANDOM.integers(0, 5, (NUM, 2)).astype("int32")
Y = RANDOM.normal(size=(NUM, 1)).astype("float32")
WEIGHT = RANDOM.uniform(0.0, 2.0, (NUM, 1)).astype("float32")
LABELS = RANDOM.integers(0, 3, NUM).astype("int64")
WORDS = RANDOM.choice(np.array([b"good", b"bad", b"film"], object), NUM)


def several_parts() -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((2,), dtype="int32", name="b")
    word = keras.Input((), dtype="string", name="word")
    embedded = layers.Flatten()(layers.Embedding(5, 2)(b))
    looked_up = layers.Embedding(3, 2)(layers.StringLookup(vocabulary=["good", "bad"])(word))
    joined = layers.Dropout(0.2, seed=1)(layers.Concatenate()([a, embedded, looked_up]))
    outputs = {"p": layers.Dense(1)(joined), "q": layers.Dense(4)(joined)}
    model = keras.Model({"a": a, "b": b, "word": word}, outputs)
    model.compile("adam", {"p": "mse", "q": "mae"}, loss_weights={"p": 0.3, "q": 2.0})
    return model


def classes() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, weighted_metrics=["accuracy"])
    return model


MODELS: dict[str, tuple[Callable[[], keras.Model], Parts]] = {
    "several inputs, outputs and weights": (
        several_parts,
        (
            {"a": X, "b": CODES, "word": WORDS},
            {"p": Y, "q": X},
            {"p": WEIGHT[:, 0], "q": WEIGHT[::-1, 0]},
        ),
    ),
    "labels and one weight": (classes, (X, LABELS, WEIGHT[:, 0])),
}


@dataclass
class Rig:
    """A traced model, which is trained anew for every kind of data."""

    parts: Parts
    functions: StepFunctions
    stepper: Stepper
    begin: list[Any]

    def digest(self, data: Any) -> str:
        """Train some epochs on `data`; returns the digest of the model and the selection."""
        state = self.functions.state
        state.put(self.begin)
        selection = state.selection
        assert selection is not None
        source = source_open(data, "data.train", Path(__file__).parent)
        schedule = TrainingSchedule(
            NUM, NUM, BATCH, StopCondition(kind=StopKind.EPOCHS, limit=3), selection=SELECTION
        )
        specs, num_seeds = tuple(self.functions.example_specs), len(state.seeds)
        job = JobData(SPEC, schedule, source, source, specs, num_seeds, selection=selection)
        feeder = SelectingFeeder(job, Planner(SPEC, membership_of({0: (0, 1, 2)}), (0,), 0))
        progress = Progress()
        while not progress.is_over:
            batch = feeder.next(progress)
            outcome = self.stepper.step(batch, lambda: False)
            if progress.activity is Activity.SELECT:
                choice = selection.choose(progress.epoch, batch.indices, outcome.losses)
                progress = schedule.after_pass(progress, choice.num, 0.0, choice.losses)
            else:
                if schedule.takes_queued(progress):
                    selection.dequeue(batch.plan.num_examples)
                progress = schedule.after_batch(progress, 0.0)
            if schedule.is_activity_over(progress):
                progress = schedule.after_activity(progress, {})
        feeder.stop()
        assert progress.step > 5, "epochs that select have steps too"
        return state_digest(state.specs, state.capture())


#: Models as parameters; that of plain labels is nightly, as test_data_kinds.py has it too.
TRIED = [
    pytest.param(name, marks=pytest.mark.nightly if name == "labels and one weight" else ())
    for name in MODELS
]


@pytest.fixture(scope="module", params=TRIED)
def rig(request: pytest.FixtureRequest) -> Rig:
    build, parts = MODELS[request.param]
    assert num_rows(parts) == NUM
    keras.utils.set_random_seed(3)
    model = build()
    sample = source_open(parts, "data.train", Path(__file__).parent).fetch(np.arange(2))
    model_build(model, sample)
    state = ModelState(model, selection=selection_of(SPEC, NUM))
    functions = StepFunctions(model, state, sample)
    alone = cast(CollectiveRuntime, SimpleNamespace(hint="auto", slot=0))
    stepper = Stepper(functions, ReductionMode.EXACT, alone, lone_group(0), pass_size=2 * BATCH)
    return Rig(parts, functions, stepper, state.capture())


@pytest.fixture(scope="module")
def expected(rig: Rig) -> str:
    return rig.digest(rig.parts)


#: Each is like another kind.
NIGHTLY = (
    "list of examples",
    "list with plain numbers",
    "deque",
    "object",
    "PyDataset",
)


@pytest.mark.parametrize("kind", some(KINDS, NIGHTLY))
def test_a_selecting_job_trains_the_same_bits_on_every_kind_of_data(
    kind: str, rig: Rig, expected: str
) -> None:
    assert rig.digest(KINDS[kind](rig.parts, DATA_BATCH)) == expected
