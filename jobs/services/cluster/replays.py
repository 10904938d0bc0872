"""What-if replays of the cluster's past: request, run, cancel."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.core.policies import POLICIES
from controlplane.simulator.settings import MOST_COST_S
from jobs import nudges
from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError
from jobs.models import LIVE_REPLAY_STATUSES, AuditAction, Replay, ReplayStatus
from jobs.selectors.projects import accelerators_by_kind
from jobs.selectors.replays import replays_compared
from jobs.services.cluster.replay_run import ReplayStoppedError, replay_answers
from jobs.services.lifecycle.audit import audit_add

logger = logging.getLogger(__name__)

#: Scenarios of one comparison.
SCENARIOS_LIMIT = 4

#: Replays that may wait or run at a time ...
LIVE_LIMIT = 2 * SCENARIOS_LIMIT

#: ... and that are kept in all; the oldest are deleted first.
KEPT_LIMIT = 50

#: Bounds of the replayed time span, in hours back from now.
HOURS_RANGE = (1, 30 * 24)

#: Most accelerators of a cluster in a replay.
ACCELERATORS_LIMIT = 10_240

#: Seconds without progress after which a worker is lost; another one starts again ...
SILENCE_LIMIT_S = 120.0

#: ... at most this often.
ATTEMPTS_LIMIT = 2

#: Least seconds between two progress updates of pages.
PROGRESS_PERIOD_S = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Policy, cluster and resize cost under which the past is replayed.

    Attributes:
        accelerators: kind -> number in the replayed cluster; a kind left out keeps its present
            number.
        resize_cost_s: seconds for which every start and every resize stops a job; None: as
            measured.
    """

    policy: str
    accelerators: Mapping[str, object]
    resize_cost_s: object = None


def replays_ask(
    user: Any, scenarios: Sequence[Scenario], *, hours: object, now: datetime.datetime
) -> list[Replay]:
    """Add a replay of each scenario to the queue, all over the same history.

    Args:
        hours: start of the replayed time span, in hours back from now.

    Raises:
        InvalidInputError: a field is out of bounds; the error names the field, of several
            scenarios as `scenarios.N.field`, N from 0.
        ConflictError: enough replays are waiting already.
    """
    if not 1 <= len(scenarios) <= SCENARIOS_LIMIT:
        raise InvalidInputError.of(scenarios=f"Give 1 to {SCENARIOS_LIMIT} scenarios.")
    low, high = HOURS_RANGE
    if isinstance(hours, bool) or not isinstance(hours, int) or not low <= hours <= high:
        raise InvalidInputError.of(hours=f"Give whole hours from {low} to {high}.")
    checked = _scenarios_checked(scenarios)
    if Replay.objects.filter(status__in=LIVE_REPLAY_STATUSES).count() + len(checked) > LIVE_LIMIT:
        raise ConflictError(
            f"At most {LIVE_LIMIT} replays wait or run at a time. Cancel some, or wait until they "
            "are done."
        )
    start_at = now - datetime.timedelta(hours=hours)
    values = {"requested_by": user, "requested_at": now, "start_at": start_at, "end_at": now}
    with transaction.atomic():
        replays = [
            Replay.objects.create(
                policy=scenario.policy, accelerators=size, resize_cost_s=cost_s, **values
            )
            for scenario, (size, cost_s) in zip(scenarios, checked, strict=True)
        ]
        for row in replays:
            name = f"replay:{row.pk}"
            audit_add(AuditAction.REPLAY_ASKED, name, now=now, policy=row.policy, hours=hours)
        kept = Replay.objects.order_by("-id").values_list("id", flat=True)[:KEPT_LIMIT]
        Replay.objects.exclude(status__in=LIVE_REPLAY_STATUSES).exclude(id__in=list(kept)).delete()
        nudges.replay_enqueue()
    return replays


def _scenarios_checked(scenarios: Sequence[Scenario]) -> list[tuple[dict[str, int], float | None]]:
    """Return the number of accelerators by kind, and the resize cost, of each scenario."""
    checked, errors = [], {}
    for number, scenario in enumerate(scenarios):
        prefix = f"scenarios.{number}." if len(scenarios) > 1 else ""
        if scenario.policy not in POLICIES:
            errors[f"{prefix}policy"] = f"Choose one of {', '.join(POLICIES)}."
        cost_s = _cost_read(scenario.resize_cost_s)
        if cost_s is None and scenario.resize_cost_s is not None:
            errors[f"{prefix}resize_cost_s"] = (
                f"Give seconds from 0 to {MOST_COST_S:.15g}, or nothing for the measured costs."
            )
        try:
            checked.append((_size_checked(scenario.accelerators), cost_s))
        except InvalidInputError as error:
            errors |= {f"{prefix}{name}": " ".join(texts) for name, texts in error.fields.items()}
    if errors:
        raise InvalidInputError.of(**errors)
    return checked


def _cost_read(value: object) -> float | None:
    """Return a resize cost; None if it is no number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 <= value <= MOST_COST_S else None


def _size_checked(accelerators: Mapping[str, object]) -> dict[str, int]:
    present = accelerators_by_kind()
    size = dict(present)
    for kind, number in accelerators.items():
        if kind not in present:
            kinds = ", ".join(present) or "none yet"
            raise InvalidInputError.of(
                accelerators=f"There is no kind {kind!r} here. Known kinds: {kinds}."
            )
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidInputError.of(accelerators=f"Give a whole number from 0 on for {kind}.")
        size[kind] = number
    total = sum(size.values())
    if not 1 <= total <= ACCELERATORS_LIMIT:
        raise InvalidInputError.of(
            accelerators=f"A cluster has 1 to {ACCELERATORS_LIMIT} accelerators, not {total}."
        )
    return {kind: number for kind, number in size.items() if number}


def replay_cancel(replay_id: int, now: datetime.datetime) -> None:
    """Cancel a live replay, or delete an ended one.

    Raises:
        NotFoundError: no replay has this number.
    """
    is_live = Q(status__in=LIVE_REPLAY_STATUSES)
    stopped = Replay.objects.filter(is_live, id=replay_id).update(
        status=ReplayStatus.CANCELLED, finished_at=now
    )
    if not stopped and not Replay.objects.filter(id=replay_id).delete()[0]:
        raise NotFoundError("There is no such replay.")
    nudges.jobs_changed(cluster=True, cycle=False)


def replay_next(now: datetime.datetime) -> int | None:
    """Run the oldest replay without a live worker, and those over the same history with it.

    Returns:
        Its number, or None if there is none.
    """
    silent = Q(beat_at__lt=now - datetime.timedelta(seconds=SILENCE_LIMIT_S))
    is_free = Q(status=ReplayStatus.WAITING) | Q(silent, status=ReplayStatus.RUNNING)
    first = Replay.objects.filter(is_free).order_by("id").first()
    if first is None:
        return None
    compared = replays_compared(first).order_by("id")
    free = compared.filter(is_free, attempts=first.attempts)
    if first.attempts >= ATTEMPTS_LIMIT:
        for replay in free:
            _end(replay, ReplayStatus.FAILED, now, error="The worker was lost while it ran, twice.")
        return first.pk
    # Two workers may read the same rows: the first one to update them runs the replays.
    attempts = first.attempts + 1
    if free.update(status=ReplayStatus.RUNNING, attempts=attempts, beat_at=now, progress=0.0):
        _run(list(compared.filter(status=ReplayStatus.RUNNING, attempts=attempts)))
    return first.pk


def _run(replays: Sequence[Replay]) -> None:
    """Run replays, of which some may have ended when an error stops the others."""
    try:
        answers = replay_answers(replays, lambda share: replays_progress(replays, share))
        for replay, answer in answers:
            if isinstance(answer, ReplayStoppedError):
                _end(replay, ReplayStatus.FAILED, answer.at, error=str(answer))
            else:
                _end(replay, ReplayStatus.DONE, timezone.now(), result=answer, progress=1.0)
    except ReplayStoppedError as stop:
        for replay in replays:
            _end(replay, ReplayStatus.FAILED, stop.at, error=str(stop))
    except Exception:
        logger.exception("replays %s failed", [replay.pk for replay in replays])
        text = "The simulator failed; the log of its worker says where. Please report it."
        for replay in replays:
            _end(replay, ReplayStatus.FAILED, timezone.now(), error=text)


def replays_progress(replays: Sequence[Replay], share: float) -> None:
    """Store the progress of replays that run together, at most once per `PROGRESS_PERIOD_S`.

    Raises:
        ReplayStoppedError: all were cancelled, or another worker has taken them over.
    """
    now, first = timezone.now(), replays[0]
    if first.beat_at and (now - first.beat_at).total_seconds() < PROGRESS_PERIOD_S:
        return
    first.beat_at = now
    ours = Replay.objects.filter(
        id__in=[replay.pk for replay in replays],
        status=ReplayStatus.RUNNING,
        attempts=first.attempts,
    )
    if not ours.update(progress=share, beat_at=now):
        raise ReplayStoppedError("It was cancelled.", now)
    nudges.jobs_changed(cluster=True, cycle=False)


def _end(replay: Replay, status: ReplayStatus, now: datetime.datetime, **values: Any) -> None:
    is_ours = Q(id=replay.pk, attempts=replay.attempts, status__in=LIVE_REPLAY_STATUSES)
    Replay.objects.filter(is_ours).update(status=status, finished_at=now, **values)
    nudges.jobs_changed(cluster=True, cycle=False)
