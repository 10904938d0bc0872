"""Prediction on virtual nodes: the bits and the order of one process, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.local.local_cluster import LocalJob
from agents.trainer.local.predictions import predictions_write
from agents.trainer.model.progress import Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.predict.functions import Output, OutputLayout, PredictFunctions
from agents.trainer.predict.part_files import PartWriter
from agents.trainer.step.prefetch import LocalPiece
from controlplane.core.protocol.prediction_parts import examples_safe, part_of
from controlplane.core.protocol.wire import (
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    Task,
    TrainingSpec,
)
from tests.agents.trainer.local_jobs import local_job, prepared, training_spec

NUM_EXAMPLES = 2_003
BATCH_SIZE = 20

#: Never compiled; three outputs of two types in nested places; batch statistics that are not the
#: initial ones; a last batch of 3 examples for 5 virtual nodes; examples that take their time.
CODE = f'''
import time

import keras
import numpy as np


class Paced:
    """Examples that take their time, so that a trainer can be lost in between."""

    def __init__(self, x, pause_s):
        self.x = x
        self.pause_s = pause_s

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return {{"x": self.x[index], "place": index}}, 0.0


@keras.saving.register_keras_serializable()
class Twice(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


def build(settings):
    x = np.random.default_rng(3).normal(size=({NUM_EXAMPLES}, 6)).astype("float32")
    inputs = keras.Input((6,), name="x")
    place = keras.Input((), dtype="int64", name="place")
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    norm = keras.layers.BatchNormalization()
    hidden = keras.layers.Dropout(0.5)(norm(hidden))
    scores = keras.layers.Dense(3, activation="softmax")(hidden)
    outputs = {{"scores": scores, "parts": [Twice(dtype="int64")(place), hidden[:, :2]]}}
    model = keras.Model({{"x": inputs, "place": place}}, outputs)
    norm.moving_mean.assign(np.linspace(-0.2, 0.3, 16))
    return model, Paced(x, settings.get("pause_s", 0.0))
'''


def predict_spec(**changes: Any) -> TrainingSpec:
    values: dict[str, Any] = {
        "task": Task.PREDICT,
        "shuffle": False,
        "stop": StopCondition(kind=StopKind.EPOCHS, limit=1),
        "global_batch_size": BATCH_SIZE,
        "num_virtual_nodes": 5,
    }
    return training_spec(**(values | changes))


def results(job: LocalJob, folder: Path) -> bytes:
    """Wait for a job's end and give its predictions as one file."""
    job.wait_finished()
    target = folder / "predictions.npz"
    predictions_write(job.folder, target, NUM_EXAMPLES)
    return target.read_bytes()


def parts_of(job: LocalJob) -> dict[int, list[str]]:
    """Collect the parts that were reported, by slot."""
    return {
        slot: [r.data["file"] for r in trainer.reports if r.kind is ReportKind.PART]
        for slot, trainer in job.trainers.items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """Predict on one accelerator from start to end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with local_job(folder, predict_spec(), CODE) as job:
        job.resize(1)
        content = results(job, folder)
        summary = json.loads((job.output_folder() / "metrics.json").read_text())
    assert summary["num_examples"] == NUM_EXAMPLES
    assert summary["outputs"]["scores"] == {"shape": [3], "dtype": "float32"}
    return content, folder / "predictions.npz"


def test_the_order_and_the_values_are_those_of_plain_keras(
    undisturbed: tuple[bytes, Path],
) -> None:
    keras.utils.set_random_seed(11)
    namespace: dict[str, Any] = {}
    exec(CODE, namespace)
    model, data = namespace["build"]({})
    keras.utils.get_custom_objects().pop("Custom>Twice")
    places = np.arange(NUM_EXAMPLES)
    expected = model.predict({"x": data.x, "place": places}, batch_size=64, verbose=0)
    with np.load(undisturbed[1], allow_pickle=False) as found:
        assert sorted(found.files) == ["parts.output_0", "parts.output_1", "scores"]
        assert found["parts.output_0"].dtype == np.int64
        np.testing.assert_array_equal(found["parts.output_0"], 2 * places)
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            found["parts.output_1"], expected["parts"][1], rtol=1e-4, atol=1e-6
        )


def test_resizes_a_preemption_and_losses_change_no_bit(
    undisturbed: tuple[bytes, Path], tmp_path: Path
) -> None:
    """1 -> an uneven 3, the leader is killed, all stop, 2 come back, a follower is killed."""
    spec = predict_spec(settings={"pause_s": 0.004}, reduction=ReductionMode.FAST)
    with local_job(tmp_path, spec, CODE, num_slots=8) as job:
        first = job.plan(1, None)
        grown = job.plan(3, first, mapping=[[0, 3], [4], [1, 2]])
        prepared(job, [first, grown])
        job.go(first)
        job.wait_step(5)
        job.go(grown)
        job.wait_switched(grown)
        job.wait_step(job.step() + 5)
        job.kill(0)
        recovered = job.recover([2, 1], mapping=[[0, 1, 2], [3, 4]])
        assert recovered.resume_at is not None
        job.wait_switched(recovered)
        job.wait_step(job.step() + 5)
        checkpoint = job.preempt()
        assert job.finished() is None, "the job ended before it was preempted: slow it down"
        back = job.restore(2, checkpoint)
        assert back.resume_at is not None
        assert back.resume_at > recovered.resume_at
        job.wait_step(job.step() + 5)
        follower = back.members[1].slot
        job.kill(follower)
        last = job.recover([back.members[0].slot])
        assert last.resume_at is not None
        # The part that was open is made again, unless the leader saw the loss first and closed it.
        assert last.resume_at >= back.resume_at
        content = results(job, tmp_path)
        assert sum(1 for names in parts_of(job).values() if names) >= 3
        names = [name for names in parts_of(job).values() for name in names]
        assert examples_safe(part for name in names if (part := part_of(name))) == NUM_EXAMPLES
    assert content == undisturbed[0]


def test_a_layout_gives_back_what_it_packed() -> None:
    layout = OutputLayout(
        (
            Output("flag", (), np.dtype(bool)),
            Output("wide", (2, 3), np.dtype(np.float64)),
            Output("half", (3,), np.dtype(np.float16)),
            Output("nothing", (0,), np.dtype(np.float32)),
        )
    )
    assert layout.row_words == 14  # 1 + 48 + 6 bytes, in whole words
    generator = np.random.default_rng(1)
    arrays = [
        np.array([True, False, True]),
        generator.normal(size=(3, 2, 3)),
        generator.normal(size=(3, 3)).astype(np.float16),
        np.zeros((3, 0), np.float32),
    ]
    given = layout.unpack(layout.pack(arrays, 3))
    for (name, array), expected in zip(given.items(), arrays, strict=True):
        assert array.dtype == expected.dtype, name
        np.testing.assert_array_equal(array, expected)
    assert layout.pack([array[:0] for array in arrays], 0).shape == (0, 14)
    with pytest.raises(JobCodeError, match="'flag' has shape"):
        layout.pack([array[:2] for array in arrays], 3)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (keras.layers.Lambda(lambda x: keras.ops.sum(x)), "first axis must be the examples"),
        (keras.layers.Lambda(lambda x: tf.as_string(x)), "holds string"),
        (keras.layers.Lambda(lambda x: {"a/b": x, "a": {"b": x}}), "two .* name 'a.b'"),
        (keras.layers.Lambda(lambda x: {"n" * 201: x}), "1 to 200 characters"),
        (keras.layers.Lambda(lambda x: dict.fromkeys(range(257), x)), "257 outputs; give 1 to"),
        (keras.layers.Lambda(lambda x: tf.boolean_mask(x, x > 0)[None]), "known shape"),
        (keras.layers.Lambda(lambda x: tf.RaggedTensor.from_tensor(x)), "RaggedTensor"),
    ],
)
def test_outputs_that_do_not_go_by_example_are_refused(layer: Any, message: str) -> None:
    model = keras.Sequential([layer])
    sample = (np.ones((2, 3), np.float32),)
    with pytest.raises(JobCodeError, match=message):
        PredictFunctions(model, ModelState(model, is_trained=False), sample)


class Classes(keras.Sequential):  # type: ignore[misc]  # no types in Keras
    """Predicts classes, not the probabilities with which it trains."""

    def predict_step(self, data: Any) -> Any:
        return keras.ops.argmax(super().predict_step(data), -1)


def test_a_predict_step_of_the_models_own_gives_what_predict_gives() -> None:
    model = Classes([keras.Input((3,)), keras.layers.Dense(4)])
    x = np.random.default_rng(2).normal(size=(6, 3)).astype("float32")
    functions = PredictFunctions(model, ModelState(model, is_trained=False), (x[:2],))
    program = [[0, 4, 0, 1], [4, 2, 1, 0]]
    seeds = tf.zeros([2, len(functions.state.seeds), 2], tf.int64)
    arguments = (tf.constant(program), tf.ones(2), tf.constant(1), seeds, tf.constant(x))
    given = functions.layout.unpack(functions.predict(LocalPiece(arguments, (0, 1))))
    np.testing.assert_array_equal(given["predictions"], model.predict(x, verbose=0))


def part_writer(folder: Path, **bounds: Any) -> tuple[PartWriter, ReportWriter]:
    reports = ReportWriter(folder, job_id=1, slot=0)
    return PartWriter(folder / "outputs", reports, **bounds), reports


def reported(folder: Path) -> list[tuple[int, int]]:
    lines = (folder / "reports.jsonl").read_text().splitlines()
    return [(data["first"], data["end"]) for data in (json.loads(line)["data"] for line in lines)]


def test_parts_are_bounded_and_hold_only_what_follows_each_other(tmp_path: Path) -> None:
    writer, _ = part_writer(tmp_path, part_bytes=100, part_s=1e9)
    rows = np.arange(80, dtype=np.float32)
    for first in (0, 10, 20, 30):  # 40 bytes each: the third one fills a part
        writer.add(first, {"file": rows[first : first + 10]}, 10)
    assert reported(tmp_path) == [(0, 30)]
    writer.add(60, {"file": rows[60:70]}, 10)  # the job went on elsewhere
    assert reported(tmp_path) == [(0, 30), (30, 40)]
    writer.close()
    writer.close()
    assert reported(tmp_path) == [(0, 30), (30, 40), (60, 70)]
    with np.load(tmp_path / "outputs" / "predictions-60-70.npz") as found:
        np.testing.assert_array_equal(found["file"], rows[60:70])
    hasty, _ = part_writer(tmp_path, part_s=0.0)
    hasty.add(70, {"file": rows[70:]}, 10)
    assert reported(tmp_path)[-1] == (70, 80)


def test_a_pass_goes_on_where_predictions_are_safe() -> None:
    schedule = TrainingSchedule(45, 0, 20, StopCondition(kind=StopKind.EPOCHS, limit=1))
    ahead = Progress(step=2, batch=2, examples=40, training_s=3.0)
    back = schedule.resumed(ahead, 20)
    assert (back.step, back.batch, back.examples, back.training_s) == (1, 1, 20, 3.0)
    assert schedule.bounds(back) == (20, 40)
    assert schedule.resumed(ahead, 39).examples == 20  # whole batches only
    over = schedule.resumed(ahead, 45)
    assert over.is_over
    assert over.step == 3
    assert schedule.resumed(over, 40).distance < over.distance
