"""benchmarks.policies: what it runs, the figures made of the rows, and their page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import policies, policy_cases
from benchmarks.policy_cases import (
    REPORTING_SEEDS,
    TUNING_SEEDS,
    Case,
    Row,
    cases_list,
    world_make,
)
from benchmarks.policy_figures import (
    BEGIN,
    END,
    PAGE,
    RATIOS,
    STORED,
    SUMMARY_PAGE,
    figures_of,
    page_make,
    rows_write,
    summary,
    summary_make,
    tables,
)

OURS = "goodput_fair"


def row(
    policy: str, cost: str, mean_s: float, seed: int = 100, *, kinds: int = 1, load: float = 1.0,
    fairness: float = 1.0, knowledge: str = "fitted", resizes: float = 0.0,
) -> Row:  # fmt: skip
    return Row(
        Case("drawn", kinds, load, seed, policy, cost, knowledge), "v", mean_s, mean_s, mean_s,
        resizes, fairness, 2.0 * fairness, 0.0, 1.0, 1.0,
    )  # fmt: skip


#: Two draws of ours and Pollux, one of ours and Sia, and what the other figures need.
ROWS = [
    row(OURS, "30 s", 90.0, fairness=1.1),
    row(OURS, "30 s", 160.0, 101, fairness=1.2),
    row(OURS, "measured", 60.0),
    row(OURS, "measured", 100.0, 101),
    row("pollux", "30 s", 100.0, fairness=9.0),
    row("pollux", "30 s", 200.0, 101),
    row("pollux", "measured", 80.0),
    row("sia", "30 s", 120.0),
    row(OURS, "measured", 50.0, knowledge="true", fairness=7.0),
    row(OURS, "30 s", 400.0, load=2.0, resizes=6.5, fairness=1.4),
    row(OURS, "30 s", 30.0, kinds=3),
    row("sia", "30 s", 40.0, kinds=3),
]


def test_figures_are_means_over_draws() -> None:
    assert figures_of(ROWS) == {
        "ours_over_pollux": pytest.approx((0.6 + 0.5) / 2),
        "ours_over_pollux_equal_measured": 0.75,
        "ours_over_sia_equal_measured": None,
        "ours_over_pollux_equal_cost": pytest.approx((0.9 + 0.8) / 2),
        "ours_over_pollux_equal_cost_worst_draw": 0.9,
        "ours_over_sia": 0.5,
        "ours_over_sia_equal_cost": 0.75,
        "ours_over_sia_equal_cost_worst_draw": 0.75,
        "ours_over_sia_three_kinds_equal_cost": 0.75,
        "resizes_per_job_overload": 6.5,
        "regret_over_oracle": pytest.approx(0.2),
        "worst_fairness": 1.4,
        "num_draws": {
            "ours_over_pollux": 2,
            "ours_over_pollux_equal_measured": 1,
            "ours_over_sia_equal_measured": 0,
            "ours_over_pollux_equal_cost": 2,
            "ours_over_sia": 1,
            "ours_over_sia_equal_cost": 1,
            "ours_over_sia_three_kinds_equal_cost": 1,
            "resizes_per_job_overload": 1,
            "regret_over_oracle": 1,
            "worst_fairness": 6,
        },
        "num_older": dict.fromkeys(RATIOS, 0),
    }
    assert figures_of([])["ours_over_pollux"] is None


def test_the_table_shows_three_columns_for_each_peer() -> None:
    lines = tables(ROWS)
    assert "\n".join(lines).count("| pollux |") == 1
    assert "| pollux | 2/1 | 150 | 80 | 0.550 | 0.750 | 0.850 | 9.00 | 0.0 | 0 |" in lines
    assert "| goodput_fair | 2/2 | 125 | 80 |  |  |  | 1.20 | 0.0 | 0 |" in lines
    assert lines.count("2 times the published load, one kind:") == 1
    one = "| 1 times the published load, one kind"
    assert summary(ROWS)[2:] == [
        f"{one} | pollux | 0.550 (2) | 0.750 (1) | 0.850 (2) |",
        f"{one} | sia | 0.500 (1) | - | 0.750 (1) |",
        "| 1 times the published load, three kinds | sia | - | - | 0.750 (1) |",
    ]


def test_nothing_is_reported_on_tuning_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not set(TUNING_SEEDS) & {*REPORTING_SEEDS, 6}
    assert len(REPORTING_SEEDS) >= 8
    tuned = replace(ROWS[0], case=replace(ROWS[0].case, seed=TUNING_SEEDS[0]))
    with pytest.raises(ValueError, match="not made from TUNING_SEEDS"):
        figures_of([*ROWS, tuned])
    with pytest.raises(ValueError, match="not made from TUNING_SEEDS"):
        page_make([*ROWS, tuned])
    monkeypatch.setattr(policies, "code_version", lambda: "v")
    monkeypatch.setattr(policies, "profiles_there", lambda: "pollux")
    stale = replace(ROWS[0], version="before")
    assert policies.reportable([tuned, stale, *ROWS]) == sorted(ROWS)
    with pytest.raises(ValueError, match="--write: no row of version v is kept; run some"):
        policies.reportable([tuned, stale])


def test_peers_keep_rows_of_earlier_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours does not, nor does a peer that was run with this one; the page names each version."""
    monkeypatch.setattr(policies, "code_version", lambda: "v")
    monkeypatch.setattr(policies, "profiles_there", lambda: "pollux")
    ours, peer = row(OURS, "30 s", 90.0), row("sia", "30 s", 100.0)
    earlier = [replace(one, version="before") for one in (ours, peer, row("pollux", "30 s", 80.0))]
    found = policies.reportable([ours, peer], earlier)
    assert found == sorted([ours, peer, earlier[2]])
    page = page_make(found)
    assert "Version of the code: v (goodput_fair, sia), before (pollux)." in page
    assert "| `ours_over_pollux_equal_cost` | 1.125 | 1 | 1 |" in page
    assert "| `ours_over_sia_equal_cost` | 0.9 | 1 | 0 |" in page
    assert "| pollux | 1/0 | 80 | - | - | - | 1.125 | 1.00 | 0.0 | 1 |" in page


def test_cases_are_chosen_by_option() -> None:
    seeds = REPORTING_SEEDS[:2]
    cases = cases_list(seeds, [1.0], [1], [OURS, "pollux"])
    drawn = [case for case in cases if case.workload == "drawn"]
    assert [(case.seed, case.policy, case.cost, case.knowledge) for case in drawn] == [
        (seed, *rest)
        for seed in seeds
        for rest in [
            (OURS, "30 s", "fitted"), (OURS, "measured", "fitted"),
            ("pollux", "30 s", "fitted"), ("pollux", "measured", "fitted"),
            (OURS, "measured", "true"),
        ]
    ]  # fmt: skip
    assert cases_list(seeds, [2.0], [3], ["sia"], ["30 s"]) == [
        replace(cases[0], kinds=3, load=2.0, seed=seed, policy="sia") for seed in seeds
    ]


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_cases, "POLLUX", Path("/nowhere"))


def test_worlds_are_drawn_on_one_and_three_kinds(synthetic: None) -> None:
    one, cluster = world_make("drawn", 1, 0.5, 100, "synthetic")
    assert len(one.jobs) == 80
    assert cluster.kinds == {"gpu": 64}
    three, cluster = world_make("drawn", 3, 0.5, 100, "synthetic")
    assert cluster.kinds == {"k80": 24, "p100": 24, "v100": 16}
    assert cluster.per_node == {"k80": 4, "p100": 8, "v100": 8}
    assert max(job.requested for job in three.jobs) <= 16


def test_it_runs_in_parts_and_goes_on(
    synthetic: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Two jobs a draw. The second run finds the first one's row, the third a stale version."""
    monkeypatch.setattr(policy_cases, "NUM_JOBS", 2)
    rows = tmp_path / "kept" / "rows.json"
    asked = ["--loads", "1", "--kinds", "1", "--costs", "30 s", "--draws", "1", "--rows", str(rows)]
    world_make.cache_clear()
    try:
        assert policies.main([*asked, "--only", "sia"]) == 0
        assert policies.main([*asked, "--only", OURS, "sia"]) == 0
        last = capsys.readouterr()
        assert "1 of 2 simulations are kept" in last.err
        figures = json.loads(last.out.splitlines()[-1])
        assert figures["benchmark"] == "policies"
        assert figures["figures"]["num_draws"]["ours_over_sia_equal_cost"] == 1
        assert figures["figures"]["ours_over_sia_equal_cost"] > 0.0
        assert "fairness" in rows.read_text()
        monkeypatch.setattr(policies, "code_version", lambda: "another")
        assert policies.main([*asked, "--only", "sia", "--tuning"]) == 0
        told = capsys.readouterr()
        assert "0 of 1 simulations are kept" in told.err
        assert "figures" not in told.out
    finally:
        world_make.cache_clear()


def test_bad_rows_and_draws_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"mean_s": 1}]')
    with pytest.raises(ValueError, match=r"--rows: .*rows.json holds no rows \(.*\); delete it"):
        policies.rows_read(tmp_path / "rows.json")
    with pytest.raises(SystemExit):
        policies.options_parse(["--draws", "99"])


def test_pages_are_rendered_from_the_stored_rows(tmp_path: Path) -> None:
    """`python -m benchmarks.policies --write` writes both; rows survive being read again."""
    rows = policies.rows_read(STORED)
    for page, lines in ((PAGE, page_make(rows)), (SUMMARY_PAGE, summary_make(rows))):
        shown = BEGIN + page.read_text().split(BEGIN)[1].split(END)[0] + END
        assert shown.splitlines() == lines
    rows_write(ROWS, tmp_path / "rows.json")
    assert policies.rows_read(tmp_path / "rows.json") == ROWS
