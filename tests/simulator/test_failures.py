"""Nodes that are lost and come back, by hand and at random."""

from __future__ import annotations

import math

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.plan import Plan
from controlplane.simulator import Failures, ResizeCosts, StuckError, cluster_make, simulate
from controlplane.simulator.engine import event_clock as run_module
from controlplane.simulator.engine import run
from controlplane.simulator.engine.failures import NodeEvent, NodeEventKind, Outages
from controlplane.simulator.options import failures_parse
from tests.simulator.worlds import job, workload

COSTS = ResizeCosts(start_s=10.0, pause_s=2.0, growth_s=5.0, release_s=3.0)
FAILURES = Failures(mtbf_s=1e9, mttr_s=1e9, lease_s=20.0, checkpoint_s=50.0)


@pytest.fixture
def outages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, float]]:
    """Give a list to fill with outages: (silent at, node, back at). The lease is 20 s."""
    rows: list[tuple[float, int, float]] = []

    class Planned(Outages):
        def __init__(self, nodes: object, failures: Failures, seed: int) -> None:
            super().__init__((), failures, seed)
            for at, node, back_at in rows:
                turns = (
                    (at, NodeEventKind.SILENT),
                    (at + 20.0, NodeEventKind.LOST),
                    (back_at, NodeEventKind.BACK),
                )
                self._events += [NodeEvent(when, node, turn) for when, turn in turns]
            self._events.sort()

        def _next_loss(self, node: int, since: float) -> None:
            pass

    monkeypatch.setattr(run_module, "Outages", Planned)
    return rows


def ended_at(
    *jobs: object,
    work: float = 400.0,
    nodes: int = 2,
    policy: str = "weighted_fair",
    round_s: float = 10_000.0,
) -> list[float]:
    """Simulate on nodes of two accelerators; gives when each job ended."""
    report = simulate(
        workload(*jobs, work=work),  # type: ignore[arg-type]
        cluster_make(nodes, 2),
        policy,
        costs=COSTS,
        failures=FAILURES,
        round_s=round_s,
    )
    return [row.ended_at for row in report.jobs]


def test_survivors_go_on_from_memory(outages: list[tuple[float, int, float]]) -> None:
    """4 a second from 10 s to 30 s, nothing until 50 s and the pause, then 320 at 2 a second."""
    outages.append((30.0, 1, 1000.0))
    assert ended_at(job("a")) == pytest.approx([52.0 + 320.0 / 2])


def test_a_node_that_comes_back_is_used_again(outages: list[tuple[float, int, float]]) -> None:
    """As above until 100 s, 96 more; then both come up while it does 10, and it pauses."""
    outages.append((30.0, 1, 100.0))
    left = 400.0 - 80.0 - (105.0 - 52.0) * 2
    assert ended_at(job("a")) == pytest.approx([107.0 + left / 4])


@pytest.mark.parametrize(("back_at", "num_resizes"), [(1000.0, 1), (100.0, 2)])
def test_a_loss_is_a_resize_of_who_goes_on(
    outages: list[tuple[float, int, float]], back_at: float, num_resizes: int
) -> None:
    """As in the product, where policies see it; a node that is back makes another one."""
    outages.append((30.0, 1, back_at))
    report = simulate(
        workload(job("a"), work=400.0), cluster_make(2, 2), "weighted_fair",
        costs=COSTS, failures=FAILURES, round_s=10_000.0,
    )  # fmt: skip
    assert [row.num_resizes for row in report.jobs] == [num_resizes]


def test_who_loses_everything_starts_anew_from_a_checkpoint(
    outages: list[tuple[float, int, float]],
) -> None:
    """Two accelerators of node 0 from 10 s on; saved at 50 s and 100 s, when 180 are done.

    Silent at 130 s, lost at 150 s, the first step on the other node at 160 s.
    """
    outages.append((130.0, 0, 1000.0))
    assert ended_at(job("a", most=2)) == pytest.approx([160.0 + (400.0 - 180.0) / 2])


def test_a_job_that_had_not_begun_loses_nothing(outages: list[tuple[float, int, float]]) -> None:
    """Silent at 5 s, before its first step: at 25 s it starts on the other node."""
    outages.append((5.0, 0, 1000.0))
    assert ended_at(job("a", most=2)) == pytest.approx([25.0 + 10.0 + 400.0 / 2])


def test_too_few_survivors_hold_their_state(outages: list[tuple[float, int, float]]) -> None:
    """It needs all four: 80 done by 30 s stay; the node is back at 200 s, comes up, 2 s pause."""
    outages.append((30.0, 1, 200.0))
    assert ended_at(job("a", least=4)) == pytest.approx([207.0 + 320.0 / 4])


def test_what_survivors_lack_is_kept_for_them(outages: list[tuple[float, int, float]]) -> None:
    """80 done by 30 s; at 52 s it is given two more, before the job that is more important."""
    outages.append((30.0, 1, 1000.0))
    jobs = job("a", least=4), job("b", at=20.0, least=4, weight=2.0)
    a, b = ended_at(*jobs, nodes=3, policy="priority", round_s=1.0)
    assert a == pytest.approx(59.0 + 320.0 / 4)
    assert b == pytest.approx(a + 3.0 + 10.0 + 400.0 / 4)


@pytest.mark.parametrize(
    ("back_at", "a_at", "b_at"), [(200.0, 200.0, 223.0), (211.0, 223.0, 211.0)]
)
def test_a_node_that_is_soon_back_is_kept_for_who_lost_it(
    outages: list[tuple[float, int, float]], back_at: float, a_at: float, b_at: float
) -> None:
    """Lost at 150 s with all but 180 of a. At 223 s the other node is free for a or b.

    Job b is more important and waits since 20 s.
    """
    outages.append((130.0, 0, back_at))
    rows = (("a", 0.0, 1.0), ("c", 10.0, 9.0), ("b", 20.0, 2.0))
    jobs = [job(name, at, most=2, least=2, weight=weight) for name, at, weight in rows]
    assert ended_at(*jobs, policy="priority") == pytest.approx(
        [a_at + 10.0 + (400.0 - 180.0) / 2, 20.0 + 400.0 / 2, b_at + 10.0 + 400.0 / 2]
    )


@pytest.mark.parametrize("round_s", [1.0, 60.0])
def test_a_wait_for_a_node_is_not_for_ever(
    outages: list[tuple[float, int, float]], round_s: float
) -> None:
    """Three hours without a node, however often the policy decides: 80 done, then as above."""
    outages.append((30.0, 1, 10_800.0))
    jobs = workload(job("a", least=4))
    options = {"costs": COSTS, "failures": FAILURES, "round_s": round_s}
    report = simulate(jobs, cluster_make(2, 2), "goodput_fair", **options)
    assert report.jobs[0].ended_at == pytest.approx(10_807.0 + 320.0 / 4)


def test_who_is_elsewhere_does_not_notice(outages: list[tuple[float, int, float]]) -> None:
    """Each has a node; that of b is lost with all but 180, and b waits until a has ended."""
    outages.append((130.0, 1, 1000.0))
    a, b = ended_at(job("a", most=2, least=2), job("b", most=2, least=2))
    assert a == pytest.approx(10.0 + 200.0)
    assert b == pytest.approx(a + 3.0 + 10.0 + (400.0 - 180.0) / 2)


@pytest.mark.parametrize(
    ("silent_at", "expected"), [(211.0, 310.0), (215.0, 310.0), (219.0, 333.0)]
)
def test_growth_onto_a_lost_node_is_given_up(
    outages: list[tuple[float, int, float]], silent_at: float, expected: float
) -> None:
    """The other job ends at 210 s, its node is free at 213 s, a takes part there from 218 s on.

    Silent before that, a goes on with two as it began at 110 s: 400 / 2. Silent at 219 s, in the
    pause, it has done 216 and waits for the end of the lease: 241 + 184 / 2.
    """
    outages.append((silent_at, 0, 1000.0))
    b, a = ended_at(job("b", most=2), job("a", 100.0))
    assert (b, a) == (pytest.approx(210.0), pytest.approx(expected))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nothing_is_given_on_nodes_that_are_away(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes fail every few minutes: all jobs end, and no plan names what is not there."""
    original = run_module.EventRun._apply
    num_away = 0

    def watched(self: run_module.EventRun, plan: Plan) -> None:
        nonlocal num_away
        away = {one for node in self._silent for one in self._nodes[node]} | self._lost
        num_away += bool(away)
        for resize in plan.resizes:
            assert away.isdisjoint(set(resize.wanted) - set(resize.held))
        original(self, plan)
        for holding in self._live.values():
            assert self._lost.isdisjoint(holding.job.held)
            assert self._lost.isdisjoint(holding.job.active)

    monkeypatch.setattr(run_module.EventRun, "_apply", watched)
    jobs = workload(*(job(f"j{n}", 40.0 * n, most=1 + n % 4) for n in range(12)), work=300.0)
    failures = Failures(mtbf_s=400.0, mttr_s=60.0, lease_s=20.0, checkpoint_s=60.0)
    report = simulate(jobs, cluster_make(3, 2), policy, costs=COSTS, failures=failures)
    assert len(report.jobs) == 12
    assert num_away > 0
    calm = simulate(jobs, cluster_make(3, 2), policy, costs=COSTS)
    assert report.mean_jct_s > calm.mean_jct_s


def test_losses_are_drawn_by_the_seed() -> None:
    def drawn(seed: int) -> list[NodeEvent]:
        found = Outages(range(4), Failures(1000.0, 100.0), seed)
        return [event for at in range(0, 40_000, 100) for event in found.due(float(at))]

    events = drawn(1)
    assert events == drawn(1)
    assert events != drawn(2)
    silent = [event for event in events if event.turn is NodeEventKind.SILENT]
    # four nodes that stay for 1000 s and are away for 20 + 100 on average
    assert len(silent) == pytest.approx(4 * 40_000 / 1120.0, rel=0.25)
    assert Outages(range(4), None, 1).next_at == math.inf


def test_the_option_is_read() -> None:
    assert failures_parse(None) is None
    assert failures_parse("48,0.5") == Failures(48 * 3600.0, 1800.0)
    for text in ("48", "0,1", "a,b", "1,2,3"):
        with pytest.raises(ValueError, match="--failures"):
            failures_parse(text)
    with pytest.raises(ValueError, match="--rules own"):
        simulate(workload(job("a")), cluster_make(1, 4), "fifo", rules="pollux", failures=FAILURES)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        ("fifo", 0.1),
        ("goodput_fair", 8.0),
        pytest.param("weighted_fair", 0.1, marks=pytest.mark.nightly),
    ],
)
def test_work_lost_faster_than_done_ends_with_the_option(
    policy: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every start takes 10 s, and no node stays for so long: no step is ever saved."""
    for module in (run, run_module):
        monkeypatch.setattr(module, "MOST_LOSSES", 100)
    jobs = workload(*(job(f"j{n}", 10.0 * n, most=4) for n in range(3)), work=1e6)
    failures = Failures(seconds, seconds, lease_s=20.0, checkpoint_s=300.0)
    with pytest.raises(StuckError, match="--failures: in 100 losses of nodes 3 jobs did less than"):
        simulate(jobs, cluster_make(3, 2), policy, costs=COSTS, failures=failures)


@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("round_s", [60.0, 86_400.0])
def test_nodes_that_do_not_come_back_end_with_the_option(
    outages: list[tuple[float, int, float]], least: int, round_s: float
) -> None:
    """All nodes are lost for a thousand years, or one that the only job needs beside the other."""
    outages += [(30.0, node, 3e10) for node in range(2 if least == 1 else 1)]
    jobs = workload(job("a", least=least))
    options = {"costs": COSTS, "failures": FAILURES, "round_s": round_s}
    with pytest.raises(
        StuckError, match=r"--failures: under goodput_fair these .* never end: a; g"
    ):
        simulate(jobs, cluster_make(2, 2), "goodput_fair", **options)


def test_many_losses_are_no_reason_to_stop() -> None:
    """A thousand losses in a day, and the work is done between them."""
    jobs = workload(*(job(f"j{n}", most=4) for n in range(3)), work=2e5)
    failures = Failures(450.0, 50.0, lease_s=20.0, checkpoint_s=60.0)
    report = simulate(jobs, cluster_make(6, 2), "weighted_fair", costs=COSTS, failures=failures)
    assert all(row.ended_at > 86_400.0 / 2 for row in report.jobs)
