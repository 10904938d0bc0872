"""Custom steps in a validation: refused where slices would do something else than the batch."""

import textwrap
from pathlib import Path

import pytest

from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from tests.agents.trainer.trial_jobs import validated, warnings_of

JOB = """
import tensorflow as tf

class Own(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mean = keras.metrics.Mean("mean")
        self.noise = keras.random.SeedGenerator(3)
        self.average = self.add_weight(shape=(4, 1), trainable=False)
        self.spare = keras.optimizers.SGD(0.1)
        self.norm = layers.BatchNormalization()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = LOSS
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        UPDATE
        return LOGS

def build(settings):
    inputs = keras.Input((4,))
    model = Own(inputs, layers.Dense(1)(inputs))
    model.compile("sgd")
    return model, (X, Y), VALIDATION
"""
SQUARES = "ops.mean(ops.square(y - p))"
APPLY = "self.optimizer.apply(gradients, weights)"
LOGS = "{'loss': loss}"
PENALTY = f"""{SQUARES}
            with tf.GradientTape() as inner:
                inner.watch(x)
                second = ops.mean(ops.square(y - self(x)))
            slopes = inner.gradient(second, self.trainable_weights)
            loss += sum(ops.sum(ops.square(slope)) for slope in slopes)"""


def code_of(
    loss: str = SQUARES, update: str = APPLY, logs: str = LOGS, validation: str = "None"
) -> str:
    parts = {"LOSS": loss, "UPDATE": update, "LOGS": logs, "VALIDATION": validation}
    code = JOB
    for name, text in parts.items():
        code = code.replace(name, text)
    return code


#: A second update, by the weights of the first.
AGAIN = """
        with tf.GradientTape() as tape:
            second = ops.mean(ops.abs(self(x) - y))
        self.spare.apply(tape.gradient(second, weights), weights)
""".strip()

#: Jobs by what they do, each with a part of the refusal.
REFUSED = {
    "no update": (code_of(update="pass"), "does not hand gradients"),
    "an update by hand": (
        code_of(update="[w.assign_sub(0.1 * g) for g, w in zip(gradients, weights)]"),
        "does not hand gradients",
    ),
    "clipped gradients": (
        code_of(update="self.optimizer.apply([ops.clip(g, -1, 1) for g in gradients], weights)"),
        "clipnorm",
    ),
    "gradients of a weight given to another": (
        code_of(update="self.optimizer.apply(gradients[::-1], weights)"),
        "changes the gradient of",
    ),
    "an error in the update that is caught": (
        code_of(update=textwrap.indent("""
try:
    self.optimizer.apply([2 * g for g in gradients], weights)
except Exception:
    pass""", "        ").lstrip()),
        "does not hand gradients",
    ),
    "two updates": (
        code_of(update=f"{APPLY}; {APPLY}"),
        "several times",
    ),
    "two updates by two optimizers": (
        code_of(update=f"{APPLY}; self.spare.apply(gradients, weights)"),
        "several times",
    ),
    "a gradient by a weight that the step has set": (
        code_of(update=f"weights[0].assign(ops.clip(weights[0], -1, 1))\n        {AGAIN}"),
        "before it takes the gradient",
    ),
    "a metric of losses before and after an update": (
        code_of(update=f"{APPLY}\n        {AGAIN}\n        self.mean.update_state(loss + second)"),
        "before and after an update",
    ),
    "an update by what was computed before another": (
        code_of(update=f"{APPLY}\n        {AGAIN.replace('self(x) - y', 'self(x) - p')}"),
        "before and after an update",
    ),
    "state that mixes what is before and after an update": (
        code_of(
            update=f"{APPLY}\n        {AGAIN}\n"
            "        self.average.assign(self.average + loss + second)"
        ),
        "before and after an update",
    ),
    "an update under a condition": (
        code_of(update=f"tf.cond(loss > 1.0, lambda: ({APPLY}, 0)[1], lambda: 0)"),
        "a loop or a branch",
    ),
    "state by the updated weights and the examples": (
        code_of(update=f"{APPLY}; self.average.assign(0.9 * self.average + ops.mean(self(x)))"),
        "after self.optimizer.apply()",
    ),
    "metrics by the updated weights": (
        code_of(update=f"{APPLY}; self.mean.update_state(self(x))"),
        "computes 'mean/count', 'mean/total' on each slice",
    ),
    "a metric of the updated weights alone": (
        code_of(update=f"{APPLY}; self.mean.update_state(ops.mean(weights[0]))"),
        "computes 'mean/total' on each slice",
    ),
}  # fmt: skip

#: Jobs whose loss or gradient is not the mean of the slices'.
NOT_ADDITIVE = {
    "a sum over the batch": code_of("ops.sum(ops.square(y - p))"),
    "a loss that compares examples": code_of("ops.mean(ops.logsumexp(p @ ops.transpose(p), 1))"),
    "a loss with random numbers that compares examples": code_of(
        "ops.var(p + keras.random.normal(ops.shape(p), seed=self.noise))"
    ),
    "a penalty of a gradient by weights": code_of(PENALTY),
    "a sum over the batch in a second update": code_of(
        update=f"{APPLY}\n        {AGAIN}".replace("ops.mean(ops.abs", "ops.sum(ops.abs")
    ),
}

#: Jobs that train, with a part of their warning, if any.
ACCEPTED = {
    "an average of the updated weights": (
        code_of(update=f"{APPLY}; self.average.assign(0.9 * self.average + 0.1 * weights[0])"),
        "",
    ),
    "a mean over examples": (code_of(), ""),
    "another optimizer": (code_of(update="self.spare.apply(gradients, weights)"), ""),
    "a second update by another optimizer": (code_of(update=f"{APPLY}\n        {AGAIN}"), ""),
    "random numbers": (
        code_of("ops.mean(ops.square(y - p + keras.random.normal(ops.shape(p), seed=self.noise)))"),
        "",
    ),
    "batch normalisation in the step": (
        code_of("ops.mean(ops.square(y - self.norm(p, training=True)))"),
        "",
    ),
    "no logs": (code_of(logs="None"), ""),
    "a number that is no metric's": (
        code_of(logs="{'loss': loss, 'size': ops.mean(p)}"),
        "returns 'size' as a plain number",
    ),
    "the length of the gradients": (
        code_of(update=f"self.mean.update_state(tf.linalg.global_norm(gradients)); {APPLY}"),
        "computes values of the gradients",
    ),
}


@pytest.mark.parametrize("job", REFUSED)
def test_what_cannot_follow_the_sum_of_slices_is_refused(tmp_path: Path, job: str) -> None:
    code, reason = REFUSED[job]
    report = validated(tmp_path, code)
    assert (report.code, report.field) == ("custom_train_step", "code.build"), report.message
    assert reason in report.message


@pytest.mark.parametrize("job", NOT_ADDITIVE)
def test_a_custom_loss_that_is_no_mean_is_refused(tmp_path: Path, job: str) -> None:
    report = validated(tmp_path, NOT_ADDITIVE[job])
    assert report.code == "loss_not_additive", report.message


@pytest.mark.parametrize("job", ACCEPTED)
def test_a_custom_step_is_accepted(tmp_path: Path, job: str) -> None:
    code, warning = ACCEPTED[job]
    report = validated(tmp_path, code)
    assert report.ok, f"{report.code}: {report.message}"
    about_steps = [each for each in warnings_of(report) if "train_step()" in each]
    assert [warning in each for each in about_steps] == [True] * bool(warning)


def test_selection_by_losses_is_refused(tmp_path: Path) -> None:
    selection = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP)
    report = validated(tmp_path, code_of(), selection=selection)
    assert (report.code, report.field) == ("custom_train_step", "selection.method")


def test_a_masked_loss_in_a_custom_step_is_refused(tmp_path: Path) -> None:
    code = code_of().replace(
        "layers.Dense(1)(inputs)", "layers.Dense(1)(layers.Masking()(inputs[..., None]))"
    )
    code = code.replace(SQUARES, "self.compute_loss(x, y[..., None] + x[..., None], p)")
    report = validated(tmp_path, code.replace('compile("sgd")', 'compile("sgd", "mse")'))
    assert report.code == "masked_loss", report.message
    assert "train_step() of its own" in report.message
