"""Rebalancing of virtual nodes among a job's trainers, before they start and during training.

A split is computed from the step times known at that time. The split is computed again when joiners
have profiled themselves, before any member receives the order to switch; and when members turn out
slower or faster than estimated: then the same trainers switch to a new generation with another
split, without a joiner. Every such move is a trial, undone when it does not reach its expected
gain.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from dataclasses import dataclass

from django.db import IntegrityError, transaction

from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from controlplane.core.values.types import Resize
from controlplane.core.virtual_nodes.rebalance_trial import (
    RebalancePlan,
    RebalanceTrial,
    RebalanceVerdict,
    move_verdict,
)
from controlplane.core.virtual_nodes.step_window import is_conclusive, typical_step_s
from controlplane.core.virtual_nodes.stragglers import MemberSpeed, revision_between
from controlplane.core.virtual_nodes.uneven_split import mapping_for
from jobs.models import Generation, Job
from jobs.models.resizes import MAPPING_ACTOR
from jobs.selectors.estimates.step_times import (
    StepTimes,
    kinds_by_place,
    members_read,
    moves_read,
    moves_written,
    slot_step_times,
    step_times_read,
    window_read,
)
from jobs.services.lifecycle.events import event_add, job_fields
from jobs.services.lifecycle.transitions import accelerators_kept
from jobs.services.scheduling.resizes import StaleError, resize_apply

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Move:
    """One job's move that is due now, with the rebalancing state that results from it.

    `verdict` is the reason to undo a move; None for a new trial.
    """

    generation: Generation
    resize: Resize
    moves: RebalancePlan
    verdict: RebalanceVerdict | None = None


def generation_remap(job: Job, generation: Generation) -> bool:
    """Recompute a preparing generation's split from known step times; False if unchanged.

    Members receive the split with the order to switch; a waiting joiner is ready for any split.
    """
    if generation.phase != GenerationPhase.PREPARING:
        return False
    membership = generation.membership
    slots = membership.slots
    rows = job.allocations.filter(slot__in=slots).select_related("accelerator")
    known = slot_step_times(job, rows)
    exchange = step_times_read([job])[job.pk].exchange(job)
    mapping = mapping_for(job.num_virtual_nodes, [known.get(slot) for slot in slots], exchange)
    members = tuple(
        dataclasses.replace(member, virtual_nodes=run)
        for member, run in zip(membership.members, mapping, strict=True)
    )
    if members == membership.members:
        return False
    generation.membership = dataclasses.replace(membership, members=members)
    return bool(
        Generation.objects.filter(id=generation.pk, phase=GenerationPhase.PREPARING).update(
            membership=generation.membership
        )
    )


def mappings_revise(now: datetime.datetime, *, busy: set[int]) -> set[int]:
    """Judge past moves and start new ones that pay off now; return the changed jobs.

    Args:
        busy: jobs that a policy is about to resize; the resize splits them again anyway.
    """
    rows = [
        row
        for row in Generation.objects.filter(
            phase=GenerationPhase.ACTIVE,
            num_members__gte=2,
            job__status=JobStatus.RUNNING,
            job__pause_requested=False,
        ).select_related("job")
        if row.job_id not in busy
        and row.number == row.job.generation  # no newer generation is under way
        and not row.is_parked
        and (row.job.moves.get("trial") or is_conclusive(window_read(row)))
    ]
    if not rows:
        return set()
    kinds = kinds_by_place(rows)
    times = step_times_read([row.job for row in rows])
    changed = set()
    for row in rows:
        members = members_read(row, kinds)
        if moves_read(row.job).trial is not None:
            due = _judged(row, members, now)
        else:
            due = _revised(row, members, times[row.job_id], now)
        if due is not None and _apply(due, now):
            changed.add(row.job_id)
    return changed


def _judged(row: Generation, members: list[MemberSpeed], now: datetime.datetime) -> _Move | None:
    """Judge the move on trial; return the move that undoes it if the trial did not pay off."""
    moves, job = moves_read(row.job), row.job
    trial = moves.trial
    assert trial is not None, "there is something to judge"
    if trial.generation != row.number:  # a resize since then made a split of its own
        _keep(job, moves.dropped())
        return None
    verdict = move_verdict(trial, window_read(row))
    if verdict is None:
        return None
    numbers = (
        f"a step takes {verdict.measured_s * 1e3:.0f} ms, {trial.before_s * 1e3:.0f} ms before; "
        f"{trial.promised_s * 1e3:.0f} ms were expected"
    )
    if verdict.has_paid:
        _keep(job, moves.paid())
        text = f"Moving virtual nodes paid: {numbers}"
        event_add(
            "move_kept", text, now=now, job=job, actor=MAPPING_ACTOR, data=_data(trial, verdict)
        )
        return None
    counts = tuple(trial.counts[member.slot] for member in members)
    reason = f"moving virtual nodes did not pay: {numbers}"
    return _move(row, counts, reason, moves.failed(now.timestamp()), verdict)


def _revised(
    row: Generation, members: list[MemberSpeed], known: StepTimes, now: datetime.datetime
) -> _Move | None:
    """Return the move that pays off now, if any and if another trial is allowed."""
    moves = moves_read(row.job)
    if not moves.may_move(now.timestamp()):
        return None
    measured_s = typical_step_s(window_read(row))
    revision = revision_between(members, known.by_kind, known.exchange(row.job), measured_s)
    if revision is None:
        return None
    before = {member.slot: member.num_virtual_nodes for member in members}
    trial = RebalanceTrial(row.number + 1, before, revision.before_s, revision.after_s)
    tried = moves.tried(trial, now.timestamp())
    return _move(row, revision.counts, revision.reason, tried)


def _move(
    row: Generation,
    counts: tuple[int, ...],
    reason: str,
    moves: RebalancePlan,
    verdict: RebalanceVerdict | None = None,
) -> _Move | None:
    held = accelerators_kept(row, stalled_at=None)
    if not held:
        return None
    return _Move(row, Resize(row.job_id, held, held, reason, counts=counts), moves, verdict)


def _apply(due: _Move, now: datetime.datetime) -> bool:
    """Apply a move; return False if the job has changed meanwhile."""
    job, before = due.generation.job, moves_read(due.generation.job)
    try:
        with transaction.atomic():
            resize_apply(due.resize, due.generation.number, now, actor=MAPPING_ACTOR)
            _keep(job, due.moves)
            if due.verdict is not None:
                assert before.trial is not None, "only a trial is taken back"
                wait_s = due.moves.until_s - now.timestamp()
                event_add(
                    "move_undone",
                    f"Taken back: {due.resize.reason}. No other move for {wait_s:.0f} s",
                    now=now,
                    job=job,
                    actor=MAPPING_ACTOR,
                    data={**_data(before.trial, due.verdict), "failures": due.moves.failures},
                )
    except (StaleError, IntegrityError) as error:
        logger.info("a move in job %s was overtaken: %s", job.pk, error, extra=job_fields(job))
        return False
    return True


def _data(trial: RebalanceTrial, verdict: RebalanceVerdict) -> dict[str, float]:
    return {
        "before_s": trial.before_s,
        "promised_s": trial.promised_s,
        "measured_s": verdict.measured_s,
    }


def _keep(job: Job, moves: RebalancePlan) -> None:
    job.moves = moves_written(moves)
    Job.objects.filter(id=job.pk).update(moves=job.moves)
