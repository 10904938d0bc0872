"""Reports of losses and metrics that are not finite: their sentences, and their checks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite, nonfinite_read

LOSS = Nonfinite(
    metric=None, value="nan", step=137, epoch=2, last_finite=2.31, last_finite_step=136
)
METRIC = replace(LOSS, metric="val_accuracy", value="inf", step=150, last_finite_step=100)


def test_the_sentences() -> None:
    assert LOSS.failure_text == (
        "The loss became nan at step 137 (epoch 3); its last finite value was 2.31 at step 136. "
        "Lower the learning rate, clip gradients or look at the data; "
        "set on_nonfinite to continue to train on."
    )
    assert METRIC.became_text == (
        "The metric val_accuracy became inf at the end of epoch 3 (step 150); "
        "its last finite value was 2.31 at step 100"
    )
    assert (LOSS.code, METRIC.code) == ("nonfinite_loss", "nonfinite_metric")
    assert LOSS.state_text == "The loss is not finite since step 137."
    over = replace(LOSS, until_step=140)
    assert over.state_text == "The loss was not finite from step 137 to step 139."
    assert over.again_text == "The loss is finite again since step 140"


def test_a_loss_that_never_was_finite_says_so() -> None:
    first = replace(LOSS, step=1, epoch=0, last_finite=None, last_finite_step=None)
    assert first.became_text == "The loss became nan at step 1 (epoch 1); it was never finite"
    skipped = replace(first, num_skipped=20)
    assert "for 20 steps, all skipped by the loss scale" in skipped.became_text


def test_a_metric_called_loss_is_kept_apart_from_the_loss_of_the_steps() -> None:
    assert replace(METRIC, metric="loss").name != LOSS.name


@pytest.mark.parametrize("state", [LOSS, METRIC, replace(LOSS, until_step=140, num_skipped=20)])
def test_it_travels_as_json(state: Nonfinite) -> None:
    assert nonfinite_read(json.loads(json.dumps(encode(state), allow_nan=False))) == state


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "2.5"},
        {"value": None},
        {"metric": "m" * 101},
        {"step": -1},
        {"step": 2**70},
        {"step": "137"},
        {"until_step": -1},
        {"last_finite": None},
        {"last_finite_step": None},
        {"last_finite": math.nan},
        {"last_finite": math.inf},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot be|must be|count|needs both|not finite"):
        nonfinite_read(encode(LOSS) | wrong)
