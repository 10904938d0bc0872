"""Jobs that are parallel trials of another job: made, ended, and their files deleted.

A trial runs the code of its job from one of the job's states, with other tunables, for some steps.
It is of tier idle, belongs to the same owner and project, and counts in no limit of live jobs.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from controlplane.core.protocol.wire import StopKind
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from controlplane.core.values.tiers import Tier
from jobs.exceptions import full_disk_refused
from jobs.files import file_share
from jobs.models import Artifact, Job
from jobs.selectors.forks import fork_fields
from jobs.services.lifecycle.artifacts import new_files_undone
from jobs.services.lifecycle.colours import free_colour
from jobs.services.lifecycle.events import SYSTEM, event_add
from jobs.services.lifecycle.retention import files_delete_some
from jobs.services.lifecycle.search_rows import search_terms_write
from jobs.services.lifecycle.transitions import job_end, job_lock
from jobs.services.submission.forks import fork_place
from jobs.services.submission.rows import SUBMITTED_COLUMNS
from jobs.services.submission.validations import job_queue
from jobs.submission import name_start

_NAME_LIMIT = 100


def trial_job_make(
    parent: Job,
    artifact: Artifact,
    number: int,
    num_steps: int,
    values: Mapping[str, float],
    now: datetime.datetime,
) -> Job:
    """Queue a trial that starts from a state of its job; its code was validated with the job.

    Raises:
        ConflictError: the state was deleted in the meantime.
        TooLargeError, DiskFullError: state and code do not fit into the owner's storage, or on the
            disk.
    """
    ending = f", trial {number}"
    columns = {name: getattr(parent, name) for name in SUBMITTED_COLUMNS}
    columns |= {
        "name": name_start(parent.name, _NAME_LIMIT - len(ending)) + ending,
        "tier": Tier.IDLE.value,
        "stop_kind": StopKind.STEPS.value,
        "stop_limit": (artifact.step or 0) + num_steps,
        "stop_metric": "",
        "stop_target": None,
    }
    job = Job(
        **columns,
        owner=parent.owner,
        trial_of=parent,
        code_bytes=parent.code_bytes,
        status=JobStatus.VALIDATING.value,
        submitted_at=now,
        colour=free_colour(),
    )
    for name, value in fork_fields(job, parent, artifact).items():
        setattr(job, name, value)
    job.fork["values"] = dict(values)
    with full_disk_refused():
        file_share(parent.code, job.code, parent.code_name)
    with new_files_undone([job]):
        job.save(force_insert=True)
        search_terms_write(job)
        event_add("submitted", f"Trial {number} of job {parent.pk}", now=now, job=job)
        fork_place(job, artifact, now)
        job_queue(job, parent.facts, now, text=f"Code validated as that of job {parent.pk}")
    return job


def trial_job_end(job_id: int, now: datetime.datetime, reason: str) -> None:
    """End a trial that is not awaited any more; nothing happens if it has ended."""
    job = job_lock(job_id)
    if job.status not in ENDED_JOB_STATUSES:
        job_end(job, JobStatus.CANCELLED, now, code="trial_over", reason=reason)
        event_add("cancelled", reason, now=now, job=job, actor=SYSTEM)


def trial_files_delete(now: datetime.datetime) -> set[int]:
    """Delete the files of some trials that are judged; return them."""
    over = Job.objects.filter(trial_of__isnull=False, status__in=ENDED_JOB_STATUSES)
    judged = over.exclude(tried_as__end="").order_by("id")
    return files_delete_some(judged, now, why=", as its trial is judged")
