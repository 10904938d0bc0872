"""One action on many jobs: each job changes, or is refused by itself with a code."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.core.values.tiers import Tier
from jobs.exceptions import (
    ControlPlaneError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
)
from jobs.models import Job
from jobs.selectors.access import jobs_changeable_by, jobs_visible_to
from jobs.selectors.limits import limits_for
from jobs.services.lifecycle.events import user_actor
from jobs.services.lifecycle.transitions import jobs_lock
from jobs.services.submission.job_actions import reason_check
from jobs.services.submission.job_changes import (
    Refusals,
    jobs_cancel,
    jobs_describe,
    jobs_reprioritise,
    standings_stale,
)
from jobs.services.submission.standing import UNCHANGED, Standing, standing_within

#: Most jobs of one action.
JOBS_LIMIT = 200


class JobsAction(StrEnum):
    """Action on many jobs."""

    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"
    TAG = "tag"
    UNTAG = "untag"


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """Priority and tier to give to a job, and those that it must have until then."""

    given: Standing = UNCHANGED
    expected: Standing = UNCHANGED


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """Result of an action on one job.

    Attributes:
        error: as of the same action on one job; None if it is done.
        is_changed: false if the job was like that already.
        former: priority and tier before the action, as far as it changed them.
    """

    job_id: int
    error: ControlPlaneError | None = None
    is_changed: bool = False
    former: Standing = UNCHANGED

    @property
    def code(self) -> str:
        """Code of the refusal; empty if there is none."""
        return self.error.code if self.error else ""

    @property
    def detail(self) -> str:
        """Text of the refusal; empty if there is none."""
        if self.error is None:
            return ""
        lines = [text for of_field in self.error.fields.values() for text in of_field]
        return " ".join(lines) or self.error.detail


def jobs_act(
    user: User,
    action: JobsAction,
    changes: Mapping[int, PriorityChange],
    now: datetime.datetime,
    *,
    tag: str = "",
    reason: str = "",
    is_all_or_none: bool,
) -> list[ActionOutcome]:
    """Act on jobs together, in few queries; a repeated call changes nothing more.

    Args:
        changes: by job.
        is_all_or_none: no job changes if one is refused.

    Returns:
        The outcomes in the order of the jobs' ids.

    Raises:
        ControlPlaneError: with `is_all_or_none`, the first refusal, with the texts of all.
    """
    assert len(changes) <= JOBS_LIMIT
    refused = _not_theirs(user, changes)
    with transaction.atomic():
        # Locked before they are compared: nobody else's change counts as this one.
        jobs = {job.pk: job for job in jobs_lock(changes.keys() - refused.keys())}
        former = {job.pk: (job.revision, job.priority, job.tier) for job in jobs.values()}
        expected = {job_id: change.expected for job_id, change in changes.items()}
        refused |= standings_stale(jobs.values(), expected)
        acting = [job for job in jobs.values() if job.pk not in refused]
        refused |= _act(user, action, acting, changes, now, tag=tag, reason=reason)
        outcomes = [
            ActionOutcome(job_id, refused[job_id])
            if job_id in refused
            else _outcome(jobs[job_id], *former[job_id])
            for job_id in sorted(changes)
        ]
        if is_all_or_none:
            _refusals_raise(outcomes)
    return outcomes


def jobs_change_check(user: User, job_ids: Collection[int]) -> None:
    """Refuse a request with jobs that a user may not change.

    Raises:
        ControlPlaneError: the first refusal, with the texts of all.
    """
    refused = _not_theirs(user, job_ids)
    _refusals_raise([ActionOutcome(job_id, refused[job_id]) for job_id in sorted(refused)])


def _not_theirs(user: User, job_ids: Collection[int]) -> Refusals:
    visible, changeable = (
        set(jobs.filter(pk__in=job_ids).values_list("pk", flat=True))
        for jobs in (jobs_visible_to(user), jobs_changeable_by(user))
    )
    unseen = NotFoundError("There is no such job, or it is not yours.")
    seen = ForbiddenError("You may see this job, not change it; operators of its project may.")
    return {
        job_id: seen if job_id in visible else unseen
        for job_id in job_ids
        if job_id not in visible & changeable
    }


def _outcome(job: Job, revision: int, priority: int, tier: str) -> ActionOutcome:
    former = Standing(
        priority if priority != job.priority else None, Tier(tier) if tier != job.tier else None
    )
    return ActionOutcome(job.pk, None, job.revision != revision, former)


def _refusals_raise(outcomes: Sequence[ActionOutcome]) -> None:
    refused = [(one, one.error) for one in outcomes if one.error]
    if refused:
        first = refused[0][1]
        if "reason" in first.fields:  # one for all jobs
            raise first
        texts = [f"Job {one.job_id}: {one.detail}" for one, _ in refused]
        raise type(first)("No job was changed.", code=first.code, fields={"jobs": texts})


def _act(
    user: User,
    action: JobsAction,
    jobs: Sequence[Job],
    changes: Mapping[int, PriorityChange],
    now: datetime.datetime,
    *,
    tag: str,
    reason: str,
) -> Refusals:
    actor = user_actor(user)
    match action:
        case JobsAction.CANCEL:
            return jobs_cancel(jobs, now, actor=actor, reason=reason)
        case JobsAction.REPRIORITISE:
            given = {job.pk: changes[job.pk].given for job in jobs}
            refused = _not_allowed(user, jobs, given, reason)
            allowed = [job for job in jobs if job.pk not in refused]
            return refused | jobs_reprioritise(allowed, given, now, actor=actor, reason=reason)
        case JobsAction.TAG:
            return jobs_describe(jobs, now, actor=actor, add=[tag], reason=reason)
        case JobsAction.UNTAG:
            return jobs_describe(jobs, now, actor=actor, remove=[tag], reason=reason)


def _not_allowed(
    user: User, jobs: Sequence[Job], given: Mapping[int, Standing], reason: str
) -> Refusals:
    limits = limits_for(user)
    refused: Refusals = {}
    for job in jobs:
        try:
            standing_within(limits, asdict(given[job.pk]))
            reason_check(reason, is_required=job.owner_id != user.pk)
        except InvalidInputError as error:
            refused[job.pk] = error
    return refused


def undo_of(
    action: JobsAction,
    outcomes: Sequence[ActionOutcome],
    changes: Mapping[int, PriorityChange],
    *,
    tag: str = "",
    reason: str = "",
) -> list[Mapping[str, Any]]:
    """Return the actions that undo one; empty for a cancellation, which is for good.

    A priority or tier is given back only while it is still the one that the action gave.
    """
    changed = [outcome for outcome in outcomes if outcome.is_changed]
    because = f"Undo: {reason}"[:500] if reason else "Undo"
    if not changed or action is JobsAction.CANCEL:
        return []
    if action is JobsAction.REPRIORITISE:
        back = [_given_back(one, changes[one.job_id].given) for one in changed]
        return [{"action": action.value, "changes": back, "reason": because}]
    opposite = JobsAction.UNTAG if action is JobsAction.TAG else JobsAction.TAG
    jobs = [outcome.job_id for outcome in changed]
    return [{"action": opposite.value, "jobs": jobs, "tag": tag, "reason": because}]


def _given_back(outcome: ActionOutcome, given: Standing) -> dict[str, Any]:
    values: dict[str, Any] = {"job": outcome.job_id}
    former = outcome.former
    if former.priority is not None:
        values |= {"priority": former.priority, "expected_priority": given.priority}
    if former.tier is not None:
        assert given.tier is not None, "the action has changed the tier"
        values |= {"tier": former.tier.value, "expected_tier": given.tier.value}
    return values
