"""Projects with quotas, and jobs in them, for tests of what policies make of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Decision, Job, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    after,
    snapshots,
)

#: Every policy draws its own; many more in `make nightly`.
fewer = settings(max_examples=settings.default.max_examples // 8)
EIGHT = accelerators_make("cpu cpu cpu cpu", "cpu cpu cpu cpu")
VISION, SPEECH = 1, 2
quotas = st.builds(
    ProjectQuota,
    guaranteed=st.integers(0, 6),
    limit=st.sampled_from([None, 0, 1, 2, 4, 8]),
    user_limit=st.sampled_from([None, 1, 3]),
    guaranteed_by_kind=st.dictionaries(st.sampled_from(["slow", "fast"]), st.integers(0, 4)),
    limit_by_kind=st.dictionaries(st.sampled_from(["slow", "fast"]), st.integers(0, 4)),
).map(lambda one: replace(one, guaranteed=min(one.guaranteed, one.limit or one.guaranteed)))


@st.composite
def in_projects(draw: st.DrawFn, tiers: Sequence[Tier] = (Tier.NORMAL,)) -> Snapshot:
    """Draw a snapshot whose jobs are spread over users and two projects with quotas."""
    snapshot = draw(snapshots(tiers=tiers))
    jobs = tuple(
        replace(
            job,
            project=draw(st.sampled_from([None, VISION, SPEECH])),
            user=draw(st.sampled_from([None, 1, 2])),
        )
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs, projects={VISION: draw(quotas), SPEECH: draw(quotas)})


def fast(job: Job, project: int | None = None, user: int | None = None) -> Job:
    """Tell a policy how fast a job is, how much is left to do, and whose it is."""
    known = replace(job, performance=Speed(company=0.05), remaining_examples=1e6)
    return replace(known, project=project, user=user)


def given_to(snapshot: Snapshot, decision: Decision, project: int | None) -> int:
    ids = {job.id for job in snapshot.jobs if job.project == project}
    return sum(share.total for job_id, share in decision.shares.items() if job_id in ids)


def settled(snapshot: Snapshot, name: str, num_decisions: int = 6) -> Snapshot:
    """Decide some times, a while apart."""
    for _ in range(num_decisions):
        snapshot = after(snapshot, decide(snapshot, name))
        snapshot = replace(snapshot, now=snapshot.now + 400.0)
    return snapshot


def held(snapshot: Snapshot) -> dict[int, int]:
    return {job_id: len(row) for job_id, row in snapshot.held.items() if row}
