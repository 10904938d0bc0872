"""Figures of the benchmark that replays a recorded run."""

from __future__ import annotations

import pytest

from benchmarks.replay_fidelity import changes, fidelity


def answer(recorded: float, as_is: float) -> dict[str, dict[str, float]]:
    return {
        "recorded": {"mean_jct_s": recorded, "makespan_s": 100.0},
        "as_is": {"mean_jct_s": as_is, "makespan_s": 100.0},
    }


@pytest.mark.parametrize("order", [1, -1])
def test_the_error_is_the_largest_of_all_runs_in_either_direction(order: int) -> None:
    answers = [answer(50.0, 51.0), answer(50.0, 40.0)][::order]
    assert fidelity(answers) == {"completion_error": 0.2, "makespan_error": 0.0}


def test_changes_are_relative_and_name_policies_other_than_the_default() -> None:
    fields = ("makespan_s", "mean_jct_s", "median_jct_s", "median_queueing_s")
    before = dict.fromkeys(fields, 40.0)
    after = dict(zip(fields, (20.0, 40.0, 50.0, 4.0), strict=True))
    assert changes("goodput_fair", "", before, after) == {
        "makespan_change": -0.5,
        "mean_jct_change": 0.0,
        "median_jct_change": 0.25,
        "median_queue_change": -0.9,
    }
    named = changes("weighted_fair", "predicted_", before, after)
    assert named["predicted_weighted_fair_makespan_change"] == -0.5
