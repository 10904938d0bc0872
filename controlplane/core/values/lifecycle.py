"""Statuses of jobs, generations and nodes, and the legal transitions between them.

A transition that is not in these tables does not exist: services change a status only through a
conditional update whose old and new value are listed here, and the tests check all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobStatus(StrEnum):
    """State of a job between submission and its end."""

    VALIDATING = "validating"  # its code is being built once on a node
    INVALID = "invalid"  # the code or the spec was refused; the reason is kept
    PENDING = "pending"  # valid, holds no accelerators, waits for a share
    STARTING = "starting"  # holds accelerators; its trainers are booting
    RUNNING = "running"  # trainers do steps
    PREEMPTING = "preempting"  # on its way to zero accelerators, saving a checkpoint
    PAUSED = "paused"  # stopped by a person, holds nothing until resumed
    FINISHED = "finished"  # stop condition reached, results stored
    FAILED = "failed"  # its own code failed, or the platform failed it with a reason
    CANCELLED = "cancelled"  # ended by a person


JOB_TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.VALIDATING: frozenset({JobStatus.INVALID, JobStatus.PENDING, JobStatus.CANCELLED}),
    JobStatus.PENDING: frozenset(
        {JobStatus.STARTING, JobStatus.PAUSED, JobStatus.CANCELLED, JobStatus.FAILED}
    ),
    JobStatus.STARTING: frozenset(
        {
            JobStatus.RUNNING,
            JobStatus.PREEMPTING,
            JobStatus.PENDING,
            JobStatus.FINISHED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    JobStatus.RUNNING: frozenset(
        {
            JobStatus.PREEMPTING,
            JobStatus.PENDING,
            JobStatus.FINISHED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    JobStatus.PREEMPTING: frozenset(
        {
            JobStatus.RUNNING,  # a trainer was lost while saving; the survivors go on
            JobStatus.PENDING,
            JobStatus.PAUSED,
            JobStatus.FINISHED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
        }
    ),
    JobStatus.PAUSED: frozenset({JobStatus.PENDING, JobStatus.CANCELLED}),
    JobStatus.INVALID: frozenset(),
    JobStatus.FINISHED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}

#: Statuses that no event can leave.
ENDED_JOB_STATUSES = frozenset(status for status, after in JOB_TRANSITIONS.items() if not after)

#: Statuses in which a job may hold accelerators by decision of the policy.
HOLDING_JOB_STATUSES = frozenset({JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING})

#: Statuses in which jobs are scheduled by the policy.
SCHEDULABLE_JOB_STATUSES = frozenset({JobStatus.PENDING, JobStatus.STARTING, JobStatus.RUNNING})


class ValidationStatus(StrEnum):
    """State of a validation."""

    WAITING = "waiting"  # for a node
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    CANCELLED = "cancelled"  # its job was cancelled, or a newer submission replaced it


class GenerationPhase(StrEnum):
    """Progress of one membership of a job (one resize is one generation)."""

    PREPARING = "preparing"  # joiners boot; the old members train on unchanged
    SWITCHING = "switching"  # every joiner is ready; all switch after a common step
    ACTIVE = "active"  # the members do steps
    CLOSED = "closed"  # a later generation took its place, or the job ended
    ABORTED = "aborted"  # given up before it was active


#: Phases of a resize under way.
RESIZING_PHASES = (GenerationPhase.PREPARING, GenerationPhase.SWITCHING)
#: Phases of a generation whose members have trainers.
OPEN_PHASES = (*RESIZING_PHASES, GenerationPhase.ACTIVE)


GENERATION_TRANSITIONS: Mapping[GenerationPhase, frozenset[GenerationPhase]] = {
    GenerationPhase.PREPARING: frozenset({GenerationPhase.SWITCHING, GenerationPhase.ABORTED}),
    GenerationPhase.SWITCHING: frozenset(
        {GenerationPhase.ACTIVE, GenerationPhase.CLOSED, GenerationPhase.ABORTED}
    ),
    GenerationPhase.ACTIVE: frozenset({GenerationPhase.CLOSED}),
    GenerationPhase.CLOSED: frozenset(),
    GenerationPhase.ABORTED: frozenset(),
}


class NodeStatus(StrEnum):
    """Status of a node: only an online one is given work."""

    ONLINE = "online"
    CORDONED = "cordoned"  # excluded from new work by an admin; jobs there stay
    DRAINING = "draining"  # excluded from new work by an admin; jobs there leave
    MAINTENANCE = "maintenance"  # excluded from new work by a maintenance window
    QUARANTINED = "quarantined"  # trainers died on it repeatedly
    LOST = "lost"  # no heartbeat within the lease


def is_legal_job_transition(old: JobStatus, new: JobStatus) -> bool:
    """Return whether a job may go from `old` to `new`."""
    return new in JOB_TRANSITIONS[old]
