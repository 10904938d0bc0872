"""One action on many jobs: each job changes by itself, or is refused with a code."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User

from jobs.exceptions import ControlPlaneError
from jobs.models import Job
from jobs.selectors.access import jobs_visible_to, priority_ceiling
from jobs.services.lifecycle.events import user_actor
from jobs.services.submission import job_actions

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
        former_priority: before the action.
    """

    job_id: int
    code: str = ""
    detail: str = ""
    is_changed: bool = False
    former_priority: int = 0


def jobs_act(
    user: User,
    action: JobsAction,
    job_ids: Sequence[int],
    now: datetime.datetime,
    *,
    priority: int = 0,
    tag: str = "",
    reason: str = "",
) -> list[Outcome]:
    """Act on jobs one by one; a repeated call changes nothing more."""
    assert len(job_ids) <= JOBS_LIMIT
    jobs = jobs_visible_to(user).in_bulk(job_ids)
    outcomes = []
    for job_id in dict.fromkeys(job_ids):
        job = jobs.get(job_id)
        if job is None:
            text = "There is no such job, or it is not yours."
            outcomes.append(Outcome(job_id, "not_found", text))
            continue
        try:
            after = _act(user, action, job, now, priority=priority, tag=tag, reason=reason)
        except ControlPlaneError as error:
            lines = [text for of_field in error.fields.values() for text in of_field]
            text = " ".join(lines) or error.detail
            outcomes.append(Outcome(job_id, error.code, text, former_priority=job.priority))
        else:
            is_changed = after.revision != job.revision
            outcomes.append(Outcome(job_id, "", "", is_changed, job.priority))
    return outcomes


def _act(
    user: User,
    action: JobsAction,
    job: Job,
    now: datetime.datetime,
    *,
    priority: int,
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
                priority,
                now,
                actor=actor,
                reason=reason,
                ceiling=priority_ceiling(user),
                is_reason_required=job.owner_id != user.pk,
            )
        case JobsAction.TAG:
            return job_actions.job_describe(job.pk, now, actor=actor, add=[tag], reason=reason)
        case JobsAction.UNTAG:
            return job_actions.job_describe(job.pk, now, actor=actor, remove=[tag], reason=reason)


def undo_of(
    action: JobsAction, outcomes: Sequence[Outcome], *, tag: str = "", reason: str = ""
) -> list[Mapping[str, Any]]:
    """Return the actions that undo one; empty for a cancellation, which is for good."""
    changed = [outcome for outcome in outcomes if outcome.is_changed]
    because = f"Undo: {reason}"[:500] if reason else "Undo"
    if action in (JobsAction.TAG, JobsAction.UNTAG) and changed:
        opposite = JobsAction.UNTAG if action is JobsAction.TAG else JobsAction.TAG
        jobs = [outcome.job_id for outcome in changed]
        return [{"action": opposite.value, "jobs": jobs, "tag": tag, "reason": because}]
    if action is not JobsAction.REPRIORITISE:
        return []
    former: dict[int, list[int]] = {}
    for outcome in changed:
        former.setdefault(outcome.former_priority, []).append(outcome.job_id)
    return [
        {"action": action.value, "jobs": jobs, "priority": priority, "reason": because}
        for priority, jobs in former.items()
    ]
