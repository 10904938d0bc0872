"""Losses that are given as arrays, and so added up over the batch: they train what `fit` trains."""

import textwrap
from pathlib import Path

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.workload import workload_build
from tests.agents.trainer.step.keras_runs import assert_same_as_keras, spec, trained_by_engine
from tests.agents.trainer.step.test_custom_steps import HEAD
from tests.agents.trainer.trial_jobs import validated

STEP = """
class Own(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean("tracked")

    def train_step(self, data):
        x, y, weight = (*data, None)[:3]
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = LOSS
            target = TARGET
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(target, weights), weights)
        self.tracker.update_state(loss)
        return {"tracked": self.tracker.result()}

def build(settings):
    model = net(Own)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=0.5), "mse")
    return model, DATA, None
"""
ADDED = """
class Distance(layers.Layer):
    def call(self, x, y):
        self.add_loss(LOSS)
        return x

class Own(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight)

def build(settings):
    inputs, labels = keras.Input((6,)), keras.Input((2,))
    dense = layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l1")
    model = KIND([inputs, labels], Distance()(dense(inputs), labels))
    model.compile(keras.optimizers.SGD(0.01), COMPILED)
    return model, ((X, Y), TARGETS), (((X[:15], Y[:15]), TARGETS[:15])) if COMPILED else None
"""
TRIPLETS = """
class Triplets(keras.Model):
    def __init__(self):
        super().__init__()
        inputs, dense = [keras.Input((6,)) for _ in range(3)], layers.Dense(4)
        self.network = keras.Model(inputs, [dense(each) for each in inputs])
        self.tracker = keras.metrics.Mean("tracked")

    def call(self, three):
        return self.network(three)

    def losses_of(self, data):
        one, same, other = self.network(data)
        near, far = ops.sum((one - same) ** 2, -1), ops.sum((one - other) ** 2, -1)
        return ops.maximum(near - far + 20.0, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.losses_of(data)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"tracked": self.tracker.result()}

    def test_step(self, data):
        self.tracker.update_state(self.losses_of(data))
        return {"tracked": self.tracker.result()}

def build(settings):
    model = Triplets()
    model.compile(keras.optimizers.SGD(0.001))
    data = tf.data.Dataset.from_tensor_slices((X, X + 0.1, X[::-1]))
    return model, data.batch(11), data.take(15).batch(11)
"""
WEIGHTS = "ops.ones((44, 2)) * WEIGHT[:, None]"


def step_of(loss: str, target: str = "loss", data: str = "(X, Y)") -> str:
    return STEP.replace("LOSS", loss).replace("TARGET", target).replace("DATA", data)


def added(loss: str, compiled: str = "None", kind: str = "keras.Model") -> str:
    """Return a job with `add_loss`, of labels that are inputs, or beside a compiled loss."""
    targets = "np.zeros((44, 0))" if compiled == "None" else "Y"
    parts = {"LOSS": loss, "COMPILED": compiled, "KIND": kind, "TARGETS": targets}
    code = ADDED
    for name, text in parts.items():
        code = code.replace(name, text)
    return code


JOBS = {
    "one for each example": step_of("squares(y, predictions)"),
    "several for each example, with weights": step_of(
        "ops.square(y - predictions) * weight", data=f"(X, Y, np.array({WEIGHTS}))"
    ),
    "with regularisers added to each": step_of("squares(y, predictions) + sum(self.losses)"),
    "beside a mean": step_of(
        "squares(y, predictions)", "[loss, 3 * ops.mean(ops.abs(predictions)), *self.losses]"
    ),
    "chosen ones": step_of("tf.boolean_mask(squares(y, predictions), x[:, 0] > 0)"),
    "scaled, in half precision": step_of(
        "squares(y, predictions)", "self.optimizer.scale_loss(loss)"
    )
    .replace("keras.optimizers.SGD(", "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(")
    # The optimizer inside is closed twice.
    .replace("global_clipnorm=0.5)", "global_clipnorm=0.5))"),
    "of three inputs that are no labels": TRIPLETS,
    "given to add_loss": added("ops.sum((x - y) ** 2, axis=-1, keepdims=True)"),
    "given to add_loss beside a compiled mean": added("ops.abs(x - y)", '"mse"'),
    "given to add_loss beside a compiled mean, doubled": added("ops.abs(x - y)", '"mse"', "Own"),
}


@pytest.mark.parametrize("job", JOBS)
def test_losses_added_up_train_as_fit(tmp_path: Path, job: str) -> None:
    assert_same_as_keras(HEAD + textwrap.dedent(JOBS[job]), tmp_path)


def test_an_array_that_is_returned_is_logged_as_the_mean_of_its_numbers(tmp_path: Path) -> None:
    tracked = HEAD + step_of("squares(y, predictions)")
    returned = tracked.replace("self.tracker.update_state(loss)", "").replace(
        "self.tracker.result()", "loss"
    )
    logs = []
    for number, code in enumerate((tracked, returned)):
        (folder := tmp_path / str(number) / "code").mkdir(parents=True)
        (folder / "job.py").write_text(code)
        work = workload_build(folder.parent, spec(), ReportWriter(folder.parent, 0, 0))
        logs.append(trained_by_engine(work))
    assert logs[0][0]["tracked"] > logs[0][1]["tracked"] > 0
    for one, other in zip(*logs, strict=True):
        assert other["tracked"] == pytest.approx(one["tracked"], rel=1e-5)


CONSTANT = """
class Own(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred) if training else CONSTANT

def build(settings):
    inputs = keras.Input((6,))
    model = Own(inputs, layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    return model, (X, Y), (X, Y)
"""


@pytest.mark.parametrize("constant", ["0.0", "np.float32(1)", "tf.constant(2.0)"])
def test_a_loss_may_be_a_constant(tmp_path: Path, constant: str) -> None:
    code = CONSTANT.replace("CONSTANT", constant).replace("tf.constant(2.0)", "TWO")
    report = validated(tmp_path, HEAD + "TWO = tf.constant(2.0)\n" + code)
    assert report.ok, report.message


@pytest.mark.parametrize("job", JOBS)
def test_losses_added_up_are_no_fault(tmp_path: Path, job: str) -> None:
    report = validated(tmp_path, HEAD + textwrap.dedent(JOBS[job]), num_virtual_nodes=3)
    assert report.ok, report.message


@pytest.mark.parametrize(
    "code", [step_of("ops.sum(squares(y, predictions))"), added("ops.sum(ops.abs(x - y))")]
)
def test_a_sum_in_one_number_is_refused_with_the_way_out(tmp_path: Path, code: str) -> None:
    report = validated(tmp_path, HEAD + code)
    assert (report.ok, report.code) == (False, "loss_not_additive")
    assert "or the array that is added up" in report.message


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (step_of("squares(y, predictions)"), "of train_step()"),
        (added("ops.abs(x - y)"), "of add_loss()"),
    ],
)
def test_a_sum_keeps_its_batch_size(tmp_path: Path, code: str, name: str) -> None:
    sizes = {"global_batch_size": 12, "batch_size_min": 6, "batch_size_max": 24}
    report = validated(tmp_path, HEAD + code, num_virtual_nodes=3, **sizes)
    assert (report.ok, report.code, report.field) == (False, "loss_reduction", "batch_size_min")
    assert f"The loss {name} is a sum over the batch" in report.message
