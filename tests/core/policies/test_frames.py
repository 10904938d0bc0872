"""Frames of policies decide exactly as their plain form does."""

from __future__ import annotations

import inspect
from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.policies import POLICIES, SHARING
from controlplane.core.policies.common.fair_fill import UserDemand, demands_fill, progressive_fill
from controlplane.core.values.tiers import TIERS, Tier
from controlplane.core.values.types import Job, Snapshot
from tests.core.policies import plain_frames
from tests.core.snapshots import job_make, snapshots

#: Policies that share accelerators (most of the draws: cheap ones), share time, and know no users.
NAMES = ("fifo", "gavel", "goodput_fair", *["weighted_fair"] * 4)

CLAIMS = st.sampled_from([0.1, 1 / 3, 1.0, 1.0, 2.0, 3.0, 10.0, 950.0])


@st.composite
def crowds(draw: st.DrawFn, tiers: tuple[Tier, ...]) -> Snapshot:
    """Draw clusters with jobs of up to three users, and of nobody known."""
    snapshot = draw(snapshots(tiers=tiers))
    factors = {user: draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])) for user in (1, 2, 3)}
    is_dense = draw(st.booleans())
    jobs = []
    for job in snapshot.jobs:
        if is_dense and job.id not in snapshot.held:  # the minima of a user exceed the user's share
            job = replace(job, min_accelerators=3, max_accelerators=8, accepted_kinds=frozenset())
        user = draw(st.sampled_from([None, 1, 1, 1, 1, 2, 3]))
        part = draw(st.sampled_from([1.0, 1.0, 0.25]))
        jobs.append(
            replace(job, user=user, user_factor=factors.get(user or 0, 1.0), share_part=part)
        )
    resizing = frozenset(
        job.id for job in jobs if snapshot.held.get(job.id) and draw(st.booleans())
    )
    return replace(snapshot, jobs=tuple(jobs), resizing=resizing)


@given(
    snapshot=st.sampled_from([(Tier.NORMAL,), TIERS]).flatmap(crowds),
    name=st.sampled_from(NAMES),
)
def test_decisions_are_those_of_the_plain_frames(snapshot: Snapshot, name: str) -> None:
    """Shares, reasons and the carried state, now and in the next decision."""
    plain = plain_frames.framed(inspect.unwrap(POLICIES[name]), SHARING.get(name))
    for _ in range(2):
        expected, found = plain(snapshot), POLICIES[name](snapshot)
        assert found == expected
        assert [*found.reasons] == [*expected.reasons]
        assert [*map(str, found.reasons.values())] == [*map(str, expected.reasons.values())]
        snapshot = replace(snapshot, carried=found.carried, now=snapshot.now + 30.0)


@given(
    rows=st.lists(
        st.tuples(CLAIMS, st.integers(0, 40), st.sampled_from([0.0, 1.0])), min_size=1, max_size=8
    ),
    capacity=st.integers(0, 120),
    scale=st.sampled_from([1, 1, 50]),
)
def test_demands_are_filled_as_one_by_one(
    rows: list[tuple[float, int, float]], capacity: int, scale: int
) -> None:
    jobs = [
        Job(number, at, claim, max(most * scale, 1), 0, most * scale)
        for number, (claim, most, at) in enumerate(rows)
    ]
    demands = [UserDemand(job.weight, job.max_accelerators, job) for job in jobs]
    expected = progressive_fill(jobs, capacity * scale)
    assert demands_fill(demands, capacity * scale) == list(expected.values())


@given(
    claims=st.lists(CLAIMS, min_size=2, max_size=30),
    capacity=st.sampled_from([97, 10_000]),
)
def test_demands_get_their_claims_to_within_one(claims: list[float], capacity: int) -> None:
    """By exact arithmetic: nobody could have the last accelerator of another one for less."""
    demands = [
        UserDemand(claim, capacity, job_make(number))
        for number, claim in enumerate(claims, start=1)
    ]
    counts = demands_fill(demands, capacity)
    assert sum(counts) == capacity
    levels = [
        Fraction(count) / Fraction(claim) for count, claim in zip(counts, claims, strict=True)
    ]
    nexts = [
        Fraction(count + 1) / Fraction(claim) for count, claim in zip(counts, claims, strict=True)
    ]
    assert max(levels) <= min(nexts) * (1 + Fraction(1, 10**12))


@given(snapshot=snapshots(), part=st.sampled_from([0.25, 1.0, 3.0]))
def test_a_job_with_another_part_differs_in_nothing_else(snapshot: Snapshot, part: float) -> None:
    for job in snapshot.jobs:
        assert job.with_share_part(part) == replace(job, share_part=part)
        assert job.share_part == 1.0
