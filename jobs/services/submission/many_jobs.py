"""One action on many jobs: each job changes by itself, or is refused with a code."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.core.values.tiers import Tier
from jobs.exceptions import ConflictError, ControlPlaneError, StaleVersionError
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
class Outcome:
    """Result of an action on one job.

    Attributes:
        code: empty if it is done; otherwise why not, as in a refusal of the same action on one job.
        is_changed: false if the job was like that already.
        former: priority and tier before the action, as far as it changed them.
    """

    job_id: int
    code: str = ""
    detail: str = ""
    is_changed: bool = False
    former: Standing = UNCHANGED


def jobs_act(
    user: User,
    action: JobsAction,
    job_ids: Sequence[int],
    now: datetime.datetime,
    *,
    priority: int | None = None,
    tier: Tier | None = None,
    expected: Standing = UNCHANGED,
    tag: str = "",
    reason: str = "",
) -> list[Outcome]:
    """Act on jobs one by one; a repeated call changes nothing more.

    Args:
        expected: jobs of another priority or tier are refused.
    """
    assert len(job_ids) <= JOBS_LIMIT
    visible, changeable = (
        set(jobs.filter(pk__in=job_ids).values_list("pk", flat=True))
        for jobs in (jobs_visible_to(user), jobs_changeable_by(user))
    )
    outcomes = []
    for job_id in dict.fromkeys(job_ids):
        if job_id not in visible:
            text = "There is no such job, or it is not yours."
            outcomes.append(Outcome(job_id, "not_found", text))
            continue
        if job_id not in changeable:
            text = "You may see this job, not change it; operators of its project may."
            outcomes.append(Outcome(job_id, "forbidden", text))
            continue
        try:
            given = {"priority": priority, "tier": tier}
            with transaction.atomic():
                # Locked before it is compared, so that nobody else's change counts as this one.
                job = _locked(job_id, expected)
                after = _act(user, action, job, now, given=given, tag=tag, reason=reason)
        except ControlPlaneError as error:
            lines = [text for of_field in error.fields.values() for text in of_field]
            outcomes.append(Outcome(job_id, error.code, " ".join(lines) or error.detail))
        else:
            is_changed = after.revision != job.revision
            outcomes.append(Outcome(job_id, "", "", is_changed, _former(job, after)))
    return outcomes


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
    *,
    given: Mapping[str, Any],
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
                standing_read(user, given),
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
    *,
    given: Standing = UNCHANGED,
    tag: str = "",
    reason: str = "",
) -> list[Mapping[str, Any]]:
    """Return the actions that undo one; empty for a cancellation, which is for good.

    A priority or tier is given back only while it is still the one that the action gave.
    """
    changed = [outcome for outcome in outcomes if outcome.is_changed]
    because = f"Undo: {reason}"[:500] if reason else "Undo"
    if action in (JobsAction.TAG, JobsAction.UNTAG) and changed:
        opposite = JobsAction.UNTAG if action is JobsAction.TAG else JobsAction.TAG
        jobs = [outcome.job_id for outcome in changed]
        return [{"action": opposite.value, "jobs": jobs, "tag": tag, "reason": because}]
    if action is not JobsAction.REPRIORITISE:
        return []
    former: dict[Standing, list[int]] = {}
    for outcome in changed:
        former.setdefault(outcome.former, []).append(outcome.job_id)
    return [
        {
            "action": action.value,
            "jobs": jobs,
            "reason": because,
            **_given_back(standing, given),
        }
        for standing, jobs in former.items()
    ]


def _given_back(former: Standing, given: Standing) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if former.priority is not None:
        values |= {"priority": former.priority, "expected_priority": given.priority}
    if former.tier is not None:
        assert given.tier is not None, "the action has changed the tier"
        values |= {"tier": former.tier.value, "expected_tier": given.tier.value}
    return values
