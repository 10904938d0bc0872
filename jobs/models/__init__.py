"""All persisted state. Services write it, selectors read it."""

from jobs.models.access import (
    ApiToken,
    ClusterSetting,
    ExternalIdentity,
    IdempotencyKey,
    PolicyState,
    Secret,
    UserLimits,
)
from jobs.models.audit import AuditAction, AuditEntry
from jobs.models.estimates import JobEstimates, JobForecast, StepTimeProfile
from jobs.models.history import EpochReport, Event, LogChunk, StepReport
from jobs.models.jobs import Artifact, ExamplePreview, Job, JobAttempts, Sweep
from jobs.models.nodes import (
    Accelerator,
    EnrolmentToken,
    MaintenanceWindow,
    Node,
    ReadingBin,
    WindowStatus,
    maintenance_lead,
)
from jobs.models.notifications import (
    ChannelKind,
    DeliveryStatus,
    NotificationChannel,
    NotificationDelivery,
)
from jobs.models.projects import AcceleratorPrice, Project, ProjectMembership, ProjectRole
from jobs.models.replays import LIVE_REPLAY_STATUSES, Replay, ReplayStatus
from jobs.models.resizes import Allocation, Generation, StartFailure
from jobs.models.search import JobMetric, SavedFilter, SearchTerm, UsageDay, UsageSum
from jobs.models.trials import Trial, TuningRound
from jobs.models.validations import Validation
