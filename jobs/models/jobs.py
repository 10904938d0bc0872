"""Jobs and sweeps: submission, state, attempts, result files, and previews of examples."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from controlplane.core.protocol.fork import Adoption, ForkSpec
from controlplane.core.protocol.selection import LABEL_LENGTH, SelectionSpec
from controlplane.core.protocol.tuning import TunableName, TuningSpec
from controlplane.core.protocol.wire import OnNonfinite, ReductionMode, StopKind, Task, decode
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from controlplane.core.values.tiers import Tier
from jobs.models.choices import choices, values
from jobs.models.projects import Project

LIVE_JOB_STATUSES = tuple(status for status in JobStatus if status not in ENDED_JOB_STATUSES)
#: Colours that pages give jobs; see services/lifecycle/colours.py.
NUM_COLOURS = 12
_ENDED = values(ENDED_JOB_STATUSES)
#: Status code of a job that has saved its state and given up its accelerators.
PREEMPTED = "preempted"


def code_path(_job: Job, filename: str) -> str:
    """Return the storage path of a job's code; unguessable, independent of the uploaded name."""
    return f"code/{uuid.uuid4().hex}{'.zip' if filename.endswith('.zip') else '.py'}"


def artifacts_folder(job_id: int) -> str:
    """Return the storage path of the folder with all artifacts of a job, and nothing else."""
    return f"jobs/{job_id}"


def artifact_path(artifact: Artifact, _filename: str) -> str:
    """Return the storage path of an artifact; new each time, so that open readers can finish."""
    return f"{artifacts_folder(artifact.job_id)}/{uuid.uuid4().hex}-{artifact.name}"


class Job(models.Model):
    """One training job.

    `version` grows with every visible change; `revision` only with the status and with changes by
    users, so that a running job can be changed on condition. `generation` is the number of the
    newest `Generation`, `next_slot` the first slot number never declared.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs"
    )
    name = models.CharField(max_length=100)
    template = models.CharField(max_length=60, blank=True)
    tags = models.JSONField(default=list, blank=True)
    note = models.CharField(max_length=1000, blank=True)
    colour = models.PositiveSmallIntegerField(default=0)
    sweep = models.ForeignKey(
        "jobs.Sweep", null=True, blank=True, on_delete=models.PROTECT, related_name="jobs"
    )

    # Computation: fixed from submission on.
    task = models.CharField(max_length=10, choices=choices(Task), default=Task.TRAIN.value)
    source_job = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="used_by"
    )
    source_sha256 = models.CharField(max_length=64, blank=True)
    forked_from = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="forks"
    )
    #: The fields of a `ForkSpec`; `sha256` is empty until the other job has saved its state.
    fork = models.JSONField(default=dict, blank=True)
    #: The job whose parallel trial it is.
    trial_of = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="trial_jobs"
    )
    code = models.FileField(upload_to=code_path, max_length=200)
    code_name = models.CharField(max_length=120)
    code_sha256 = models.CharField(max_length=64)
    code_bytes = models.PositiveBigIntegerField(default=0)
    entry_file = models.CharField(max_length=200)
    settings = models.JSONField(default=dict, blank=True)
    secrets = models.JSONField(default=list, blank=True)  # names of secrets of the owner
    global_batch_size = models.PositiveIntegerField()
    batch_size_min = models.PositiveIntegerField(null=True, blank=True)
    batch_size_max = models.PositiveIntegerField(null=True, blank=True)
    num_virtual_nodes = models.PositiveIntegerField()
    seed = models.BigIntegerField(default=0)
    reduction = models.CharField(
        max_length=10,
        choices=choices(ReductionMode),
        default=ReductionMode.EXACT.value,
    )
    shuffle = models.BooleanField(default=True)
    on_nonfinite = models.CharField(
        max_length=10, choices=choices(OnNonfinite), default=OnNonfinite.STOP.value
    )
    #: The fields of a `SelectionSpec`; empty if every example is trained on.
    selection = models.JSONField(default=dict, blank=True)
    #: Examples chosen most often so far: [place in the data, times].
    most_chosen = models.JSONField(default=list, blank=True, editable=False)
    #: The fields of a `SelectionEnd`; empty unless it has ended before its time.
    selection_ended = models.JSONField(default=dict, blank=True, editable=False)
    #: The fields of a `TuningSpec`; empty if it keeps its own learning rate and so on.
    tuning = models.JSONField(default=dict, blank=True)
    #: A trial's state that it is to go on with; see services/scheduling/adoptions.py.
    adoption = models.JSONField(default=dict, blank=True, editable=False)
    #: Number of the adoption after which its present state is; 0: of none.
    adopted = models.PositiveIntegerField(default=0)
    stop_kind = models.CharField(max_length=10, choices=choices(StopKind))
    stop_limit = models.PositiveIntegerField()
    stop_metric = models.CharField(max_length=100, blank=True)
    stop_target = models.FloatField(null=True, blank=True)
    stop_higher_is_better = models.BooleanField(default=True)

    # Resource limits.
    min_accelerators = models.PositiveIntegerField(default=1)
    max_accelerators = models.PositiveIntegerField()
    accepted_kinds = models.JSONField(default=list, blank=True)
    allow_mixed_kinds = models.BooleanField(default=False)
    tier = models.CharField(max_length=10, choices=choices(Tier), default=Tier.NORMAL.value)
    priority = models.PositiveSmallIntegerField(default=100)
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs"
    )

    # State.
    status = models.CharField(
        max_length=12,
        choices=choices(JobStatus),
        default=JobStatus.VALIDATING.value,
    )
    status_code = models.CharField(max_length=40, blank=True)
    status_reason = models.TextField(blank=True)
    policy_reason = models.TextField(blank=True)
    error_field = models.CharField(max_length=60, blank=True)
    error_traceback = models.TextField(blank=True)
    version = models.PositiveIntegerField(default=1)
    revision = models.PositiveIntegerField(default=1)
    generation = models.PositiveIntegerField(default=0)
    next_slot = models.PositiveIntegerField(default=0)
    restarts = models.PositiveSmallIntegerField(default=0)
    pause_requested = models.BooleanField(default=False)
    #: Newest request to save its state, for jobs that wait for it: its time in ms. 0: none.
    save_request = models.PositiveBigIntegerField(default=0)
    #: Until when this job waits for the state that it starts from; null: it does not.
    fork_deadline_at = models.DateTimeField(null=True, blank=True)
    submitted_at = models.DateTimeField()
    pending_since = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    duration_s = models.FloatField(default=0.0)  # from the first start to the end; 0 before it
    files_deleted_at = models.DateTimeField(null=True, blank=True)  # code, artifacts and log
    results_claimed_at = models.DateTimeField(null=True, blank=True)
    facts = models.JSONField(default=dict, blank=True)  # from its validation

    # Progress.
    step = models.PositiveBigIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0)
    loss = models.FloatField(null=True, blank=True)
    examples_per_s = models.FloatField(null=True, blank=True)
    metrics = models.JSONField(default=dict, blank=True)
    # Losses and metrics that are or were nan or infinite; see selectors/estimates/nonfinite.py.
    nonfinite = models.JSONField(default=dict, blank=True)
    digest = models.CharField(max_length=64, blank=True)
    mix_finding = models.CharField(max_length=200, blank=True)  # key of the newest core MixNote
    throughput_by_count = models.JSONField(default=dict, blank=True)
    # Times of reports by the control plane's clock; see services/reports/plausibility.py.
    report_clock = models.JSONField(default=dict, blank=True)
    # Present batch size, None: the submitted one; of a job whose platform (see
    # services/scheduling/batch_sizes.py) or tuning (services/reports/progress.py) changes it.
    batch_size = models.PositiveIntegerField(null=True, blank=True)
    # State of rebalancing; see selectors/estimates/step_times.py.
    moves = models.JSONField(default=dict, blank=True)
    noise = models.JSONField(default=dict, blank=True)  # see selectors/estimates/noise.py
    attained_accelerator_s = models.FloatField(default=0.0)

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(
                name="job_status_known", condition=Q(status__in=values(JobStatus))
            ),
            models.CheckConstraint(
                name="job_batch_holds_virtual_nodes",
                condition=Q(
                    num_virtual_nodes__gte=1, global_batch_size__gte=F("num_virtual_nodes")
                ),
            ),
            models.CheckConstraint(
                name="job_batch_size_in_bounds",
                condition=Q(batch_size_min__isnull=True, batch_size_max__isnull=True)
                | Q(
                    batch_size_min__isnull=False,
                    batch_size_max__isnull=False,
                    batch_size_min__gte=F("num_virtual_nodes"),
                    batch_size_min__lte=F("global_batch_size"),
                    batch_size_max__gte=F("global_batch_size"),
                ),
            ),
            models.CheckConstraint(
                name="job_accelerators_in_bounds",
                condition=Q(
                    min_accelerators__gte=1,
                    min_accelerators__lte=F("max_accelerators"),
                    max_accelerators__lte=F("num_virtual_nodes"),
                ),
            ),
            models.CheckConstraint(name="job_tier_known", condition=Q(tier__in=values(Tier))),
            models.CheckConstraint(
                name="job_priority_in_bounds", condition=Q(priority__gte=1, priority__lte=1000)
            ),
            models.CheckConstraint(name="job_stop_limit_positive", condition=Q(stop_limit__gte=1)),
            models.CheckConstraint(
                name="job_metric_stop_is_whole",
                condition=~Q(stop_kind=StopKind.METRIC.value)
                | (Q(stop_target__isnull=False) & ~Q(stop_metric="")),
            ),
            models.CheckConstraint(
                name="job_prediction_is_one_pass",
                condition=~Q(task=Task.PREDICT.value)
                | Q(stop_kind=StopKind.EPOCHS.value, stop_limit=1, shuffle=False),
            ),
            models.CheckConstraint(
                name="job_source_is_whole",
                condition=Q(source_job__isnull=True, source_sha256="")
                | (Q(source_job__isnull=False, task=Task.PREDICT.value) & ~Q(source_sha256="")),
            ),
            models.CheckConstraint(
                name="job_ended_at_when_ended",
                condition=Q(status__in=_ENDED, ended_at__isnull=False)
                | (~Q(status__in=_ENDED) & Q(ended_at__isnull=True)),
            ),
        )
        indexes = (
            # Newest first: of one owner, of one status.
            models.Index(name="job_by_owner", fields=("owner", "-id")),
            models.Index(name="job_by_owner_status", fields=("owner", "status", "-id")),
            models.Index(name="job_by_project", fields=("project", "-id")),
            # Columns that lists are sorted by, in either direction, or searched for.
            models.Index(name="job_by_status", fields=("status", "id")),
            models.Index(name="job_by_priority", fields=("priority", "id")),
            models.Index(name="job_by_tier", fields=("tier", "id")),
            models.Index(name="job_by_name", fields=("name", "id")),
            models.Index(name="job_by_duration", fields=("duration_s", "id")),
            models.Index(name="job_by_submission", fields=("submitted_at", "id")),
            models.Index(name="job_by_template", fields=("template", "id")),
            # Few jobs that wait for a state.
            models.Index(
                name="job_awaits_state",
                fields=("forked_from",),
                condition=Q(fork_deadline_at__isnull=False),
            ),
            # Few live jobs among many ended ones.
            models.Index(
                name="job_live", fields=("id",), condition=Q(status__in=values(LIVE_JOB_STATUSES))
            ),
        )

    def __str__(self) -> str:
        return f"job {self.pk} ({self.name})"

    def update_columns(self, **values: Any) -> None:
        """Write columns of the row, and of this object; other columns of the row stay."""
        Job.objects.filter(pk=self.pk).update(**values)
        for name, value in values.items():
            setattr(self, name, value)

    @property
    def fork_spec(self) -> ForkSpec | None:
        """The saved state that it starts from; None until there is one."""
        return decode(ForkSpec, self.fork) if self.fork.get("sha256") else None

    @property
    def due_adoption(self) -> Adoption | None:
        """The adoption of a trial's state that it has not made yet."""
        if not self.adoption or self.adopted >= self.adoption["number"]:
            return None
        return Adoption(number=self.adoption["number"], sha256=self.adoption["sha256"])

    @property
    def batch_size_now(self) -> int:
        """Examples of the next step: the submitted batch size, or the one chosen since."""
        return self.batch_size or self.global_batch_size

    @property
    def chosen_batch_size(self) -> int | None:
        """Batch size that the platform has chosen for its memberships; None: it has not."""
        return self.batch_size if self.adapts_batch_size else None

    @property
    def adapts_batch_size(self) -> bool:
        """True if the platform may change the batch size."""
        return self.batch_size_min is not None

    @property
    def tunes_batch_size(self) -> bool:
        """True if the job's own trials change the batch size."""
        return TunableName.BATCH_SIZE in self.tuning.get("space", {})

    @property
    def is_batch_size_fixed(self) -> bool:
        """True if all steps have the submitted batch size, so that steps count examples."""
        return not (self.adapts_batch_size or self.tunes_batch_size)

    @property
    def is_counted_by_steps(self) -> bool:
        """True if its steps tell how far it is in its epochs.

        Those of a fork were the other job's before, of its batch size, and not all of whole epochs.
        """
        return self.is_batch_size_fixed and self.fork.get("keeps_order", True)

    @property
    def largest_batch_size(self) -> int:
        """Most examples that a step of it may have."""
        tuned = 0 if self.tuning_spec is None else self.tuning_spec.largest_batch_size
        return max(self.global_batch_size, self.batch_size_max or 0, tuned)

    @property
    def selection_spec(self) -> SelectionSpec | None:
        """The selection of its training examples; None if every example is trained on."""
        return decode(SelectionSpec, self.selection) if self.selection else None

    @property
    def tuning_spec(self) -> TuningSpec | None:
        """The search for better tunables; None if there is none."""
        return decode(TuningSpec, self.tuning) if self.tuning else None

    @property
    def run_selection(self) -> SelectionSpec | None:
        """The selection of this run, which may have ended earlier than the submission says."""
        spec, end = self.selection_spec, self.selection_ended
        if spec is None or not end:
            return spec
        return dataclasses.replace(spec, end=end["epoch"])


class Artifact(models.Model):
    """A file produced by a job: checkpoint, model, history, metrics. The newest of a name stays.

    `step` and `epoch` are of a checkpoint, once its report has come.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="artifacts")
    name = models.CharField(max_length=60)
    file = models.FileField(upload_to=artifact_path, max_length=200)
    sha256 = models.CharField(max_length=64)
    size_bytes = models.PositiveBigIntegerField()
    generation = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField(null=True, blank=True)
    epoch = models.PositiveIntegerField(null=True, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (models.UniqueConstraint(name="artifact_name_once", fields=("job", "name")),)

    def __str__(self) -> str:
        return f"{self.name} of job {self.job_id}"


class JobAttempts(models.Model):
    """Attempts since the job last exceeded `furthest_step`; see services/lifecycle/attempts.py.

    A job without a row has failed in no attempt. `crash_generation` is the one of the last crash.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="attempts"
    )
    furthest_step = models.PositiveBigIntegerField(default=0)
    restarts = models.PositiveSmallIntegerField(default=0)
    recoveries = models.PositiveSmallIntegerField(default=0)
    crashes = models.PositiveSmallIntegerField(default=0)
    crash_generation = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"attempts of job {self.job_id}"


class ExamplePreview(models.Model):
    """One example of a job's training data.

    Attributes:
        place: in the data.
        label: as text; "" if it is no class, number or text.
        image: PNG; null if the example is no image.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="example_previews")
    place = models.PositiveBigIntegerField()
    label = models.CharField(max_length=LABEL_LENGTH, blank=True)
    image = models.BinaryField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="example_preview_once", fields=("job", "place")),
        )

    def __str__(self) -> str:
        return f"example {self.place} of job {self.job_id}"


class Sweep(models.Model):
    """A group of jobs over a space of settings; its jobs are ordinary ones with `Job.sweep` set.

    Attributes:
        space: by setting: a list of values, or an object with `low`, `high` and more; see
            `jobs.sweep_space`.
        num_draws: number of random draws; None: a grid.
        max_running: most of its jobs that hold accelerators at once.
        is_paused: none of its jobs begins.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sweeps"
    )
    name = models.CharField(max_length=100)
    template = models.CharField(max_length=60, blank=True)
    space = models.JSONField()
    num_draws = models.PositiveSmallIntegerField(null=True, blank=True)
    seed = models.BigIntegerField(default=0)
    max_running = models.PositiveSmallIntegerField()
    is_paused = models.BooleanField(default=False)
    submitted_at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(name="sweep_runs_something", condition=Q(max_running__gte=1)),
        )

    def __str__(self) -> str:
        return f"sweep {self.pk} ({self.name})"
