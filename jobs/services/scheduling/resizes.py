"""Resize of one job: a new generation and its allocations."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import F

from controlplane.core.estimates.batch_size import BatchChoice
from controlplane.core.membership.slots import (
    SlotHistory,
    TrainerAddresses,
    membership_next,
    places_on_node,
)
from controlplane.core.protocol.wire import Membership, Task
from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import (
    SCHEDULABLE_JOB_STATUSES,
    GenerationPhase,
    JobStatus,
    NodeStatus,
)
from controlplane.core.values.types import Resize
from jobs.models import Accelerator, Allocation, Generation, Job, Node, Sweep
from jobs.models.resizes import TUNING_ACTOR
from jobs.selectors.cluster import accelerators_open
from jobs.selectors.estimates.step_times import (
    accelerator_step_times,
    step_times_read,
)
from jobs.services.lifecycle.artifacts import checkpoint_choose
from jobs.services.lifecycle.colours import first_start_colour
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.missed_reports import membership_ask_missed
from jobs.services.lifecycle.predictions import membership_resume
from jobs.services.lifecycle.transitions import (
    generation_add,
    generation_end,
    open_allocations,
    preparing_abort,
    status_change,
    trainers_stop,
)
from jobs.services.scheduling.batch_sizes import batch_choices


class StaleError(Exception):
    """The job changed since the snapshot; the whole resize is rolled back."""


@dataclass(frozen=True, slots=True)
class _OpenRows:
    """Open memberships and allocations of a job, read under its lock."""

    active: Generation | None
    preparing: Generation | None
    newest: Generation | None
    allocations: list[Allocation]

    @property
    def active_slots(self) -> set[int]:
        if self.active is None:
            return set()
        return set(self.active.membership.slots)

    @property
    def booting_slots(self) -> set[int]:
        """Slots of joiners that the preparing generation requested and that do not train yet."""
        if self.preparing is None:
            return set()
        asked = set(self.preparing.membership.slots)
        return asked - self.active_slots


def resize_apply(
    resize: Resize, seen_generation: int, now: datetime.datetime, *, actor: str
) -> None:
    """Request one job's new membership.

    Raises:
        StaleError: the job changed since the snapshot; the transaction must be rolled back.
        IntegrityError: another job holds one of the accelerators.
    """
    taken = Job.objects.filter(
        id=resize.job_id,
        generation=seen_generation,
        status__in=[*SCHEDULABLE_JOB_STATUSES],
        pause_requested=False,
    ).update(generation=F("generation") + 1, version=F("version") + 1)
    if not taken:
        raise StaleError("its generation or status changed")
    job = Job.objects.get(id=resize.job_id)
    standing = _standing(job)
    if resize.wanted:
        _grow_or_shrink(job, standing, resize, now, actor)
    else:
        _empty(job, standing, resize.reason, now, actor)


def job_empty(job: Job, now: datetime.datetime, *, reason: str, actor: str) -> bool:
    """Preempt a locked job, which saves its state; return False while a switch is under way."""
    if job.generations.filter(phase=GenerationPhase.SWITCHING).exists():
        return False
    job.update_columns(generation=job.generation + 1)
    _empty(job, _standing(job), reason, now, actor)
    return True


def _standing(job: Job) -> _OpenRows:
    rows = {
        generation.phase: generation
        for generation in job.generations.filter(
            phase__in=[
                GenerationPhase.PREPARING,
                GenerationPhase.SWITCHING,
                GenerationPhase.ACTIVE,
            ]
        )
    }
    if GenerationPhase.SWITCHING in rows:
        raise StaleError("a switch is under way")
    return _OpenRows(
        active=rows.get(GenerationPhase.ACTIVE),
        preparing=rows.get(GenerationPhase.PREPARING),
        newest=job.generations.order_by("-number").first(),
        allocations=open_allocations(job),
    )


def _grow_or_shrink(
    job: Job, standing: _OpenRows, resize: Resize, now: datetime.datetime, actor: str
) -> None:
    may_stay = standing.active_slots | standing.booting_slots
    staying = {
        row.accelerator_id: row
        for row in standing.allocations
        if row.slot in may_stay and row.stop_requested_at is None and row.left_at is None
    }
    membership, next_slot = _membership(job, standing, staying, resize.wanted, now, resize.counts)
    membership = membership_ask_missed(job, membership_resume(job, membership))
    membership = _membership_adopt(job, membership, standing)
    choice = _batch_choice(job, standing, resize)
    batch_size = job.chosen_batch_size if choice is None else choice.batch_size
    membership = dataclasses.replace(membership, global_batch_size=batch_size)
    if standing.preparing is not None and not generation_end(
        standing.preparing, GenerationPhase.ABORTED, now
    ):
        raise StaleError("its joiners got ready just now")
    slots = set(membership.slots)
    kept = {row.slot: row for row in staying.values() if row.slot in slots}
    new = {*resize.wanted} - {row.accelerator_id for row in kept.values()}
    if accelerators_open(now).filter(id__in=new).count() < len(new):
        raise StaleError("a node that it was to go to takes no work any more")
    joiners = slots - standing.active_slots
    are_ready = all(slot in kept and kept[slot].ready_at for slot in joiners)
    about = {"reason": resize.reason, "actor": actor}
    generation_add(job, membership, standing.active, now, is_ready=are_ready, **about)
    _allocations_write(job, standing, membership, kept, resize.wanted, now)
    Job.objects.filter(id=job.pk).update(next_slot=next_slot)
    if job.status == JobStatus.PENDING:
        # A pause of its sweep waits for the lock, and then finds the job starting.
        sweeps = Sweep.objects.select_for_update(no_key=True)
        if job.sweep_id is not None and sweeps.get(pk=job.sweep_id).is_paused:
            raise StaleError("its sweep was paused just now")
        status_change(
            job,
            JobStatus.STARTING,
            started_at=job.started_at or now,
            colour=job.colour if job.started_at else first_start_colour(job),
            pending_since=None,
            status_code="",
            status_reason="",
        )
    if resize.batch_size is None:
        _event_requested(
            job, len(resize.held), len(resize.wanted), membership.generation, resize, actor, now
        )
    if choice is not None:
        _batch_event(job, choice, membership.generation, actor, now)


def _membership_adopt(job: Job, membership: Membership, standing: _OpenRows) -> Membership:
    """Order the due adoption, if all have the state, with a membership of the same trainers."""
    adoption, slots = job.due_adoption, standing.active_slots
    if adoption is None or set(membership.slots) != slots:
        return membership
    rows = [row for row in standing.allocations if row.slot in slots]
    if any(row.adoption_held != adoption.number for row in rows):
        return membership
    return dataclasses.replace(membership, adoption=adoption)


def _batch_choice(job: Job, standing: _OpenRows, resize: Resize) -> BatchChoice | None:
    """Return the requested batch size, or a better one for another number of accelerators."""
    if resize.batch_size is not None:
        return BatchChoice(resize.batch_size, 1.0, resize.reason)
    before = 0 if standing.active is None else standing.active.num_members
    if len(resize.wanted) == before:
        return None
    return batch_choices([(job, resize.wanted)]).get(job.pk)


def _batch_event(
    job: Job, choice: BatchChoice, generation: int, actor: str, now: datetime.datetime
) -> None:
    event_add(
        "batch_size",
        f"Batch size {job.batch_size_now} → {choice.batch_size}: {choice.reason}",
        now=now,
        job=job,
        actor=actor,
        data={
            "generation": generation,
            "before": job.batch_size_now,
            "after": choice.batch_size,
            "submitted": job.global_batch_size,
        },
    )


def _event_requested(
    job: Job,
    num_before: int,
    num_after: int,
    generation: int,
    resize: Resize,
    actor: str,
    now: datetime.datetime,
) -> None:
    after = counted(num_after, "accelerator")
    change = f"{num_before} → {after}"
    if actor == TUNING_ACTOR:
        change = f"The same {after}"
    elif resize.held == resize.wanted:
        change = f"Virtual nodes move among the same {after}"
    event_add(
        "resize_requested",
        f"{change}: {resize.reason}",
        now=now,
        job=job,
        actor=actor,
        data={"generation": generation, "before": [*resize.held], "after": [*resize.wanted]},
    )


def _membership(
    job: Job,
    standing: _OpenRows,
    staying: Mapping[int, Allocation],
    wanted: Sequence[int],
    now: datetime.datetime,
    counts: Sequence[int] | None = None,
) -> tuple[Membership, int]:
    history = SlotHistory(
        job_id=job.pk,
        active=None if standing.active is None else standing.active.membership,
        newest=None if standing.newest is None else standing.newest.membership,
        live={accelerator_id: row.slot for accelerator_id, row in staying.items()},
        used=set(job.allocations.values_list("slot", flat=True)),
        next_slot=job.next_slot,
    )
    places = places_read()
    missing = [accelerator_id for accelerator_id in wanted if accelerator_id not in places]
    if missing:
        raise StaleError(f"accelerators {missing} are gone")
    return membership_next(
        history,
        wanted,
        places,
        generation=job.generation,
        num_virtual_nodes=job.num_virtual_nodes,
        has_checkpoint=standing.active is None and checkpoint_choose(job, now),
        step_times=accelerator_step_times(job, wanted),
        exchange=step_times_read([job])[job.pk].exchange(job),
        counts=None if counts is None else dict(zip(wanted, counts, strict=True)),
    )


def places_read() -> dict[int, TrainerAddresses]:
    """Read where trainers may listen: every present accelerator of every online node."""
    nodes = Node.objects.filter(removed_at=None, status=NodeStatus.ONLINE)
    rows: dict[int, list[tuple[int, int]]] = {}
    present = Accelerator.objects.filter(is_present=True, node__in=nodes)
    for pk, node_id, index in present.values_list("id", "node_id", "index"):
        rows.setdefault(node_id, []).append((pk, index))
    return {
        place.accelerator_id: place
        for node in nodes
        for place in places_on_node(
            node.pk, node.host, node.first_port, node.last_port, rows.get(node.pk, [])
        )
    }


def _allocations_write(
    job: Job,
    standing: _OpenRows,
    membership: Membership,
    kept: Mapping[int, Allocation],
    wanted: Sequence[int],
    now: datetime.datetime,
) -> None:
    accelerator_ids = _accelerator_ids(membership, wanted)
    kinds = dict(Accelerator.objects.filter(id__in=wanted).values_list("id", "kind"))
    is_trained = job.task == Task.TRAIN  # predictions are neither measured nor mix kinds
    unknown = set(kinds.values()) if is_trained else set()
    unknown -= {*step_times_read([job])[job.pk].by_kind} if unknown else set()
    # A report may free an accelerator after the cycle read the clock and before it read the rows.
    late = Allocation.objects.filter(accelerator_id__in=wanted, released_at__gt=now)
    freed_at = {row.accelerator_id: row.released_at or now for row in late}
    Allocation.objects.bulk_create(
        Allocation(
            job=job,
            accelerator_id=accelerator_ids[member.slot],
            slot=member.slot,
            granted_generation=membership.generation,
            granted_at=freed_at.get(accelerator_ids[member.slot], now),
            profile_requested=kinds[accelerator_ids[member.slot]] in unknown,
        )
        for member in membership.members
        if member.slot not in kept
    )
    rows = Allocation.objects.filter(job=job, released_at=None)
    rows.filter(slot__in=list(kept)).update(release_requested_at=None)
    joiners = [slot for slot in kept if slot not in standing.active_slots]
    # A joiner kept from the aborted generation belongs to the new one from here on.
    rows.filter(slot__in=joiners).update(granted_generation=membership.generation)
    leavers = standing.active_slots - set(kept)
    rows.filter(slot__in=leavers, release_requested_at=None).update(release_requested_at=now)
    unneeded = standing.booting_slots - set(kept)
    trainers_stop(job, now, sorted(unneeded))


def _accelerator_ids(membership: Membership, wanted: Sequence[int]) -> dict[int, int]:
    """Map slots to accelerator ids; members refer to accelerators by node and index."""
    by_place = {
        (node_id, index): pk
        for pk, node_id, index in Accelerator.objects.filter(id__in=wanted).values_list(
            "id", "node_id", "index"
        )
    }
    return {
        member.slot: by_place[member.node_id, member.accelerator_index]
        for member in membership.members
    }


def _empty(job: Job, standing: _OpenRows, reason: str, now: datetime.datetime, actor: str) -> None:
    if standing.preparing is not None and not preparing_abort(job, standing.preparing, now):
        raise StaleError("its joiners got ready just now")
    if standing.active is None:
        return  # there is no state to save; the job is pending already
    membership, _ = _membership(job, standing, {}, (), now)
    generation_add(job, membership, standing.active, now, reason=reason, actor=actor)
    Allocation.objects.filter(job=job, released_at=None, release_requested_at=None).update(
        release_requested_at=now
    )
    status_change(
        job,
        JobStatus.PREEMPTING,
        status_code="preempting",
        status_reason=f"Saves its state and gives up its accelerators: {reason}",
        policy_reason="",
    )
    event_add(
        "preemption_requested",
        f"Asked to save its state and leave: {reason}",
        now=now,
        job=job,
        actor=actor,
        data={"generation": membership.generation},
    )
