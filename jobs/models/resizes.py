"""Generations (one per change of a job's membership) and allocations (one trainer's tenure)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models.choices import choices
from jobs.models.jobs import Job
from jobs.models.nodes import Accelerator

#: Who asks for generations with the same accelerators: other batches, or virtual nodes that move.
BATCH_ACTOR, MAPPING_ACTOR = "system:batch_size", "system:mapping"

_UNDER_WAY = [GenerationPhase.PREPARING.value, GenerationPhase.SWITCHING.value]


class Generation(models.Model):
    """One membership of a job, from the wish to the end.

    `membership` is a `wire.Membership`. `previous` is the number of the generation whose members
    were training when this one was asked for; None when nobody was. `told_at`: its event stands.

    A recovery says in `lost` which trainers it goes on without, as {"slot", "node", "code",
    "noticed_at"}; its first completed step was heard of at `first_step_at`. `speeds` is what its
    members' own computing takes: {"reports": n, "seconds": {slot: s a step}}, and the last half
    minute in stretches as `window`; see selectors/speed_windows.py.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="generations")
    number = models.PositiveIntegerField()
    previous = models.PositiveIntegerField(null=True, blank=True)
    phase = models.CharField(max_length=10, choices=choices(GenerationPhase))
    membership = models.JSONField()
    num_members = models.PositiveIntegerField()
    num_switched = models.PositiveIntegerField(default=0)
    reason = models.TextField(blank=True)
    actor = models.CharField(max_length=160, blank=True)
    asked_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True, blank=True)
    go_at = models.DateTimeField(null=True, blank=True)
    switched_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    step = models.PositiveBigIntegerField(null=True, blank=True)
    pause_s = models.FloatField(null=True, blank=True)
    bytes_moved = models.PositiveBigIntegerField(null=True, blank=True)
    digest_before = models.CharField(max_length=64, blank=True)
    digest_after = models.CharField(max_length=64, blank=True)
    told_at = models.DateTimeField(null=True, blank=True)
    lost = models.JSONField(default=list, blank=True)
    first_step_at = models.DateTimeField(null=True, blank=True)
    speeds = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("job_id", "number")
        constraints = (
            models.UniqueConstraint(name="generation_number_once", fields=("job", "number")),
            models.UniqueConstraint(
                name="generation_one_under_way",
                fields=("job",),
                condition=Q(phase__in=_UNDER_WAY),
            ),
            models.UniqueConstraint(
                name="generation_one_active",
                fields=("job",),
                condition=Q(phase=GenerationPhase.ACTIVE.value),
            ),
        )
        indexes = (
            models.Index(
                name="generation_open",
                fields=("job",),
                condition=Q(phase__in=[*_UNDER_WAY, GenerationPhase.ACTIVE.value]),
            ),
        )

    def __str__(self) -> str:
        return f"generation {self.number} of job {self.job_id}"

    @property
    def is_recovery(self) -> bool:
        """Say whether it was made because trainers were lost."""
        return bool(self.membership.get("recover"))

    @property
    def is_held(self) -> bool:
        """Say whether its members only keep the state, being too few."""
        return bool(self.membership.get("hold"))


class Allocation(models.Model):
    """One trainer's tenure of one accelerator; open until its process is known to be gone.

    `release_asked_at`: a resize takes the accelerator away; the trainer still takes part in the
    switch. `stop_asked_at`: nobody wants the trainer any more; its agent ends it.
    `released_at`: the process is gone, the accelerator is free. `switched_generation`: the newest
    membership that it has switched to. `stalled_at`: it waits since then, because slots
    `unreachable` did not answer it. `lost_code`: why it was lost, empty unless it was.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="allocations")
    accelerator = models.ForeignKey(
        Accelerator, on_delete=models.PROTECT, related_name="allocations"
    )
    slot = models.PositiveIntegerField()
    granted_generation = models.PositiveIntegerField()
    granted_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True, blank=True)
    joined_at = models.DateTimeField(null=True, blank=True)
    release_asked_at = models.DateTimeField(null=True, blank=True)
    stop_asked_at = models.DateTimeField(null=True, blank=True)
    left_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    switched_generation = models.PositiveIntegerField(default=0)
    stalled_at = models.DateTimeField(null=True, blank=True)
    stalled_step = models.PositiveBigIntegerField(null=True, blank=True)
    unreachable = models.JSONField(default=list, blank=True)
    lost_code = models.CharField(max_length=40, blank=True)
    is_profile_asked = models.BooleanField(default=False)
    phase = models.CharField(max_length=20, blank=True)
    last_sequence = models.IntegerField(default=-1)

    class Meta:
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(
                name="allocation_accelerator_held_once",
                fields=("accelerator",),
                condition=Q(released_at__isnull=True),
            ),
            models.UniqueConstraint(name="allocation_slot_once", fields=("job", "slot")),
        )
        indexes = (
            models.Index(
                name="allocation_open",
                fields=("job", "slot"),
                condition=Q(released_at__isnull=True),
            ),
            models.Index(name="allocation_by_release", fields=("released_at", "granted_at")),
        )

    def __str__(self) -> str:
        return f"slot {self.slot} of job {self.job_id}"


class StartFailure(models.Model):
    """How often in a row a job's trainers did not come up on an accelerator.

    The job is not offered it again before `until_at`; the row goes when a trainer gets ready there.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="start_failures")
    accelerator = models.ForeignKey(Accelerator, on_delete=models.CASCADE, related_name="+")
    count = models.PositiveSmallIntegerField(default=0)
    until_at = models.DateTimeField()

    class Meta:
        ordering = ("job_id", "accelerator_id")
        constraints = (
            models.UniqueConstraint(name="start_failure_once", fields=("job", "accelerator")),
        )

    def __str__(self) -> str:
        return f"{self.count} failed starts of job {self.job_id} on {self.accelerator_id}"
