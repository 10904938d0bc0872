"""Which accelerators are kept for jobs that lost trainers, and what policies make of it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.scheduling.replacements import replacements_kept
from controlplane.core.values.types import Allocation, Job, Plan, Snapshot
from tests.core.snapshots import accelerators_make, job_make, per_policy, snapshots

TWO_NODES = accelerators_make("cpu cpu", "cpu cpu")  # 1 and 2, 3 and 4


def kept_for(
    *short: tuple[Job, tuple[int, ...], frozenset[int]],
    accelerators=TWO_NODES,
    others: frozenset[int] = frozenset(),
    releasing: frozenset[int] = frozenset(),
    excluded: dict[int, frozenset[int]] | None = None,
) -> dict[int, tuple[int, ...]]:
    snapshot = Snapshot(
        now=0.0,
        seed=0,
        accelerators=accelerators,
        jobs=tuple(job for job, _, _ in short),
        held={99: tuple(others), **{job.id: held for job, held, _ in short if held}},
        releasing=releasing,
        excluded=excluded or {},
    )
    found = replacements_kept(snapshot, {job.id: lost for job, _, lost in short})
    for job, held, _ in short:
        assert found.held.get(job.id, ()) == held + found.kept.get(job.id, ())
    return dict(found.kept)


def short_job(
    job: Job, held: tuple[int, ...] = (), lost: frozenset[int] = frozenset()
) -> tuple[Job, tuple[int, ...], frozenset[int]]:
    return job, held, lost


FOUR = job_make(1, least=4, most=4)
TWO = job_make(2, least=2, most=2)


class TestWhatIsKept:
    def test_what_was_lost(self) -> None:
        assert kept_for(short_job(TWO, (1,), frozenset({4}))) == {2: (4,)}

    def test_something_free_before_what_is_being_freed(self) -> None:
        row = short_job(TWO, (1,), frozenset({2}))
        assert kept_for(row, releasing=frozenset({2})) == {2: (3,)}
        assert kept_for(row, releasing=frozenset({2, 3, 4})) == {2: (2,)}

    def test_something_on_a_node_of_the_job(self) -> None:
        assert kept_for(short_job(TWO, (3,))) == {2: (4,)}

    def test_nothing_that_others_hold_or_the_job_shuns(self) -> None:
        row = short_job(TWO, (1,))
        assert kept_for(row, others=frozenset({2, 3})) == {2: (4,)}
        assert kept_for(row, others=frozenset({2}), excluded={2: frozenset({3})}) == {2: (4,)}

    def test_nothing_of_a_kind_that_the_job_does_not_have(self) -> None:
        mixed = accelerators_make("cpu cpu", "gpu gpu")
        others = frozenset({2})
        row = short_job(TWO, (1,))
        assert kept_for(row, accelerators=mixed, others=others) == {}
        mixing = dataclasses.replace(TWO, allow_mixed_kinds=True)
        assert kept_for(short_job(mixing, (1,)), accelerators=mixed, others=others) == {2: (3,)}
        only_cpu = dataclasses.replace(mixing, accepted_kinds=frozenset({"cpu"}))
        assert kept_for(short_job(only_cpu, (1,)), accelerators=mixed, others=others) == {}

    def test_nothing_if_it_is_not_enough(self) -> None:
        assert kept_for(short_job(FOUR, (1, 2)), others=frozenset({3})) == {}

    def test_nothing_for_a_job_that_has_enough(self) -> None:
        assert kept_for(short_job(TWO, (1, 2), frozenset({3}))) == {}

    def test_only_what_it_lost_for_a_job_without_state(self) -> None:
        assert kept_for(short_job(TWO, (), frozenset({2, 3}))) == {2: (2, 3)}
        assert kept_for(short_job(TWO, (), frozenset({2}))) == {}

    def test_the_heavier_then_the_older_job_is_served(self) -> None:
        light = short_job(job_make(3, least=2, most=2, weight=1.0), (1,))
        heavy = short_job(job_make(4, least=2, most=2, weight=2.0), (3,))
        assert kept_for(light, heavy, others=frozenset({2})) == {4: (4,)}
        older = short_job(job_make(5, least=2, most=2, weight=1.0), (3,))
        late = (dataclasses.replace(light[0], submitted_at=9.0), *light[1:])
        assert kept_for(late, older, others=frozenset({2})) == {5: (4,)}


class TestPlan:
    """A job of at least four has trainers on 1 to 3; 4 is kept for it. Another one may wait."""

    snapshot = Snapshot(
        now=0.0,
        seed=0,
        accelerators=TWO_NODES,
        jobs=(FOUR, TWO),
        held={1: (1, 2, 3, 4)},
        kept={1: (4,)},
    )

    def test_the_job_gets_it_at_once(self) -> None:
        (resize,) = plan_between(self.snapshot, Allocation({1: (1, 2, 3, 4)})).resizes
        assert (resize.held, resize.wanted) == ((1, 2, 3), (1, 2, 3, 4))

    def test_it_waits_with_the_rest_while_that_is_being_freed(self) -> None:
        snapshot = dataclasses.replace(self.snapshot, releasing=frozenset({4}))
        plan = plan_between(snapshot, Allocation({1: (1, 2, 3, 4)}))
        assert (plan.resizes, plan.waiting) == ((), {1: (4,)})

    def test_a_job_that_the_policy_prefers_gets_it_at_once(self) -> None:
        plan = plan_between(self.snapshot, Allocation({2: (3, 4)}))
        assert [(row.job_id, row.wanted) for row in plan.resizes] == [(1, ())]
        small = dataclasses.replace(TWO, min_accelerators=1, max_accelerators=1)
        snapshot = dataclasses.replace(self.snapshot, jobs=(FOUR, small))
        (resize,) = plan_between(snapshot, Allocation({2: (4,)})).resizes
        assert (resize.job_id, resize.wanted) == (2, (4,))


@pytest.mark.parametrize("name", sorted(POLICIES))
@per_policy
@given(snapshot=snapshots())
def test_every_policy_decides_as_if_nothing_had_been_lost(name: str, snapshot: Snapshot) -> None:
    """Every job that holds something is at its minimum, and has lost its last trainer."""
    at_minimum = tuple(
        dataclasses.replace(job, min_accelerators=len(snapshot.held.get(job.id, "?")))
        for job in snapshot.jobs
    )
    whole = dataclasses.replace(snapshot, jobs=at_minimum)
    kept = {job_id: row[-1:] for job_id, row in snapshot.held.items()}
    short = dataclasses.replace(whole, kept=kept)
    assert _sizes(decide(short, name)) == _sizes(decide(whole, name))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_is_about_to_be_free_for_a_lost_trainer_is_waited_for(name: str) -> None:
    """The job is at its minimum; accelerator 4 is kept for it and still held by another job."""
    running = dataclasses.replace(
        FOUR, running_since=0.0, changed_at=0.0, most_accelerators=4, attained_accelerator_s=400.0
    )
    short = Snapshot(
        now=100.0,
        seed=0,
        accelerators=TWO_NODES,
        jobs=(running,),
        held={1: (1, 2, 3, 4)},
        kept={1: (4,)},
        releasing=frozenset({4}),
    )
    plan = decide(short, name)
    assert (plan.resizes, plan.waiting) == ((), {1: (4,)})
    assert "Other jobs still have to leave 1 of these 4" in plan.reasons[1]
    freed = dataclasses.replace(short, releasing=frozenset(), carried=plan.carried)
    (resize,) = decide(freed, name).resizes
    assert (resize.job_id, set(resize.wanted)) == (1, {1, 2, 3, 4})


def _sizes(plan: Plan) -> dict[int, int]:
    assert plan.allocation is not None
    return {job_id: len(row) for job_id, row in plan.allocation.accelerators.items()}
