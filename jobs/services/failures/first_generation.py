"""Losses while a job's first trainers prepare: no trainer has any state yet."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping

from controlplane.core.protocol.wire import Membership
from controlplane.core.values.lifecycle import GenerationPhase
from controlplane.core.virtual_nodes.uneven_split import mapping_for
from jobs.models import Allocation, Generation, Job
from jobs.selectors.estimates.step_times import slot_step_times
from jobs.services.failures.losses import is_lost, loss_facts, losses_text
from jobs.services.failures.start_failures import job_start_again, start_failure_note
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import generation_add, generation_end


def first_generation_check(
    job: Job,
    preparing: Generation,
    rows: Mapping[int, Allocation],
    now: datetime.datetime,
    *,
    actor: str,
) -> bool:
    """Continue with the remaining joiners, booting or ready, or return the job to the queue.

    Only time is lost, so a lost node is not counted against the job.

    Args:
        rows: the allocations of the generation's members by slot, with accelerator and node.
    """
    members = preparing.membership.members
    gone = [row for member in members if is_lost(row := rows[member.slot])]
    if not gone:
        return False
    for row in gone:
        if row.lost_code != "node_lost":
            start_failure_note(row, now)
    left = [member.slot for member in members if not is_lost(rows[member.slot])]
    if len(left) >= job.min_accelerators and generation_end(
        preparing, GenerationPhase.ABORTED, now
    ):
        _go_on(job, preparing, [rows[slot] for slot in left], gone, now, actor)
        return True
    codes = [row.lost_code for row in gone]
    job_start_again(
        job,
        now,
        code=codes[0] or "stopped",
        reason=losses_text(gone),
        actor=actor,
        is_counted=any(code != "node_lost" for code in codes),
    )
    return True


def _go_on(
    job: Job,
    preparing: Generation,
    left: list[Allocation],
    gone: list[Allocation],
    now: datetime.datetime,
    actor: str,
) -> None:
    job.update_columns(generation=job.generation + 1)
    membership = _membership(job, preparing, [row.slot for row in left])
    are_ready = all(row.ready_at for row in left)
    same = {name: getattr(preparing, name) for name in ("reason", "actor", "requested_at")}
    generation_add(job, membership, None, now, is_ready=are_ready, **same)
    Allocation.objects.filter(id__in=[row.pk for row in left]).update(
        granted_generation=membership.generation
    )
    Allocation.objects.filter(
        id__in=[row.pk for row in gone], released_at=None, stop_requested_at=None
    ).update(stop_requested_at=now)
    event_add(
        "start_reduced",
        f"Starts on {len(left)} of {len(left) + len(gone)} accelerators: {losses_text(gone)}",
        now=now,
        job=job,
        actor=actor,
        data={
            "generation": membership.generation,
            "lost": [loss_facts(row, now) for row in gone],
        },
    )


def _membership(job: Job, preparing: Generation, slots: list[int]) -> Membership:
    old = preparing.membership
    rows = job.allocations.filter(slot__in=slots).select_related("accelerator")
    known = slot_step_times(job, rows)
    kept = [member for member in old.members if member.slot in slots]
    mapping = mapping_for(job.num_virtual_nodes, [known.get(member.slot) for member in kept])
    return dataclasses.replace(
        old,
        generation=job.generation,
        members=tuple(
            dataclasses.replace(member, virtual_nodes=virtual_nodes)
            for member, virtual_nodes in zip(kept, mapping, strict=True)
        ),
        leader_slot=old.leader_slot if old.leader_slot in slots else slots[0],
    )
