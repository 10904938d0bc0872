"""One action on many jobs: each job changes by itself, or is refused with a code."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.core.values.tiers import Tier
from jobs.exceptions import (
    ConflictError,
    ControlPlaneError,
    ForbiddenError,
    NotFoundError,
    StaleVersionError,
)
from jobs.models import Job
from jobs.selectors.access import jobs_changeable_by, jobs_visible_to
from jobs.services.lifecycle.events import user_actor
from jobs.services.lifecycle.transitions import job_lock
from jobs.services.submission import job_actions
from jobs.services.submission.standing import UNCHANGED, Standing, standing_read

#: Most jobs of one action.
JOBS_LIMIT = 200


class JobsAction(StrEnum):
    """Action on many jobs."""

    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"
    TAG = "tag"
    UNTAG = "untag"


@dataclass(frozen=True, slots=True)
class Change:
    """Priority and tier to give to a job, and those that it must have until then."""

    given: Standing = UNCHANGED
    expected: Standing = UNCHANGED


@dataclass(frozen=True, slots=True)
class Outcome:
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
    changes: Mapping[int, Change],
    now: datetime.datetime,
    *,
    tag: str = "",
    reason: str = "",
    is_all_or_none: bool = False,
) -> list[Outcome]:
    """Act on jobs one by one in the order of their ids; a repeated call changes nothing more.

    Jobs to be cancelled that never began to start are cancelled together before the others.

    Args:
        changes: by job.
        is_all_or_none: no job changes if one is refused.

    Raises:
        ControlPlaneError: with `is_all_or_none`, the first refusal, with the texts of all.
    """
    assert len(changes) <= JOBS_LIMIT
    visible, changeable = (
        set(jobs.filter(pk__in=changes).values_list("pk", flat=True))
        for jobs in (jobs_visible_to(user), jobs_changeable_by(user))
    )
    outcomes, cancelled = [], set()
    if action is JobsAction.CANCEL and not is_all_or_none:
        cancelled = {
            *job_actions.unstarted_cancel(
                visible & changeable, now, actor=user_actor(user), reason=reason
            )
        }
    with transaction.atomic() if is_all_or_none else nullcontext():
        # Several rows stay locked until the end: in one order, so that no two calls block.
        for job_id, change in sorted(changes.items(), key=lambda one: one[0]):
            if job_id in cancelled:
                outcomes.append(Outcome(job_id, is_changed=True))
                continue
            try:
                if job_id not in visible:
                    raise NotFoundError("There is no such job, or it is not yours.")
                if job_id not in changeable:
                    text = "You may see this job, not change it; operators of its project may."
                    raise ForbiddenError(text)
                with transaction.atomic():
                    # Locked before it is compared: nobody else's change counts as this one.
                    job = _locked(job_id, change.expected)
                    after = _act(user, action, job, now, change.given, tag=tag, reason=reason)
            except ControlPlaneError as error:
                outcomes.append(Outcome(job_id, error))
            else:
                is_changed = after.revision != job.revision
                outcomes.append(Outcome(job_id, None, is_changed, _former(job, after)))
        if is_all_or_none:
            _refusals_raise(outcomes)
    return outcomes


def _refusals_raise(outcomes: Sequence[Outcome]) -> None:
    refused = [(one, one.error) for one in outcomes if one.error]
    if refused:
        first = refused[0][1]
        texts = [f"Job {one.job_id}: {one.detail}" for one, _ in refused]
        raise type(first)("No job was changed.", code=first.code, fields={"jobs": texts})


def _locked(job_id: int, expected: Standing) -> Job:
    job = job_lock(job_id)
    if job is None:
        raise ConflictError("The job is gone.", code="gone")
    for name, value in expected.changes(job).items():
        text = f"Its {name} is {getattr(job, name)} now, not {value}: it stays."
        raise StaleVersionError(text)
    return job


def _act(
    user: User,
    action: JobsAction,
    job: Job,
    now: datetime.datetime,
    given: Standing,
    *,
    tag: str,
    reason: str,
) -> Job:
    actor = user_actor(user)
    match action:
        case JobsAction.CANCEL:
            return job_actions.job_cancel(job.pk, now, actor=actor, reason=reason)
        case JobsAction.REPRIORITISE:
            return job_actions.job_reprioritise(
                job.pk,
                standing_read(user, asdict(given)),
                now,
                actor=actor,
                reason=reason,
                is_reason_required=job.owner_id != user.pk,
            )
        case JobsAction.TAG:
            return job_actions.job_describe(job.pk, now, actor=actor, add=[tag], reason=reason)
        case JobsAction.UNTAG:
            return job_actions.job_describe(job.pk, now, actor=actor, remove=[tag], reason=reason)


def _former(before: Job, after: Job) -> Standing:
    """Return what a job had before, of what is different now."""
    return Standing(
        before.priority if before.priority != after.priority else None,
        Tier(before.tier) if before.tier != after.tier else None,
    )


def undo_of(
    action: JobsAction,
    outcomes: Sequence[Outcome],
    changes: Mapping[int, Change],
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


def _given_back(outcome: Outcome, given: Standing) -> dict[str, Any]:
    values: dict[str, Any] = {"job": outcome.job_id}
    former = outcome.former
    if former.priority is not None:
        values |= {"priority": former.priority, "expected_priority": given.priority}
    if former.tier is not None:
        assert given.tier is not None, "the action has changed the tier"
        values |= {"tier": former.tier.value, "expected_tier": given.tier.value}
    return values
