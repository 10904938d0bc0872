"""Recovery of a job from losses: survivors continue at once from their state in memory.

`job_recover` derives its actions from the rows alone, so it may be called at any time and any
number of times. Callers hold the job's lock and have detected a loss by reports, expired node
leases, or time limits.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from controlplane.core.membership.recovery import (
    RecoveryDecision,
    SurvivorState,
    judge,
    membership_recover,
)
from controlplane.core.protocol.wire import Member, Membership
from controlplane.core.values.lifecycle import (
    HOLDING_JOB_STATUSES,
    OPEN_PHASES,
    GenerationPhase,
    JobStatus,
)
from jobs.models import Allocation, Generation, Job
from jobs.selectors.estimates.step_times import slot_step_times
from jobs.services.failures.first_generation import first_generation_check
from jobs.services.failures.losses import STATE_LOST, is_lost, loss_facts, losses_text
from jobs.services.failures.start_failures import job_start_again, start_failure_note
from jobs.services.lifecycle.attempts import attempt_count
from jobs.services.lifecycle.events import SYSTEM, event_add
from jobs.services.lifecycle.missed_reports import membership_ask_missed
from jobs.services.lifecycle.predictions import membership_resume
from jobs.services.lifecycle.transitions import (
    generation_add,
    generation_end,
    job_restart,
    preparing_abort,
    status_change,
    trainers_stop,
)

BELOW_MINIMUM = "below_minimum"
#: Losses that do not count against the accelerator, even of a trainer that never joined.
_BLAMELESS = frozenset({"node_lost", STATE_LOST})
#: Losses that count against the accelerator even of a trainer that joined.
_TELLING = frozenset({"crash", "unreachable"})
_REASON_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Scene:
    """Open memberships of a locked job, and the allocations of their members by slot."""

    active: Generation | None
    switching: Generation | None
    preparing: Generation | None
    rows: dict[int, Allocation]

    @property
    def newest(self) -> Generation:
        newest = self.preparing or self.switching or self.active
        assert newest is not None
        return newest

    def members(self) -> dict[int, Member]:
        """List members by slot: training members first, then switching, then joiners."""
        found: dict[int, Member] = {}
        for generation in (self.active, self.switching, self.preparing):
            for member in generation.membership.members if generation else ():
                found.setdefault(member.slot, member)
        return found


def job_recover(job: Job, now: datetime.datetime, *, actor: str = SYSTEM) -> bool:
    """Continue a locked job without its lost trainers; return False if no action is needed.

    Survivors get a generation of their own at once. Without survivors, or when recoveries do not
    lead to a new step, the job restarts from its newest checkpoint.
    """
    if job.status not in HOLDING_JOB_STATUSES:
        return False
    scene = scene_read(job)
    if scene is None:
        return False
    if scene.active is None and scene.switching is None:
        return first_generation_check(job, scene.newest, scene.rows, now, actor=actor)
    verdict = judge(
        _standings(scene),
        stalled_for_s=_stalled_for_s(scene, now),
        grace_s=settings.STALL_GRACE_S,
        silence_s=2 * settings.HEARTBEAT_S,
        limit=job.max_accelerators,
    )
    if verdict is None:
        return _joiners_check(job, scene, now, actor)
    suspects = [scene.rows[slot] for slot in verdict.suspects]
    pks = [row.pk for row in suspects]
    Allocation.objects.filter(id__in=pks).update(lost_code="unreachable")
    for row in suspects:
        row.lost_code = "unreachable"
    gone = [scene.rows[slot] for slot in sorted(verdict.lost | verdict.suspects)]
    _crashes_note(gone, now)
    if not _is_worth_going_on(job, scene, verdict, gone):
        _start_anew(job, scene, gone, now, actor)
    elif attempt_count(job, "recoveries").recoveries > settings.RECOVERY_LIMIT:
        text = f"{settings.RECOVERY_LIMIT} recoveries in a row led to no step; the last loss: "
        reason = text + (losses_text(gone) or "all trainers stalled")
        job_restart(job, now, code="recovery_limit", reason=reason, actor=actor)
    else:
        _go_on(job, scene, verdict, gone, now, actor)
    return True


def scene_read(job: Job) -> Scene | None:
    """Read the open memberships of a job; None if it has none."""
    by_phase = {row.phase: row for row in job.generations.filter(phase__in=OPEN_PHASES)}
    if not by_phase:
        return None
    slots = {slot for row in by_phase.values() for slot in row.membership.slots}
    rows = job.allocations.filter(slot__in=slots).select_related("accelerator__node")
    return Scene(
        active=by_phase.get(GenerationPhase.ACTIVE),
        switching=by_phase.get(GenerationPhase.SWITCHING),
        preparing=by_phase.get(GenerationPhase.PREPARING),
        rows={row.slot: row for row in rows},
    )


def _standings(scene: Scene) -> list[SurvivorState]:
    needed = _needed_slots(scene)
    since = _stalled_since(scene)
    training = _slots(scene.active)
    return [
        SurvivorState(
            slot=slot,
            is_needed=slot in needed,
            is_lost=is_lost(row),
            is_ready=row.ready_at is not None or row.joined_at is not None,
            has_state=row.joined_at is not None or slot in training,
            is_leaving=row.release_requested_at is not None,
            is_stalled=row.stalled_at is not None,
            unreachable=frozenset(row.unreachable),
            is_silent=since is not None and row.accelerator.node.last_seen_at < since,
        )
        for slot in scene.members()
        if (row := scene.rows[slot]).left_at is None and row.finished_at is None
    ]


def _needed_slots(scene: Scene) -> set[int]:
    """List the slots needed to continue; a planned switch needs old and new members."""
    switching = scene.switching
    if switching is None:
        return _slots(scene.active)
    if switching.is_recovery:
        return _slots(switching)
    source = scene.rows.get(switching.membership.source_slot)
    if not switching.num_members and source is not None and source.left_at is not None:
        return set()  # the state is saved
    return _slots(switching) | _slots(scene.active)


def _slots(generation: Generation | None) -> set[int]:
    if generation is None:
        return set()
    return set(generation.membership.slots)


def _stalled_since(scene: Scene) -> datetime.datetime | None:
    since = [row.stalled_at for row in scene.rows.values() if row.stalled_at and not is_lost(row)]
    return min(since, default=None)


def _stalled_for_s(scene: Scene, now: datetime.datetime) -> float:
    since = _stalled_since(scene)
    return 0.0 if since is None else (now - since).total_seconds()


def _joiners_check(job: Job, scene: Scene, now: datetime.datetime, actor: str) -> bool:
    """Abort a resize whose joiner is lost; the members' training is not affected."""
    preparing = scene.preparing
    if preparing is None:
        return False
    joiners = _slots(preparing) - _slots(scene.active)
    gone = [row for slot in sorted(joiners) if is_lost(row := scene.rows[slot])]
    if not gone or not preparing_abort(job, preparing, now):
        return False
    _crashes_note(gone, now)
    event_add(
        "resize_given_up",
        f"A new trainer did not come up: {losses_text(gone)}",
        now=now,
        job=job,
        actor=actor,
        data={"generation": preparing.number, "lost": [loss_facts(row, now) for row in gone]},
    )
    return True


def _crashes_note(gone: Sequence[Allocation], now: datetime.datetime) -> None:
    """Count crashes, unreachable trainers and failed joins against their accelerators."""
    for row in gone:
        is_late = row.joined_at is None and row.lost_code not in _BLAMELESS
        if is_late or row.lost_code in _TELLING:
            start_failure_note(row, now)


def _is_worth_going_on(
    job: Job, scene: Scene, verdict: RecoveryDecision, gone: Sequence[Allocation]
) -> bool:
    """Return whether survivors have state that a restart would lose.

    A member that only listens has none, but its progress is unknown until its first report.
    """
    if any(row.lost_code == STATE_LOST for row in gone):  # no survivor has the state
        return False
    if scene.active is None:  # no step is done; survivors can begin as well as new trainers
        return len(verdict.survivors) >= job.min_accelerators
    training = _slots(scene.active)
    return any(slot in training or scene.rows[slot].joined_at for slot in verdict.survivors)


def _start_anew(
    job: Job, scene: Scene, gone: Sequence[Allocation], now: datetime.datetime, actor: str
) -> None:
    codes = [row.lost_code for row in gone if row.lost_code]
    # Nodes lost before the first step are not the job's fault and do not count against its limits.
    is_counted = scene.active is not None or any(code != "node_lost" for code in codes)
    job_start_again(
        job,
        now,
        code=codes[0] if codes else "stopped",
        reason=_reason(scene, gone),
        actor=actor,
        is_counted=is_counted,
    )


def _go_on(
    job: Job,
    scene: Scene,
    verdict: RecoveryDecision,
    gone: Sequence[Allocation],
    now: datetime.datetime,
    actor: str,
) -> None:
    job.update_columns(generation=job.generation + 1)
    membership = membership_resume(job, _membership(job, scene, verdict))
    membership = membership_ask_missed(job, membership)
    reason = _reason(scene, gone)
    noticed_at = now - datetime.timedelta(seconds=max(_stalled_for_s(scene, now), 0.0))
    lost = [loss_facts(row, noticed_at) for row in gone]
    if scene.switching is not None and scene.switching.is_recovery:
        lost = [*scene.switching.lost, *lost]
    for generation in (scene.preparing, scene.switching):
        if generation is not None:
            generation_end(generation, GenerationPhase.ABORTED, now)
    generation_add(job, membership, scene.active, now, reason=reason, actor=actor, lost=lost)
    _allocations_write(job, scene, verdict, now)
    if job.status == JobStatus.PREEMPTING:
        status_change(job, JobStatus.RUNNING, status_code="", status_reason="")
    num_left = len(membership.members)
    event_add(
        "recovery_requested",
        f"{num_left} of {num_left + len(gone)} trainers go on: {reason}",
        now=now,
        job=job,
        actor=actor,
        data={"generation": membership.generation, "lost": lost},
    )
    if membership.parked:
        _hold_report(job, num_left, now, actor)


def _reason(scene: Scene, gone: Sequence[Allocation]) -> str:
    """Describe the losses, including those of a recovery under way."""
    reason = losses_text(gone) or "all trainers stalled and can be reached again"
    if scene.switching is not None and scene.switching.is_recovery:
        reason = f"{scene.switching.reason}; {reason}"[:_REASON_LIMIT]
    return reason


def _membership(job: Job, scene: Scene, verdict: RecoveryDecision) -> Membership:
    members = scene.members()
    ruling = scene.active or scene.switching
    assert ruling is not None
    return membership_recover(
        [members[slot] for slot in verdict.survivors],
        leader_slot=ruling.membership.leader_slot,
        cluster_addresses=scene.newest.membership.cluster_addresses,
        generation=job.generation,
        num_virtual_nodes=job.num_virtual_nodes,
        min_accelerators=job.min_accelerators,
        global_batch_size=job.chosen_batch_size,
        restore=scene.active is None and ruling.membership.restore,
        step_times=slot_step_times(
            job, job.allocations.filter(slot__in=verdict.survivors).select_related("accelerator")
        ),
    )


def _allocations_write(
    job: Job, scene: Scene, verdict: RecoveryDecision, now: datetime.datetime
) -> None:
    rows = Allocation.objects.filter(job=job, released_at=None)
    rows.filter(slot__in=verdict.survivors).update(
        release_requested_at=None, stalled_at=None, stalled_step=None, unreachable=[]
    )
    joiners = [slot for slot in verdict.survivors if slot not in _slots(scene.active)]
    rows.filter(slot__in=joiners).update(granted_generation=job.generation)
    trainers_stop(job, now, sorted(verdict.lost | verdict.suspects | verdict.dropped))


def _hold_report(job: Job, num_left: int, now: datetime.datetime, actor: str) -> None:
    text = (
        f"Waits with its state in memory: {num_left} of at least {job.min_accelerators} "
        "accelerators are left. It goes on when it has enough again."
    )
    job.update_columns(status_code=BELOW_MINIMUM, status_reason=text, revision=job.revision + 1)
    event_add(
        "held",
        text,
        now=now,
        job=job,
        actor=actor,
        data={"num_left": num_left, "min_accelerators": job.min_accelerators},
    )


def hold_end(job: Job, generation: Generation) -> None:
    """Clear the status of a job held below its minimum once a membership trains again."""
    if job.status_code == BELOW_MINIMUM and not generation.is_parked:
        job.update_columns(status_code="", status_reason="", revision=job.revision + 1)
