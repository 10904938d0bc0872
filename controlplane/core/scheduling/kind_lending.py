"""Lends idle accelerators to jobs of another kind, where that makes the jobs faster.

Policies give a job one kind. Accelerators left idle are then offered to jobs that mix kinds, as
many as are predicted to shorten the step. Every cycle begins with the policy's own decision, so
lent accelerators are the first to be taken back when another job needs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.scheduling.pools import all_held_by_kind, capacity_by_kind, urgency_order
from controlplane.core.values.types import Decision, Job, JobId, MixNote, Share, Snapshot
from controlplane.core.virtual_nodes.uneven_split import MixVerdict, mix_verdict, team_plan

#: Least predicted relative gain in throughput for a mix to begin or change ...
MIX_GAIN = 0.05

#: ... and least gain over the job's own kind alone for it to go on.
KEEP_GAIN = 0.02

#: Number of cached comparisons: most of them recur in cycle after cycle.
REMEMBERED = 4096


def mix(snapshot: Snapshot, decision: Decision) -> Decision:
    """Add idle accelerators of other accepted kinds to the shares of jobs that mix.

    The most important job comes first. A job that moves to another kind is lent nothing before it
    has left its old one. A kind that was never measured for a job's code is tried
    with one accelerator, once the job runs and its own kind has been measured.
    """
    if not any(job.allow_mixed_kinds for job in snapshot.jobs):
        return decision
    idle = capacity_by_kind(snapshot)
    for share in decision.shares.values():
        idle[share.kind] -= share.count
    shares, reasons = dict(decision.shares), dict(decision.reasons)
    notes: dict[JobId, MixNote] = {}
    held = all_held_by_kind(snapshot)
    quotas = snapshot.without_given({job_id: share.by_kind for job_id, share in shares.items()})
    left = dataclasses.replace(snapshot, projects=quotas)
    for job in urgency_order(job for job in snapshot.jobs if job.allow_mixed_kinds):
        own = shares.get(job.id)
        if own is None or own.count < 1:
            continue
        quota = None if job.project is None else left.projects.get(job.project)
        most = {} if quota is None else quota.limit_left_by_kind
        rooms = {kind: min(number, most.get(kind, number)) for kind, number in idle.items()}
        offered = {
            kind: number
            for kind, number in rooms.items()
            if kind != own.kind and number > 0 and job.accepts(kind)
        }
        leader_kind = next(iter(held[job.id]), own.kind)
        if leader_kind != own.kind:
            continue  # a leader that stays would keep the job in the pool of its old kind
        lent = {kind: number for kind, number in held[job.id].items() if kind != own.kind}
        extra, note = _extra(_limited(left, job, own), own, offered, lent)
        if job.project is not None and quota is not None and extra:
            projects = {**left.projects, job.project: quota.without(job.user, extra)}
            left = dataclasses.replace(left, projects=projects)
        if note is not None:
            notes[job.id] = note
            reasons[job.id] = f"{reasons[job.id]} {note.sentence}"
        for kind, number in extra.items():
            idle[kind] -= number
        shares[job.id] = dataclasses.replace(own, extra=extra)
    return dataclasses.replace(decision, shares=shares, reasons=reasons, mixes=notes)


def _limited(left: Snapshot, job: Job, own: Share) -> Job:
    """Lower a job's maximum to what the limits of its project leave it."""
    room = left.limit_of(job)
    if room is None:
        return job
    most = min(job.max_accelerators, own.count + room)
    return dataclasses.replace(job, max_accelerators=most)


def _extra(
    job: Job, own: Share, offered: Mapping[str, int], held: Mapping[str, int]
) -> tuple[dict[str, int], MixNote | None]:
    """Choose the offered accelerators that a job is lent, given those it was lent before."""
    most = min(job.max_accelerators, job.num_virtual_nodes)
    usable = {kind: min(number, most - own.count) for kind, number in offered.items()}
    known = {kind: job.step_times[kind] for kind in (own.kind, *usable) if kind in job.step_times}
    verdict = _verdict(
        (own.kind, own.count),
        tuple(usable.items()),
        tuple(known.items()),
        job.sync_time,
        job.num_virtual_nodes,
        job.max_accelerators,
        KEEP_GAIN if held else MIX_GAIN,
    )
    if verdict is not None and held:
        verdict = _kept(job, own, offered, held, verdict)
    if verdict is not None and verdict.is_mix:
        extra = {kind: n for kind, n in verdict.mixed.kinds.items() if kind != own.kind}
        return extra, _note("mixed", own, extra, verdict)
    tried = _trial(job, own, offered, held)
    if tried is not None:
        sentence = f"One {tried} works along: its speed on this code is not known yet."
        return {tried: 1}, MixNote(f"tried {tried}", sentence)
    if verdict is None:
        return {}, None
    others = [kind for kind in verdict.mixed.kinds if kind != own.kind]
    return {}, _note("not mixed", own, others, verdict)


@lru_cache(maxsize=REMEMBERED)
def _verdict(
    own: tuple[str, int],
    offered: tuple[tuple[str, int], ...],
    step_times: tuple[tuple[str, StepTime], ...],
    sync_time: StepTime | None,
    num_virtual_nodes: int,
    max_accelerators: int,
    least_gain: float,
) -> MixVerdict | None:
    return mix_verdict(
        *own,
        dict(offered),
        dict(step_times),
        sync_time,
        num_virtual_nodes=num_virtual_nodes,
        max_accelerators=max_accelerators,
        least_gain=least_gain,
    )


def _note(
    word: str, own: Share, others: Mapping[str, int] | list[str], verdict: MixVerdict
) -> MixNote:
    kinds = " + ".join([own.kind, *sorted(others)])
    sentence = verdict.sentence()
    return MixNote(f"{word} {kinds}", f"{sentence[0].upper()}{sentence[1:]}.")


def _kept(
    job: Job, own: Share, offered: Mapping[str, int], held: Mapping[str, int], verdict: MixVerdict
) -> MixVerdict:
    """Keep the present mix unless another one is clearly better."""
    kinds = {own.kind: own.count, **held}
    is_there = all(number <= offered.get(kind, 0) for kind, number in held.items())
    is_known = all(kind in job.step_times for kind in kinds)
    most = min(job.max_accelerators, job.num_virtual_nodes)
    if not is_there or not is_known or sum(kinds.values()) > most:
        return verdict
    now = team_plan(kinds, job.step_times, job.sync_time, job.num_virtual_nodes)
    if verdict.mixed.step_s * (1.0 + MIX_GAIN) <= now.step_s:
        return verdict
    return MixVerdict(verdict.alone, now, verdict.alone.step_s >= now.step_s * (1.0 + KEEP_GAIN))


def _trial(job: Job, own: Share, offered: Mapping[str, int], held: Mapping[str, int]) -> str | None:
    """Return a kind to be tried: the one under trial, else one never measured, else None."""
    if own.kind not in job.step_times or own.count >= min(
        job.max_accelerators, job.num_virtual_nodes
    ):
        return None
    unknown = sorted(kind for kind in offered if kind not in job.step_times)
    return min(unknown, key=lambda kind: (kind not in held, kind), default=None)
