"""Moving virtual nodes between the trainers of a job: before they begin, and while they train.

A split is made from what is known at the time. It is made again when joiners have measured
themselves, before anybody is told to go; and when members turn out to be slower or faster than was
thought: then the same trainers go over to a new generation with another split, without a joiner.
Every such move is a trial: it is taken back when it did not bring what it promised.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from dataclasses import dataclass

from django.db import IntegrityError, transaction

from controlplane.core.protocol.wire import Membership, decode, encode
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from controlplane.core.values.types import Resize
from controlplane.core.virtual_nodes.rebalance_trial import (
    RebalancePlan,
    RebalanceTrial,
    RebalanceVerdict,
    move_verdict,
)
from controlplane.core.virtual_nodes.step_window import is_telling, typical_step_s
from controlplane.core.virtual_nodes.stragglers import MemberSpeed, revision_between
from controlplane.core.virtual_nodes.uneven_split import mapping_for
from jobs.models import Generation, Job
from jobs.models.resizes import MAPPING_ACTOR
from jobs.selectors.estimates.step_times import (
    StepTimes,
    kinds_by_place,
    members_read,
    slot_step_times,
    step_times_read,
)
from jobs.selectors.estimates.step_windows import moves_read, moves_written, window_read
from jobs.services.lifecycle.events import event_add
from jobs.services.scheduling.resizes import StaleError, resize_apply

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Move:
    """One job's move that is due, and what its moves have come to with it.

    `verdict` says why a move is taken back; None where one is tried.
    """

    generation: Generation
    resize: Resize
    moves: RebalancePlan
    verdict: RebalanceVerdict | None = None


def generation_remap(job: Job, generation: Generation) -> bool:
    """Split a preparing generation's virtual nodes again, by what is known now; False: unchanged.

    Its members hear of it with the order to go; a joiner that waits is ready for any split.
    """
    if generation.phase != GenerationPhase.PREPARING:
        return False
    membership = decode(Membership, generation.membership)
    slots = [member.slot for member in membership.members]
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
    generation.membership = encode(dataclasses.replace(membership, members=members))
    return bool(
        Generation.objects.filter(id=generation.pk, phase=GenerationPhase.PREPARING).update(
            membership=generation.membership
        )
    )


def mappings_revise(now: datetime.datetime, *, busy: set[int]) -> set[int]:
    """Judge the moves that were made, and make those that pay now; give the jobs that changed.

    Args:
        busy: jobs that a policy is about to resize; they are split anew anyway.
    """
    rows = [
        row
        for row in Generation.objects.filter(
            phase=GenerationPhase.ACTIVE,
            num_members__gte=2,
            job__status=JobStatus.RUNNING,
            job__is_pause_asked=False,
        ).select_related("job")
        if row.job_id not in busy
        and row.number == row.job.generation  # nothing newer is under way
        and not row.is_held
        and (row.job.moves.get("trial") or is_telling(window_read(row)))
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
    """Judge the move that is being tried; give the move back when it did not pay."""
    moves, job = moves_read(row.job), row.job
    trial = moves.trial
    assert trial is not None, "there is something to judge"
    if trial.generation != row.number:  # it was resized since, and split by what is known
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
    return _move(row, members, counts, reason, moves.failed(now.timestamp()), verdict)


def _revised(
    row: Generation, members: list[MemberSpeed], known: StepTimes, now: datetime.datetime
) -> _Move | None:
    """Find the move that pays now, if there is one and it may be tried."""
    moves = moves_read(row.job)
    if not moves.may_move(now.timestamp()):
        return None
    measured_s = typical_step_s(window_read(row))
    revision = revision_between(members, known.by_kind, known.exchange(row.job), measured_s)
    if revision is None:
        return None
    before = {member.slot: member.num_virtual_nodes for member in members}
    trial = RebalanceTrial(row.number + 1, before, revision.before_s, revision.after_s)
    return _move(
        row, members, revision.counts, revision.reason, moves.tried(trial, now.timestamp())
    )


def _move(
    row: Generation,
    members: list[MemberSpeed],
    counts: tuple[int, ...],
    reason: str,
    moves: RebalancePlan,
    verdict: RebalanceVerdict | None = None,
) -> _Move | None:
    held = _accelerators(row, members)
    if not held:
        return None
    return _Move(row, Resize(row.job_id, held, held, reason, counts=counts), moves, verdict)


def _apply(due: _Move, now: datetime.datetime) -> bool:
    """Carry out a move unless the job has moved on."""
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
        logger.info("a move in job %s was overtaken: %s", job.pk, error)
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


def _accelerators(generation: Generation, members: list[MemberSpeed]) -> tuple[int, ...]:
    """List the accelerators of members in their order; none when one is on its way out or waits."""
    rows = generation.job.allocations.filter(
        released_at=None, stop_asked_at=None, left_at=None, finished_at=None, stalled_at=None
    )
    by_slot = dict(rows.values_list("slot", "accelerator_id"))
    if any(member.slot not in by_slot for member in members):
        return ()
    return tuple(by_slot[member.slot] for member in members)
