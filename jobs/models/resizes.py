"""Generations (one per change of a job's membership) and allocations (one trainer each)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KeyTransform

from controlplane.core.protocol.wire import Membership, decode, encode
from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models.choices import choices
from jobs.models.jobs import Job
from jobs.models.nodes import Accelerator

#: Actors of generations with the same accelerators: another batch size, moved virtual nodes, or a
#: trial's state.
BATCH_ACTOR, MAPPING_ACTOR = "system:batch_size", "system:mapping"
TUNING_ACTOR = "system:tuning"

_UNDER_WAY = [GenerationPhase.PREPARING.value, GenerationPhase.SWITCHING.value]


class MembershipField(models.JSONField):
    """A `wire.Membership`, stored as JSON."""

    if TYPE_CHECKING:
        _pyi_private_set_type: Membership
        _pyi_private_get_type: Membership

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        stored = super().from_db_value(value, expression, connection)
        # A transform such as `membership__global_batch_size` gives a part of it.
        return stored if isinstance(expression, KeyTransform) else decode(Membership, stored)

    def get_prep_value(self, value: Membership) -> Any:
        return super().get_prep_value(encode(value))


class Generation(models.Model):
    """One membership of a job, from request to end.

    `previous` is the number of the generation that was active when this one was requested; None if
    there was none. `reported_at`: its event was added.

    A recovery lists its lost trainers in `lost`, as {"slot", "node", "code", "noticed_at"};
    `first_step_at` is the time of its first completed step. `speeds` is the members' own computing
    time: {"reports": n, "seconds": {slot: s a step}}, and the intervals of the last half minute as
    `window`; see selectors/estimates/step_times.py.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="generations")
    number = models.PositiveIntegerField()
    previous = models.PositiveIntegerField(null=True, blank=True)
    phase = models.CharField(max_length=10, choices=choices(GenerationPhase))
    membership = MembershipField()
    num_members = models.PositiveIntegerField()
    num_switched = models.PositiveIntegerField(default=0)
    reason = models.TextField(blank=True)
    actor = models.CharField(max_length=160, blank=True)
    requested_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True, blank=True)
    switch_ordered_at = models.DateTimeField(null=True, blank=True)
    switched_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    step = models.PositiveBigIntegerField(null=True, blank=True)
    pause_s = models.FloatField(null=True, blank=True)
    bytes_moved = models.PositiveBigIntegerField(null=True, blank=True)
    digest_before = models.CharField(max_length=64, blank=True)
    digest_after = models.CharField(max_length=64, blank=True)
    reported_at = models.DateTimeField(null=True, blank=True)
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
            models.Index(name="generation_by_switch", fields=("switched_at",)),
        )

    def __str__(self) -> str:
        return f"generation {self.number} of job {self.job_id}"

    @property
    def is_start(self) -> bool:
        """True if it started or restarted the job, whose state nobody held then."""
        return self.previous is None and self.num_members > 0

    @property
    def is_recovery(self) -> bool:
        """True if the generation was made because trainers were lost."""
        return self.membership.recover

    @property
    def is_parked(self) -> bool:
        """True if the members, being too few, only keep the state in memory."""
        return self.membership.parked


class Allocation(models.Model):
    """The time for which one trainer holds an accelerator, until its process has certainly exited.

    `release_requested_at`: a resize takes the accelerator away; the trainer still takes part in the
    switch. `stop_requested_at`: the trainer is not needed any more; its agent stops it.
    `released_at`: the process has exited, the accelerator is free. `switched_generation`: the
    newest membership that the trainer has switched to. `stalled_at`: the trainer waits since then,
    because the slots `unreachable` did not answer. `lost_code`: reason of the loss, empty if none.
    `adoption_held`: number of the newest adoption whose state is on the trainer's node.
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
    release_requested_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    left_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    switched_generation = models.PositiveIntegerField(default=0)
    stalled_at = models.DateTimeField(null=True, blank=True)
    stalled_step = models.PositiveBigIntegerField(null=True, blank=True)
    unreachable = models.JSONField(default=list, blank=True)
    lost_code = models.CharField(max_length=40, blank=True)
    profile_requested = models.BooleanField(default=False)
    phase = models.CharField(max_length=20, blank=True)
    last_sequence = models.IntegerField(default=-1)
    adoption_held = models.PositiveIntegerField(default=0)

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
    """Number of failed starts in a row of a job's trainers on an accelerator.

    The accelerator is withheld from the job until `until_at`; the row is deleted when a trainer
    gets ready there.
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
