"""Figures of the benchmark of tuning by the clock, from the costs of its arms."""

from __future__ import annotations

from benchmarks.tuning_times import Cost, figures


def test_the_cost_of_whole_runs_is_that_of_all_of_them() -> None:
    runs = [Cost(10.0, 14.0, 500, 1), Cost(4.0, 9.0, 180, 1, is_reached=True)]
    assert Cost().then(runs[0]).then(runs[1]) == Cost(14.0, 23.0, 680, 2, is_reached=True)


def test_ratios_are_those_of_medians_with_and_without_starts() -> None:
    found = {
        "hand": [Cost(10.0, 14.0, 500, 1, is_reached=True)] * 3,
        "default": [Cost(200.0, 204.0, 9000, 1)],
        "tuned": [
            Cost(seconds, seconds + 5.0, 1000, 1, is_reached=True) for seconds in (15.0, 20.0, 90.0)
        ],
        "optuna": [Cost(60.0, 100.0, 3000, 5, is_reached=True)] * 3,
    }
    told = figures(found)
    assert told["within_hand"] == 2.0
    assert (told["over_optuna"], told["over_optuna_with_starts"]) == (3.0, 4.0)
    assert "over_random" not in told
    assert told["num_runs"]["optuna"] == [5, 5, 5]
    assert told["missed"] == {"hand": 0, "default": 1, "tuned": 0, "optuna": 0}
