"""Handlers of trainer reports, one per kind. Run under the job's lock."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.nonfinite import NONFINITE_CODES
from controlplane.core.protocol.wire import ReductionMode, ReportKind, Task, TrainerReport
from controlplane.core.tuning.search import TrialEnd
from controlplane.core.tuning.trial_report import TrialReport
from controlplane.core.values.lifecycle import RESIZING_PHASES, GenerationPhase, JobStatus
from jobs.models import Allocation, Artifact, Generation, Job, Trial
from jobs.selectors.estimates.memory import out_of_memory_text, size_text
from jobs.selectors.estimates.nonfinite import nonfinite_states, nonfinite_text
from jobs.selectors.estimates.step_times import kinds_by_place, members_read
from jobs.selectors.reproducibility import kinds_used
from jobs.selectors.tuning import values_text
from jobs.services.failures.memory_kills import MEMORY_KILL, memory_kill_again, memory_kill_report
from jobs.services.failures.recovery import hold_end
from jobs.services.failures.start_failures import start_failure_forget
from jobs.services.lifecycle.artifacts import CHECKPOINT
from jobs.services.lifecycle.events import SYSTEM, event_add, reported_event_add
from jobs.services.lifecycle.predictions import predictions_are_whole
from jobs.services.lifecycle.report_context import ReportContext
from jobs.services.lifecycle.resize_events import resize_event_write
from jobs.services.lifecycle.transitions import (
    generation_end,
    job_end,
    job_restart,
    start_forget,
    status_change,
    trainers_stop,
)
from jobs.services.lifecycle.usage_days import usage_changed
from jobs.services.reports.nonfinite import failure_nonfinite
from jobs.services.reports.profiles import profile_take
from jobs.services.reports.progress import digest_take, epoch_take, phase_take, steps_take
from jobs.services.reports.selection import passes_take, selection_end_take
from jobs.services.scheduling.adoptions import adoption_noted
from jobs.services.scheduling.batch_sizes import batch_size_note
from jobs.services.scheduling.rebalancing import generation_remap
from jobs.services.scheduling.resizes import job_empty

_MIXED_EVENT_KIND = "kinds_mixed"


def reproducibility_note(job: Job, generation: Generation, now: datetime.datetime) -> None:
    """Add the event once, when a locked job first uses a second kind of accelerator."""
    if job.reduction == ReductionMode.FAST:
        return  # a fast reduction is never reproducible bit for bit
    members = members_read(generation, kinds_by_place([generation]))
    kinds = sorted({member.kind for member in members} | set(kinds_used(job)))
    if len(kinds) < 2 or job.events.filter(kind=_MIXED_EVENT_KIND).exists():
        return
    event_add(
        _MIXED_EVENT_KIND,
        f"From step {generation.step} on it has trained on {' and '.join(kinds)}: another run "
        "gives the same within rounding, no longer bit for bit",
        now=now,
        job=job,
        data={"generation": generation.number, "kinds": kinds, "step": generation.step},
    )


def trial_take(context: ReportContext, _allocation: Allocation, report: TrainerReport) -> None:
    """Keep a trial; a report of an older state of it changes nothing.

    A new leader repeats reports after its own first step: the step that is kept is that of the
    first report of a state. A job that restarts from an older checkpoint tries again.

    Raises:
        ValueError: the job is not tuned, or has other tunables, or its trials are jobs of their
            own, which the control plane records itself.
    """
    job, spec = context.job, context.job.tuning_spec
    trial = decode(TrialReport, report.data)
    if spec is None or spec.parallel or tuple(sorted(trial.values)) != spec.names:
        raise ValueError("the job does not tune these values")
    known = Trial.objects.filter(job=job, number=trial.number).first()
    place = (report.generation, trial.step)
    if known is not None and place < (known.generation, known.step):
        return
    fields = encode(trial) | {
        "verdict": trial.verdict or "",
        "end": trial.end or "",
        "search_end": trial.search_end or "",
    }
    step = fields.pop("step")
    if known is not None and all(getattr(known, name) == fields[name] for name in fields):
        step = known.step
    fields |= {"step": step, "generation": report.generation, "at": context.now}
    Trial.objects.update_or_create(job=job, number=fields.pop("number"), defaults=fields)
    if trial.end is TrialEnd.KEPT and (known is None or known.end != trial.end):
        text = f"Search {trial.search} keeps trial {trial.number}: {values_text(trial.values)}"
        reported_event_add("tuned", text, now=context.now, job=job, data={"values": trial.values})


#: Failures that a retry elsewhere cannot cure: faults of the job's code or its device demands.
_OWN_FAILURES = frozenset({"user_code", "out_of_memory"}) | NONFINITE_CODES
#: Failures that cost the trainer alone. Other codes are those of losses found out here.
_TRAINER_FAILURES = frozenset(
    {
        "internal",
        "port_in_use",
        "peer_lost",
        "state_lost",
        "state_misfit",
        "state_damaged",
        MEMORY_KILL,
    }
)
_SLOTS_LIMIT = 256
_CHECKPOINT_EVENTS_APART = datetime.timedelta(seconds=5)


def generation_advance(job: Job, now: datetime.datetime) -> bool:
    """Switch a preparing generation once all joiners are ready; return False if it must wait."""
    generation = job.generations.filter(phase=GenerationPhase.PREPARING).first()
    if generation is None:
        return False
    slots = generation.membership.slots
    num_ready = job.allocations.filter(
        slot__in=slots, released_at=None, ready_at__isnull=False
    ).count()
    if num_ready < len(slots):
        return False
    return bool(
        Generation.objects.filter(id=generation.pk, phase=GenerationPhase.PREPARING).update(
            phase=GenerationPhase.SWITCHING, ready_at=now, switch_ordered_at=now
        )
    )


def _ready(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    preparing = context.job.generations.filter(phase=GenerationPhase.PREPARING).first()
    if profile_take(context, allocation, report) and preparing is not None:
        generation_remap(context.job, preparing)
    Allocation.objects.filter(id=allocation.pk, ready_at=None).update(ready_at=context.now)
    start_failure_forget(allocation)
    generation_advance(context.job, context.now)


def _switched(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    generation = context.generation(report.generation)
    if generation is None:
        return
    Allocation.objects.filter(id=allocation.pk, joined_at=None).update(joined_at=context.now)
    Allocation.objects.filter(id=allocation.pk, switched_generation__lt=generation.number).update(
        switched_generation=generation.number, stalled_at=None, stalled_step=None, unreachable=[]
    )
    # Keep the longest pause of any trainer, and the largest number of bytes that one moved.
    generation.pause_s = max(generation.pause_s or 0.0, report.data.get("pause_s") or 0.0)
    moved = report.data.get("bytes_moved") or 0
    generation.bytes_moved = max(generation.bytes_moved or 0, moved)
    generation.num_switched += 1
    generation.save(update_fields=["pause_s", "bytes_moved", "num_switched"])
    if generation.switched_at is not None:
        usage_changed(generation.switched_at, generation.switched_at, context.now)
    is_leader = allocation.slot == generation.membership.leader_slot
    if is_leader and context.is_live:
        number = report.data.get("adopted") or 0
        adoption_noted(context.job, number, report.data["step"], context.now)
    if is_leader and generation.phase == GenerationPhase.SWITCHING:
        _activate(context, generation, report.data["step"])
    resize_event_write(generation, context.now)


def _activate(context: ReportContext, generation: Generation, step: int) -> None:
    job, now = context.job, context.now
    before = job.generations.filter(phase=GenerationPhase.ACTIVE).first()
    if before is not None:
        generation_end(before, GenerationPhase.CLOSED, now)
    Generation.objects.filter(id=generation.pk, phase=GenerationPhase.SWITCHING).update(
        phase=GenerationPhase.ACTIVE, switched_at=now, step=step
    )
    generation.phase, generation.switched_at = GenerationPhase.ACTIVE.value, now
    generation.step = step
    batch_size_note(job, generation)
    reproducibility_note(job, generation, now)
    hold_end(job, generation)
    if context.is_live and job.pause_requested:
        job_empty(job, now, reason="paused by its owner or an admin", actor="system")


def _checkpointed(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    step = report.data["step"]
    text = f"The checkpoint of step {step} could not be stored"
    is_lost = _lost_note(context, report, "checkpoint_lost", text, f"node:{context.node.name}")
    if (
        not is_lost
        and not report.data.get("superseded")
        and Artifact.objects.filter(
            # Matched by generation: the report's digest is of the state, not of the file.
            job=context.job,
            name=CHECKPOINT,
            generation=report.generation,
        ).update(step=step, epoch=report.data.get("epoch"))
    ):
        _checkpoint_note(context, allocation, report)
    if report.data.get("is_last") is False:
        return  # a checkpoint during training, which continues
    job = context.job
    job.generations.filter(number=report.generation, num_members=0).update(
        step=step, switched_at=context.now
    )
    Allocation.objects.filter(id=allocation.pk, left_at=None).update(left_at=context.now)


def _checkpoint_note(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    """Add the event of a stored checkpoint, but few: job code can report one at will."""
    job, now, data = context.job, context.now, report.data
    since = now - _CHECKPOINT_EVENTS_APART
    is_beside = data.get("is_last") is False
    if allocation.left_at or (
        is_beside and job.events.filter(kind="checkpointed", at__gt=since).exists()
    ):
        return
    event_add(
        "checkpointed",
        f"State of step {data['step']} saved ({size_text(data['bytes'])})",
        now=now,
        job=job,
        data={"step": data["step"], "sha256": data["sha256"]},
    )


def _part(context: ReportContext, _allocation: Allocation, report: TrainerReport) -> None:
    _lost_note(context, report, "part_lost", "A part of the predictions could not be stored")


def _left(context: ReportContext, allocation: Allocation, _report: TrainerReport) -> None:
    Allocation.objects.filter(id=allocation.pk, left_at=None).update(left_at=context.now)


def _finished(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    job, now, data = context.job, context.now, report.data
    Allocation.objects.filter(id=allocation.pk, finished_at=None).update(finished_at=now)
    if not context.is_live or "metrics" not in data:
        return  # only the leader's report carries results
    if job.task == Task.PREDICT and not predictions_are_whole(job, data):
        text = "some of its predictions were lost with a node before they were stored"
        job_restart(job, now, code="predictions_lost", reason=text)
        return
    # Abort a resize that the last step overtook, even one with the order to switch given: its
    # joiners would wait forever.
    overtaken = job.generations.filter(
        phase__in=RESIZING_PHASES,
        number__gt=report.generation,
    ).first()
    if overtaken is not None:
        slots = overtaken.membership.slots
        waiting = job.allocations.filter(slot__in=slots).exclude(slot=allocation.slot)
        if not overtaken.is_recovery:  # in a recovery all but the leader wait for the others
            waiting = waiting.filter(joined_at=None)
        generation_end(overtaken, GenerationPhase.ABORTED, now)
        trainers_stop(job, now, list(waiting.values_list("slot", flat=True)))
    # Other members exit within LEAVE_LIMIT_S; the open generation closes with the last one.
    metrics = {**job.metrics, **data["metrics"]}
    reason = {"steps": "all steps done", "epochs": "all epochs done", "metric": "target reached"}
    text = reason.get(data.get("reason") or "", "done")
    odd = nonfinite_text(nonfinite_states(job))
    status_change(
        job,
        JobStatus.FINISHED,
        ended_at=now,
        status_code="finished",
        status_reason=f"Finished at step {data['step']}: {text}. {odd}".strip(),
        policy_reason="",
        pause_requested=False,
        metrics=metrics,
        digest=data.get("digest") or "",
        error_traceback="",
        step=data["step"],
    )
    start_forget([job])
    event_add(
        "finished",
        job.status_reason,
        now=now,
        job=job,
        data={"metrics": metrics, "digest": job.digest, "files": data.get("files") or []},
    )
    passes_take(job, data.get("passed") or {})
    _lost_note(context, report, "files_lost", "Not stored")


def _lost_note(
    context: ReportContext, report: TrainerReport, kind: str, text: str, actor: str = SYSTEM
) -> bool:
    """Add an event about a file that could not be stored; return whether that is so."""
    errors = report.data.get("upload_errors")
    if errors:
        message = f"{text}: {str(errors)[:500]}"
        reported_event_add(kind, message, now=context.now, job=context.job, actor=actor)
    return bool(errors)


def _nonfinite_fields(context: ReportContext, report: TrainerReport) -> dict[str, Any]:
    """Read the step of a non-finite value that ended the job; its checkpoint is of that step."""
    reported = report.data.get("step")
    step = context.job.step if reported is None else reported
    Artifact.objects.filter(job=context.job, name=CHECKPOINT, generation=report.generation).update(
        step=step, epoch=report.data.get("epoch")
    )
    found = failure_nonfinite(report.data.get("nonfinite"))
    kept = {} if found is None else {found.name: encode(found)}
    return {"step": step, "nonfinite": kept}


def _failed(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    job, now, data = context.job, context.now, report.data
    if not context.is_live:
        return
    code, message = data["code"][:40], data.get("message") or ""
    traceback = data.get("traceback") or ""
    actor = f"node:{context.node.name}"
    if code == MEMORY_KILL and (since := memory_kill_again(job, allocation)):
        code, message = "out_of_memory", f"{message}, {since}"
    if code in _OWN_FAILURES:
        fields: dict[str, Any] = {"error_traceback": traceback}
        if code in NONFINITE_CODES:
            fields |= _nonfinite_fields(context, report)
        if code == "out_of_memory":
            message = f"{message}. {out_of_memory_text(job, allocation.accelerator.kind)}"
            fields["error_field"] = "num_virtual_nodes"
        job_end(job, JobStatus.FAILED, now, code=code, reason=message, **fields)
        event = {"code": code, **fields.get("nonfinite", {})}
        event_add("failed", message, now=now, job=job, actor=actor, data=event)
        _lost_note(context, report, "files_lost", "Not stored")
        return
    if code not in _TRAINER_FAILURES:
        code = "internal"
    Job.objects.filter(id=job.pk).update(error_traceback=traceback)
    # The exit report of this trainer is only a formality from here on.
    Allocation.objects.filter(id=allocation.pk, stop_requested_at=None).update(
        stop_requested_at=now, lost_code=code
    )
    context.is_loss_due = True
    if code == MEMORY_KILL:
        memory_kill_report(context, allocation, message)
        return
    event_add(
        "trainer_failed",
        f"Slot {allocation.slot} on {context.node.name}: {message or code}",
        now=now,
        job=job,
        actor=actor,
        data={"slot": allocation.slot, "code": code},
    )


def _stalled(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    ruling = context.job.generations.filter(
        phase__in=(GenerationPhase.SWITCHING, GenerationPhase.ACTIVE)
    ).order_by("number")
    numbers = [row.number for row in ruling if row.is_recovery or row.phase == "active"]
    if not context.is_live or report.generation < max(numbers, default=0):
        return  # the trainer is about to receive a newer membership
    unreachable = report.data.get("unreachable") or []
    _stall_note(context, allocation, report.data.get("step"), unreachable[:_SLOTS_LIMIT])


def _stall_note(
    context: ReportContext, allocation: Allocation, step: int | None, unreachable: list[int]
) -> None:
    allocation.stalled_at = allocation.stalled_at or context.now
    Allocation.objects.filter(id=allocation.pk).update(
        stalled_at=allocation.stalled_at, stalled_step=step, unreachable=unreachable
    )
    context.is_loss_due = context.is_stalled = True


def unknown_switch_take(
    context: ReportContext, allocation: Allocation, report: TrainerReport
) -> None:
    """Let trainers meet anew that train as the database, restored from a backup, does not know.

    They would follow no generation whose number they have had.
    """
    job, number = context.job, report.generation
    if number > job.generation:
        job.update_columns(generation=number)
    if context.is_live and report.kind is ReportKind.STEPS and _is_unknown(context, number):
        _stall_note(context, allocation, None, [])


def _is_unknown(context: ReportContext, number: int) -> bool:
    """Return whether no switch to a generation is known; if it is the first, all are ready."""
    job, generation = context.job, context.generation(number)
    if generation is None:
        return number == job.generation
    if generation.phase not in RESIZING_PHASES:
        return False
    if generation.previous is None:
        members = job.allocations.filter(slot__in=generation.membership.slots, ready_at=None)
        members.update(ready_at=context.now)
        generation_advance(job, context.now)
    return True


HANDLERS: Mapping[ReportKind, Callable[[ReportContext, Allocation, TrainerReport], None]] = {
    ReportKind.PHASE: phase_take,
    ReportKind.READY: _ready,
    ReportKind.SWITCHED: _switched,
    ReportKind.DIGEST: digest_take,
    ReportKind.STEPS: steps_take,
    ReportKind.EPOCH: epoch_take,
    ReportKind.CHECKPOINTED: _checkpointed,
    ReportKind.PART: _part,
    ReportKind.SELECTION_ENDED: selection_end_take,
    ReportKind.TRIAL: trial_take,
    ReportKind.LEFT: _left,
    ReportKind.FINISHED: _finished,
    ReportKind.FAILED: _failed,
    ReportKind.STALLED: _stalled,
}
