"""What-if replays of the cluster's past: request, run, cancel."""

from __future__ import annotations

import datetime
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.db.models import Q

from controlplane.core.policies import POLICIES
from jobs import nudges
from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError
from jobs.models import LIVE_REPLAY_STATUSES, Accelerator, AuditAction, Replay, ReplayStatus
from jobs.services.cluster.replay_run import ReplayStoppedError, replay_answer
from jobs.services.lifecycle.audit import audit_add

logger = logging.getLogger(__name__)

#: Replays that may wait or run at a time ...
LIVE_LIMIT = 5

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


def accelerators_present() -> dict[str, int]:
    """Count the accelerators of nodes that have not been removed, by kind."""
    kinds = Accelerator.objects.filter(is_present=True, node__removed_at=None)
    return dict(sorted(Counter(kinds.values_list("kind", flat=True)).items()))


def replay_ask(
    user: Any,
    *,
    policy: str,
    accelerators: Mapping[str, object],
    hours: object,
    now: datetime.datetime,
) -> Replay:
    """Add a replay to the queue.

    Args:
        accelerators: kind -> number in the replayed cluster; a kind left out keeps its present
            number.
        hours: start of the replayed time span, in hours back from now.

    Raises:
        InvalidInputError: a field is out of bounds; the error names the field.
        ConflictError: enough replays are waiting already.
    """
    if policy not in POLICIES:
        raise InvalidInputError.of(policy=f"Choose one of {', '.join(POLICIES)}.")
    low, high = HOURS_RANGE
    if isinstance(hours, bool) or not isinstance(hours, int) or not low <= hours <= high:
        raise InvalidInputError.of(hours=f"Give whole hours from {low} to {high}.")
    size = _size_checked(accelerators)
    if Replay.objects.filter(status__in=LIVE_REPLAY_STATUSES).count() >= LIVE_LIMIT:
        raise ConflictError(
            f"{LIVE_LIMIT} replays are waiting or running. Cancel one, or wait until one is done."
        )
    replay = Replay.objects.create(
        requested_by=user,
        requested_at=now,
        policy=policy,
        accelerators=size,
        start_at=now - datetime.timedelta(hours=hours),
        end_at=now,
    )
    audit_add(AuditAction.REPLAY_ASKED, f"replay:{replay.pk}", now=now, policy=policy, hours=hours)
    kept = Replay.objects.order_by("-id").values_list("id", flat=True)[:KEPT_LIMIT]
    Replay.objects.exclude(status__in=LIVE_REPLAY_STATUSES).exclude(id__in=list(kept)).delete()
    nudges.replay_asked()
    return replay


def _size_checked(accelerators: Mapping[str, object]) -> dict[str, int]:
    present = accelerators_present()
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
    """Run the oldest replay without a live worker; return its number, or None if there is none."""
    silent = Q(beat_at__lt=now - datetime.timedelta(seconds=SILENCE_LIMIT_S))
    is_free = Q(status=ReplayStatus.WAITING) | Q(silent, status=ReplayStatus.RUNNING)
    replay = Replay.objects.filter(is_free).order_by("id").first()
    if replay is None:
        return None
    if replay.attempts >= ATTEMPTS_LIMIT:
        _end(replay, ReplayStatus.FAILED, now, error="The worker was lost while it ran, twice.")
        return replay.pk
    # Two workers may read the same row: the first one to update it runs the replay.
    claimed = Replay.objects.filter(is_free, id=replay.pk, attempts=replay.attempts).update(
        status=ReplayStatus.RUNNING, attempts=replay.attempts + 1, beat_at=now, progress=0.0
    )
    if claimed:
        replay.refresh_from_db()
        _run(replay)
    return replay.pk


def _run(replay: Replay) -> None:
    try:
        result = replay_answer(replay, lambda share: replay_progress(replay, share))
    except ReplayStoppedError as stop:
        _end(replay, ReplayStatus.FAILED, stop.at, error=str(stop))
    except Exception:
        logger.exception("replay %d failed", replay.pk)
        text = "The simulator failed; the log of its worker says where. Please report it."
        _end(replay, ReplayStatus.FAILED, _now(), error=text)
    else:
        _end(replay, ReplayStatus.DONE, _now(), result=result, progress=1.0)


def replay_progress(replay: Replay, share: float) -> None:
    """Store the progress of a replay, at most once per `PROGRESS_PERIOD_S`.

    Raises:
        ReplayStoppedError: the replay was cancelled, or another worker has taken it over.
    """
    now = _now()
    if replay.beat_at and (now - replay.beat_at).total_seconds() < PROGRESS_PERIOD_S:
        return
    replay.beat_at = now
    is_ours = Q(id=replay.pk, status=ReplayStatus.RUNNING, attempts=replay.attempts)
    if not Replay.objects.filter(is_ours).update(progress=share, beat_at=now):
        raise ReplayStoppedError("It was cancelled.", now)
    nudges.jobs_changed(cluster=True, cycle=False)


def _end(replay: Replay, status: ReplayStatus, now: datetime.datetime, **values: Any) -> None:
    is_ours = Q(id=replay.pk, attempts=replay.attempts, status__in=LIVE_REPLAY_STATUSES)
    Replay.objects.filter(is_ours).update(status=status, finished_at=now, **values)
    nudges.jobs_changed(cluster=True, cycle=False)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
