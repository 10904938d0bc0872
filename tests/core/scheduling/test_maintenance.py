"""Maintenance of nodes: true reasons, and no start expected before its end."""

from __future__ import annotations

from dataclasses import replace

from controlplane.core.cycle import decide
from controlplane.core.expected_starts import expected_starts
from controlplane.core.scheduling.maintenance import maintenance_ends, maintenance_over
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Accelerator, Maintenance, Snapshot
from tests.core.snapshots import accelerators_make, every_policy, job_make, snapshot_make

#: 2026-03-02 20:00 UTC.
END = 1_772_481_600.0
NOW = END - 7200.0
FIRST, SECOND, THIRD = 1, 2, 3


def away(node_id: int, ends_at: float, *kinds: str) -> Maintenance:
    rows = tuple(Accelerator(100 * node_id + i, node_id, i, kind) for i, kind in enumerate(kinds))
    return Maintenance(node_id, ends_at, rows)


def waiting(least: int, *maintenance: Maintenance, kinds: str = "") -> Snapshot:
    """One node of two idle accelerators, and a job that needs more."""
    job = job_make(7, least=least, most=8, at=NOW - 60.0, kinds=kinds)
    return replace(
        snapshot_make(accelerators_make("cpu cpu"), job, now=NOW), maintenance=maintenance
    )


@every_policy
def test_a_job_without_another_place_waits_until_the_end(name: str) -> None:
    snapshot = waiting(4, away(SECOND, END, "cpu", "cpu"))
    plan = decide(snapshot, name)
    assert plan.resizes == ()
    assert plan.reasons[7] == (
        "Waits for 4 accelerators of one accepted kind: nodes that take work have 2 until "
        "2026-03-02 20:00 UTC, when maintenance ends. No other job waits for it."
    )
    start = expected_starts(snapshot, plan, name)[7]
    assert 7200.0 <= start.earliest_s <= start.latest_s < 1.5 * 7200.0


@every_policy
def test_without_the_time_for_a_forecast_no_start_is_told(name: str) -> None:
    snapshot = waiting(4, away(SECOND, END, "cpu", "cpu"))
    plan = decide(snapshot, name)
    assert expected_starts(snapshot, plan, name, most_decisions=1) == {}


def test_the_end_that_counts_is_the_first_that_is_enough() -> None:
    rows = (
        away(THIRD, END + 60.0, "cpu"),
        away(SECOND, END, "cpu", "gpu"),
    )
    assert maintenance_ends(waiting(3, *rows)) == {7: END}
    assert maintenance_ends(waiting(4, *rows)) == {7: END + 60.0}
    assert maintenance_ends(waiting(5, *rows)) == {}
    assert maintenance_ends(waiting(2, *rows)) == {}
    assert maintenance_ends(waiting(3, *rows, kinds="gpu")) == {}
    limited = waiting(3, *rows)
    (job,) = limited.jobs
    quota = ProjectQuota(limit_by_kind={"cpu": 2})
    limited = replace(limited, jobs=(replace(job, project=1),), projects={1: quota})
    assert maintenance_ends(limited) == {}
    assert "nodes that take work have 2. No other" in decide(waiting(5, *rows), "fifo").reasons[7]


def test_a_job_that_others_keep_waiting_is_told_of_maintenance() -> None:
    running = job_make(1, least=2, most=2)
    snapshot = replace(
        snapshot_make(
            accelerators_make("cpu cpu"), running, job_make(2, most=2), held={1: (1, 2)}, now=NOW
        ),
        maintenance=(away(SECOND, END, "cpu", "cpu", "cpu"),),
    )
    reasons = decide(snapshot, "fifo").reasons
    note = "Maintenance until 2026-03-02 20:00 UTC keeps 3 accelerators that it accepts from new"
    assert note in reasons[2]
    assert "maintenance" not in reasons[1]
    others = replace(snapshot, maintenance=(away(SECOND, END, "gpu"),))
    kinds = replace(
        others, jobs=tuple(replace(j, accepted_kinds=frozenset({"cpu"})) for j in others.jobs)
    )
    assert "maintenance" not in decide(kinds, "fifo").reasons[2]


def test_accelerators_are_back_at_the_end_in_order() -> None:
    """The first node is closed ahead of its maintenance; it still has its accelerators."""
    there = accelerators_make("cpu", "cpu")
    (closing, _) = there
    snapshot = replace(
        snapshot_make(there, job_make(7), now=END),
        cordoned=frozenset({FIRST, SECOND}),
        maintenance=(
            Maintenance(FIRST, END, (closing,)),
            away(THIRD, END, "cpu"),
            away(4, END + 1.0),
        ),
    )
    over = maintenance_over(snapshot)
    assert [one.node_id for one in over.accelerators] == [FIRST, SECOND, THIRD]
    assert over.cordoned == {SECOND}
    assert [one.node_id for one in over.maintenance] == [4]
    assert maintenance_over(over) is over
