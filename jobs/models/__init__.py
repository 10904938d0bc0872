"""All persisted state. Services write it, selectors read it."""

from jobs.models.access import (
    ApiToken,
    ClusterSetting,
    IdempotencyKey,
    PolicyState,
    Secret,
    UserLimits,
)
from jobs.models.audit import AuditAction, AuditEntry
from jobs.models.estimates import JobEstimates
from jobs.models.history import EpochReport, Event, LogChunk, StepReport
from jobs.models.jobs import Artifact, Job
from jobs.models.nodes import Accelerator, EnrolmentToken, Node
from jobs.models.profiles import StepTimeProfile
from jobs.models.replays import LIVE_REPLAY_STATUSES, Replay, ReplayStatus
from jobs.models.resizes import Allocation, Generation, StartFailure
from jobs.models.search import JobMetric, SearchTerm
from jobs.models.validations import Validation

__all__ = [
    "LIVE_REPLAY_STATUSES",
    "Accelerator",
    "Allocation",
    "ApiToken",
    "Artifact",
    "AuditAction",
    "AuditEntry",
    "ClusterSetting",
    "EnrolmentToken",
    "EpochReport",
    "Event",
    "Generation",
    "IdempotencyKey",
    "Job",
    "JobEstimates",
    "JobMetric",
    "LogChunk",
    "Node",
    "PolicyState",
    "Replay",
    "ReplayStatus",
    "SearchTerm",
    "Secret",
    "StartFailure",
    "StepReport",
    "StepTimeProfile",
    "UserLimits",
    "Validation",
]
