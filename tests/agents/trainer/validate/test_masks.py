"""Masked losses in a validation: accepted if all terms count a slice by the same places."""

import textwrap
from pathlib import Path

import pytest

from agents.trainer.validate import run
from agents.trainer.validate.trial_steps import StepFacts
from tests.agents.trainer.trial_jobs import validated, warnings_of

HEAD = """
    SPARSE = keras.losses.SparseCategoricalCrossentropy
    WORDS = random.integers(0, 5, size=(24, 6)) * (np.arange(6) < np.arange(24)[:, None])

    class Adding(layers.Layer):
        def __init__(self, of_weights=False):
            super().__init__()
            self.supports_masking = True
            self.of_weights = of_weights

        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, inputs):
            self.add_loss(0.1 * ops.mean(ops.abs(self.factor if self.of_weights else inputs)))
            return inputs * self.factor

    class Summing(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            return loss + ops.mean(ops.square(y_pred))

    class Squares(keras.Loss):
        def call(self, y_true, y_pred):
            return ops.mean(ops.square(y_true[..., None] - y_pred), axis=-1)

    class Called(Squares):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return ops.mean(self.call(ops.cast(y_true, "float32"), y_pred))

    class Batch(keras.Loss):
        def call(self, y_true, y_pred):
            errors = ops.mean(ops.square(y_true[..., None] - y_pred), axis=-1)
            return errors / ops.max(errors)

    def masked(*middle, loss=SPARSE(from_logits=True), kind=keras.Model, regulariser=None):
        inputs = keras.Input((6,))
        features = layers.Embedding(5, 3, mask_zero=True)(inputs)
        for layer in middle:
            features = layer(features)
        outputs = layers.Dense(5, activity_regularizer=regulariser)(features)
        model = kind(inputs, outputs)
        model.compile("sgd", loss)
        return model

    def forked(*losses, weights=None, masks=(True, False)):
        inputs = {name: keras.Input((6,)) for name in "ab"}
        outputs = {
            name: layers.Dense(5, name=name)(layers.Embedding(5, 3, mask_zero=mask)(one))
            for mask, (name, one) in zip(masks, inputs.items())
        }
        model = keras.Model(inputs, outputs)
        names = dict(zip("ab", losses))
        model.compile("sgd", names, loss_weights=weights)
        return model

    def build(settings):
        model = MODEL
        if len(model.outputs) > 1:
            return model, ({"a": WORDS, "b": WORDS[::-1]}, {"a": WORDS, "b": WORDS}), None
        return model, (WORDS, WORDS), None
"""
LOGITS = "SPARSE(from_logits=True)"
IGNORING = "SPARSE(from_logits=True, ignore_class=0)"
ACCEPTED = {
    "a mask": "masked()",
    "a mask and layers": "masked(layers.SimpleRNN(3, return_sequences=True), layers.Dropout(0.1))",
    "an ignored class under a mask": f"masked(loss={IGNORING})",
    "a loss of one's own": "masked(loss=Squares())",
    "a regulariser of weights": "masked(layers.Dense(3, kernel_regularizer='l2'))",
    "add_loss of weights alone": "masked(Adding(of_weights=True))",
    "a sum": "masked(loss=SPARSE(from_logits=True, reduction='sum'))",
    "a mask beside an output of weight 0": (
        f"forked({LOGITS}, {LOGITS}, weights={{'a': 1.0, 'b': 0.0}})"
    ),
}
#: With a part of the reason that a report gives.
REFUSED = {
    "an output without a mask": (f"forked({LOGITS}, {LOGITS})", "other outputs"),
    "outputs with two masks": (f"forked({LOGITS}, {LOGITS}, masks=(True, True))", "other outputs"),
    "an ignored class in one output": (
        f"forked({IGNORING}, {LOGITS}, masks=(False, False))",
        "other outputs",
    ),
    "a sum beside a masked mean": (
        f"forked({LOGITS}, SPARSE(from_logits=True, reduction='sum'))",
        "other outputs",
    ),
    "a masked mean of weight 0 beside another": (
        f"forked({LOGITS}, {LOGITS}, weights={{'a': 0.0, 'b': 1.0}})",
        "other outputs",
    ),
    "add_loss": ("masked(Adding())", "add_loss()"),
    "a regulariser of activity": ("masked(regulariser='l2')", "regulariser of activity"),
    "a compute_loss of one's own": ("masked(kind=Summing)", "compute_loss()"),
    "a loss with a call of its own": ("masked(loss=Called())", "__call__()"),
}


def code_of(model: str) -> str:
    return textwrap.dedent(HEAD).replace("MODEL", model)


@pytest.mark.parametrize("name", ACCEPTED)
def test_means_over_the_same_places_are_accepted(name: str, tmp_path: Path) -> None:
    report = validated(tmp_path, code_of(ACCEPTED[name]))
    assert report.ok, f"{report.code}: {report.message}"
    assert all("without your code" in each for each in warnings_of(report))


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_with_another_weight_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "steps_try", lambda *_: StepFacts({}, []))
    model, reason = REFUSED[name]
    report = validated(tmp_path, code_of(model))
    assert (report.code, report.field) == ("masked_loss", "code.build"), report.message
    assert reason in report.message


def test_a_masked_loss_that_compares_examples_is_still_refused(tmp_path: Path) -> None:
    report = validated(tmp_path, code_of("masked(loss=Batch())"))
    assert report.code == "loss_not_additive", report.message
