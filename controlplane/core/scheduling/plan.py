"""Transition from held to desired accelerators: shrink before grow, never take one in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controlplane.core.scheduling.circular_waits import BlockedMove, detours
from controlplane.core.values.explanations import others_jobs_named
from controlplane.core.values.types import (
    AcceleratorId,
    Allocation,
    Job,
    JobId,
    Plan,
    Resize,
    Snapshot,
)


def plan_between(snapshot: Snapshot, allocation: Allocation) -> Plan:
    """Order the changes that can be made now and list the jobs that wait for a release.

    An accelerator is given to a job only when no job holds it and its former trainer has gone. A
    job that waits for such accelerators makes the rest of its change first if it releases any,
    because others may wait for them. A job that lost trainers and holds less than its minimum keeps
    its accelerators, and the state in them, until they are given to another job; accelerators kept
    for it are as free as any other once the policy gives them to another job. A job is not given
    accelerators excluded for it: it runs on the rest, if that reaches its minimum. A job on a node
    that it has to leave stays until its new accelerators are free, if the node still runs. Of jobs
    that would wait for each other without end, one makes way (see `circular_waits`). Jobs in
    `snapshot.resizing` are left unchanged.
    """
    schedulable = {accelerator.id for accelerator in snapshot.accelerators}
    standing = schedulable | snapshot.vacating
    in_use = snapshot.in_use
    given = {chosen for row in allocation.accelerators.values() for chosen in row}
    targets: dict[JobId, tuple[AcceleratorId, ...]] = {}
    blocked_moves: list[BlockedMove] = []
    waiting: dict[JobId, tuple[AcceleratorId, ...]] = {}
    reasons = _sentences(snapshot, allocation)

    def note(job_id: JobId, text: str) -> None:
        reasons[job_id] = f"{reasons.get(job_id, '')} {text}".strip()

    for job in snapshot.jobs:
        if job.id in snapshot.resizing:
            continue
        held = snapshot.manned(job.id)
        wanted = allocation.accelerators.get(job.id, ())
        is_short = 0 < len(held) < job.min_accelerators and schedulable.issuperset(held)
        if not wanted and is_short and given.isdisjoint(held):
            continue
        excluded = snapshot.excluded.get(job.id, frozenset()).difference(held)
        if not excluded.isdisjoint(wanted):
            rest = tuple(accelerator for accelerator in wanted if accelerator not in excluded)
            is_enough = len(rest) >= job.min_accelerators
            note(
                job.id,
                f"{len(wanted) - len(rest)} of these are left out for a while, because its "
                "trainers did not come up there.",
            )
            wanted = rest if is_enough else _meanwhile(job, held, rest, standing)
        own = set(held)
        blocked = tuple(one for one in wanted if one in in_use and one not in own)
        targets[job.id] = wanted
        if blocked:
            waiting[job.id] = blocked
            note(job.id, _still_held(len(blocked), len(wanted)))
            targets[job.id] = _meanwhile(job, held, wanted, standing)
            if targets[job.id] == held and held:
                blocked_moves.append(BlockedMove(job, held, wanted, blocked))
    for job_id, detour in detours(snapshot, blocked_moves, given).items():
        targets[job_id] = detour.accelerators
        note(job_id, detour.reason)
    resizes = [
        Resize(job_id, held, target, reasons.get(job_id, ""))
        for job_id, target in targets.items()
        if set(target) != set(held := snapshot.manned(job_id))
    ]
    resizes.sort(key=lambda resize: len(resize.wanted) - len(resize.held))
    return Plan(tuple(resizes), waiting, reasons)


def _sentences(snapshot: Snapshot, allocation: Allocation) -> dict[JobId, str]:
    """Render the reasons; each says which of the jobs that it names are not for all its readers."""
    groups = {job.id: (job.user, job.project) for job in snapshot.jobs}
    return {
        job_id: others_jobs_named(str(one), job_id, groups)
        for job_id, one in allocation.reasons.items()
    }


def _still_held(num_blocked: int, num_wanted: int) -> str:
    """Say how many of a job's new accelerators others have not left yet."""
    if num_wanted == 1:
        return "Another job still has to leave it."
    which = "all" if num_blocked == num_wanted else str(num_blocked)
    return f"Other jobs still have to leave {which} of these {num_wanted}."


def _meanwhile(
    job: Job,
    held: tuple[AcceleratorId, ...],
    wanted: tuple[AcceleratorId, ...],
    standing: set[AcceleratorId],
) -> tuple[AcceleratorId, ...]:
    """Return the accelerators that a job holds while others still use part of the wanted ones."""
    chosen = set(wanted)
    kept = tuple(accelerator for accelerator in held if accelerator in chosen)
    if len(kept) >= job.min_accelerators:
        return kept
    if standing.issuperset(held):
        return held  # moving elsewhere: stay until the new accelerators are free
    return ()  # a held accelerator has left the cluster: save the state and wait


def obeyed(
    snapshot: Snapshot, given: Mapping[JobId, tuple[AcceleratorId, ...]], carried: object | None
) -> Snapshot:
    """Give every job its accelerators at once."""
    jobs = (
        _changed(job, snapshot.held.get(job.id, ()), given.get(job.id, ()), snapshot.now)
        for job in snapshot.jobs
    )
    return replace(
        snapshot,
        jobs=tuple(jobs),
        held=given,
        kept={},
        releasing=frozenset(),
        resizing=frozenset(),
        sweeps={number: replace(one, num_leaving=0) for number, one in snapshot.sweeps.items()},
        carried=carried,
    )


def _changed(
    job: Job, held: tuple[AcceleratorId, ...], given: tuple[AcceleratorId, ...], now: float
) -> Job:
    if set(held) == set(given):
        return job
    return replace(
        job,
        num_resizes=job.num_resizes + bool(held),
        changed_at=now,
        running_since=(job.running_since if held else now) if given else None,
        pending_since=None if given else now,
        most_accelerators=max(job.most_accelerators, len(given)),
    )
