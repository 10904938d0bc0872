"""Bounds of a tuning request: each refusal names the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.tuning import TunableRange, TuningSpec

RATE = {"learning_rate": TunableRange(low=1e-4, high=1.0, log=True)}


def test_a_tuning_is_read_as_it_was_written() -> None:
    spec = TuningSpec(space={**RATE, "momentum": TunableRange(low=0.0, high=0.99)}, max_trials=7)
    assert decode(TuningSpec, encode(spec)) == spec
    assert spec.names == ("learning_rate", "momentum")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"space": {}}, "space is empty; name at least one of learning_rate, "),
        ({"space": {"dropout": (0.0, 0.5)}}, "space.dropout is no tunable; choose from learning"),
        ({"space": {"momentum": (0.5, 1.0)}}, "space.momentum.high must be at most 0.9999, got 1"),
        ({"space": {"momentum": (-0.1, 0.5)}}, "space.momentum.low must be at least 0, got -0.1"),
        ({"space": {"weight_decay": (0.2, 0.2)}}, "low must be below its high, got 0.2 and 0.2"),
        ({"space": {"learning_rate": (0.0, 1.0, True)}}, "low must be above 0 with log, got 0"),
        (
            {"space": {"learning_rate": (0.1, 1.0), "learning_rate_scale": (0.1, 1.0)}},
            "which multiply each other; keep one",
        ),
        ({"max_trials": 1}, "max_trials must be from 2 to 200, got 1"),
        ({"max_share": 0.95}, "max_share must be from 0.01 to 0.9, got 0.95"),
        ({"max_branches": 1}, "max_branches must be from 2 to 16, got 1"),
        ({"objective": ""}, "objective is empty; name a metric such as val_loss"),
        ({"max_parallel": 17}, "max_parallel must be from 1 to 16, got 17"),
        ({"trial_steps": 10}, "trial_steps must be from 20 to 1e+06, got 10"),
        ({"trial_steps": 25}, "trial_steps must be a multiple of 10, as a trial is judged by"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    spans = {
        name: TunableRange(low=span[0], high=span[1], log=len(span) > 2)
        for name, span in given.pop("space", {"momentum": (0.1, 0.9)}).items()
    }
    with pytest.raises(ValueError, match=r"^tuning\.") as refusal:
        TuningSpec(space=spans, **given)
    assert message in str(refusal.value)
