"""Event of every resize: request, readiness of joiners, switch, pause, bytes, digests."""

from __future__ import annotations

import datetime
from typing import Any

from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models import Generation
from jobs.models.resizes import BATCH_ACTOR, MAPPING_ACTOR
from jobs.selectors.estimates.memory import size_text
from jobs.services.lifecycle.events import event_add


def resize_event_write(
    generation: Generation, now: datetime.datetime, *, is_last_call: bool = False
) -> bool:
    """Add the event of a resize once its figures are complete.

    Digests are computed beside the training and arrive after the switch, so the event waits for
    them; `is_last_call` adds the event with the figures at hand (the generation has ended, or the
    time limit is over).
    """
    if generation.reported_at is not None or generation.switch_ordered_at is None:
        return False
    if not is_last_call and not _is_complete(generation):
        return False
    changed = Generation.objects.filter(id=generation.pk, reported_at=None).update(reported_at=now)
    if not changed:
        return False
    generation.reported_at = now
    figures = resize_figures(generation)
    kind = _kind(generation)
    event_add(
        kind,
        _sentence(generation, figures),
        now=now,
        job=generation.job,
        actor=generation.actor,
        data=figures,
    )
    return True


def _kind(generation: Generation) -> str:
    if generation.is_recovery:
        return "recovered" if generation.switched_at is not None else "recovery_unfinished"
    if generation.phase == GenerationPhase.ABORTED:
        return "resize_unfinished"
    if generation.num_members == 0:
        return "preemption"
    return "resize" if generation.switched_at is not None else "resize_unfinished"


def resize_figures(generation: Generation) -> dict[str, Any]:
    """Return the known figures of a resize, times as ISO 8601."""
    former = Generation.objects.filter(job=generation.job_id, number=generation.previous or 0)
    before = 0 if generation.previous is None else former.get().num_members
    figures = {
        "generation": generation.number,
        "num_before": before,
        "num_after": generation.num_members,
        "split": [len(member.virtual_nodes) for member in generation.membership.members],
        "reason": generation.reason,
        "requested_at": _text(generation.requested_at),
        "ready_at": _text(generation.ready_at),
        "switch_ordered_at": _text(generation.switch_ordered_at),
        "switched_at": _text(generation.switched_at),
        "closed_at": _text(generation.closed_at),
        "step": generation.step,
        "pause_ms": None if generation.pause_s is None else round(generation.pause_s * 1000, 1),
        "bytes_moved": generation.bytes_moved,
        "batch_size": generation.membership.global_batch_size,
        "digest_before": generation.digest_before,
        "digest_after": generation.digest_after,
    }
    if generation.is_recovery:
        figures |= {
            "lost": generation.lost,
            "parked": generation.is_parked,
            "first_step_at": _text(generation.first_step_at),
            "to_first_step_s": to_first_step_s(generation),
        }
    return figures


def to_first_step_s(generation: Generation) -> float | None:
    """Return the seconds from the first reported loss to the first completed step after it."""
    if generation.first_step_at is None:
        return None
    noticed = [datetime.datetime.fromisoformat(row["noticed_at"]) for row in generation.lost]
    since = min([*noticed, generation.requested_at])
    # Steps carry the time of a node's clock, which may be a little behind.
    return round(max((generation.first_step_at - since).total_seconds(), 0.0), 3)


def _is_complete(generation: Generation) -> bool:
    if generation.switched_at is None or generation.num_switched < generation.num_members:
        return False
    if generation.is_recovery:
        # Digests are reported only if members had reached different steps.
        return generation.first_step_at is not None or generation.is_parked
    is_moved = generation.previous is not None
    has_digests = bool(generation.digest_after) and bool(generation.digest_before)
    return has_digests if is_moved else bool(generation.digest_after or generation.digest_before)


def _sentence(generation: Generation, figures: dict[str, Any]) -> str:
    text = f"{figures['num_before']} → {counted(figures['num_after'], 'accelerator')}"
    if generation.actor == MAPPING_ACTOR:
        text = f"Virtual nodes moved, now {' + '.join(map(str, figures['split']))}"
    if generation.actor == BATCH_ACTOR:
        text = f"Batch size {figures['batch_size']}"
    if generation.is_recovery and generation.switched_at is not None:
        return _recovery_sentence(generation, figures, text)
    if generation.switched_at is None and generation.num_members:
        return f"{text}: not carried out"
    if generation.step is not None:
        text += f" at step {generation.step}"
    if generation.pause_s is not None and generation.previous is not None:
        text += f", paused {figures['pause_ms']:.0f} ms"
    if generation.bytes_moved:
        text += f", {size_text(generation.bytes_moved)} moved"
    return text + _digests_text(generation, ", STATE DIFFERS after the move")


def _recovery_sentence(generation: Generation, figures: dict[str, Any], text: str) -> str:
    text += f", went on from step {generation.step} in memory"
    if generation.is_parked:
        text += ", waiting for more accelerators"
    elif figures["to_first_step_s"] is not None:
        text += f", {figures['to_first_step_s']:.2f} s from the loss to the next step"
    text += _digests_text(generation, ", STATE DIFFERS")
    return f"{text}: {generation.reason}"


def _digests_text(generation: Generation, differs: str) -> str:
    if not (generation.digest_before and generation.digest_after):
        return ""
    return ", state identical" if generation.digest_before == generation.digest_after else differs


def _text(at: datetime.datetime | None) -> str | None:
    return None if at is None else at.isoformat()
