"""Dry run of a submission: the policy's decision for the job now, without changing any state."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from django.contrib.auth.models import User

from controlplane.core.expected_starts import expected_starts, unknown_starts
from controlplane.core.values import types
from jobs.models import Job, Project
from jobs.selectors.access import text_for
from jobs.selectors.cluster import remaining_work
from jobs.selectors.estimates.batch_sizes import accelerator_sizes
from jobs.selectors.estimates.job import known_read
from jobs.selectors.estimates.step_times import step_times_read
from jobs.selectors.limits import share_factors
from jobs.selectors.next_cycle import decide_timed, next_cycle
from jobs.submission import Submission

#: Id of the job in question, above every id of the database.
_ASKED_JOB_ID = 2**62


class OutlookKind(StrEnum):
    """When the job would get accelerators."""

    NOW = "now"
    AFTER_RELEASE = "after_release"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Outlook:
    """Decision of the policy.

    Attributes:
        accelerators: kind -> number of accelerators at the start; empty for `LATER`.
        num_shrunk: jobs that would give up accelerators for it.
        reason: the policy's explanation, as the user may read it.
        num_stopped: those of `num_shrunk` that would give up all.
    """

    kind: OutlookKind
    accelerators: dict[str, int]
    num_shrunk: int
    reason: str
    num_stopped: int = 0


def submission_outlook(submission: Submission, now: datetime.datetime, user: User) -> Outlook:
    """Return the policy's decision if the user's job were valid and in the queue now."""
    snapshot, policy = next_cycle(now)
    # An unsaved job, to look up the speed of the same code.
    code_sha256 = hashlib.sha256(submission.code).hexdigest()
    job = Job(pk=_ASKED_JOB_ID, code_sha256=code_sha256, **submission.columns())
    step_times = step_times_read([job])[job.pk]
    project_id = (
        Project.objects.filter(name=submission.project).values_list("pk", flat=True).first()
    )
    known = known_read([job], {job.pk: step_times}, accelerator_sizes())[job.pk]
    asked = types.Job(
        id=_ASKED_JOB_ID,
        submitted_at=now.timestamp(),
        weight=float(submission.priority),
        num_virtual_nodes=submission.num_virtual_nodes,
        min_accelerators=submission.min_accelerators,
        max_accelerators=submission.max_accelerators,
        accepted_kinds=frozenset(submission.accepted_kinds),
        allow_mixed_kinds=submission.allow_mixed_kinds,
        global_batch_size=submission.global_batch_size,
        remaining_examples=remaining_work(job, in_epoch=0),
        step_times=step_times.by_kind if submission.allow_mixed_kinds else {},
        sync_time=step_times.sync if submission.allow_mixed_kinds else None,
        performance=known.performance,
        tier=submission.tier,
        user=user.pk,
        project=project_id,
        user_factor=share_factors().get(user.pk, 1.0),
    )
    snapshot = dataclasses.replace(snapshot, jobs=(*snapshot.jobs, asked))
    plan, num_decisions = decide_timed(snapshot, policy)
    kinds = {accelerator.id: accelerator.kind for accelerator in snapshot.accelerators}
    shrunk = [resize for resize in plan.resizes if len(resize.wanted) < len(resize.held)]
    reason = text_for(user, plan.reasons.get(_ASKED_JOB_ID, ""))
    assert plan.allocation is not None
    if given := plan.allocation.accelerators.get(_ASKED_JOB_ID):
        is_waiting = _ASKED_JOB_ID in plan.waiting
        kind = OutlookKind.AFTER_RELEASE if is_waiting else OutlookKind.NOW
        stopped = sum(not resize.wanted for resize in shrunk)
        return Outlook(kind, _by_kind(given, kinds), len(shrunk), reason, stopped)
    starts = expected_starts(snapshot, plan, policy, num_decisions)
    found = starts.get(_ASKED_JOB_ID) or unknown_starts(snapshot, plan, starts).get(_ASKED_JOB_ID)
    return Outlook(OutlookKind.LATER, {}, 0, reason if found is None else f"{reason} {found}")


def _by_kind(accelerator_ids: tuple[int, ...], kinds: dict[int, str]) -> dict[str, int]:
    return dict(Counter(kinds[accelerator_id] for accelerator_id in accelerator_ids))
