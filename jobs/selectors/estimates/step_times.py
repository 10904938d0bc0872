"""Step times of a job's code: by kind of accelerator, and of the present members."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.core.estimates.step_time import Sample, StepTime, step_time_fit, sync_time_fit
from controlplane.core.protocol.wire import ReductionMode, Task
from controlplane.core.values.lifecycle import GenerationPhase
from controlplane.core.virtual_nodes.rebalance_trial import RebalancePlan, RebalanceTrial
from controlplane.core.virtual_nodes.step_window import Interval, Window, member_seconds
from controlplane.core.virtual_nodes.stragglers import MemberSpeed, member_step_times
from controlplane.core.virtual_nodes.uneven_split import SecondsBySplit, exchange_by_rows
from jobs.models import Accelerator, Allocation, Generation, Job, StepTimeProfile

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Known times of one job: seconds of computing by kind, and of the exchange.

    Exchange times depend on the number of trainers; `sync` is for the fewest rows measured.
    """

    by_kind: Mapping[str, StepTime] = field(default_factory=dict)
    sync_by_rows: Mapping[int, StepTime] = field(default_factory=dict)

    @property
    def sync(self) -> StepTime | None:
        return self.sync_by_rows[min(self.sync_by_rows)] if self.sync_by_rows else None

    def exchange(self, job: Job) -> SecondsBySplit:
        """Return the seconds of the exchange by split."""
        return exchange_by_rows(self.sync_by_rows, is_exact=job.reduction == ReductionMode.EXACT)


def profile_key(job: Job, batch_size: int) -> Key:
    """Return the key of jobs with equal times: task, code, settings, reduction, slice size."""
    content = {
        "settings": job.settings,
        "reduction": job.reduction,
        "slice": batch_size / job.num_virtual_nodes,
    }
    if job.task == Task.PREDICT:
        content |= {"task": job.task, "model": job.source_sha256}
    text = json.dumps(content, sort_keys=True)
    return job.code_sha256, hashlib.sha256(text.encode()).hexdigest()


def measured_batch_size(job: Job, generation: Generation) -> int:
    """Return the batch size of the steps that a generation's `speeds` are of."""
    told = (generation.speeds or {}).get("batch_size")
    return told or generation.membership.global_batch_size or job.global_batch_size


def step_times_read(jobs: Iterable[Job]) -> dict[int, StepTimes]:
    """Return the known times of each job at its present batch size, in one query."""
    keys = {job.pk: profile_key(job, job.batch_size_now) for job in jobs}
    if not keys:
        return {}
    codes = {code_sha256 for code_sha256, _ in keys.values()}
    settings = {settings_sha256 for _, settings_sha256 in keys.values()}
    found = StepTimeProfile.objects.filter(code_sha256__in=codes, settings_sha256__in=settings)
    rows: dict[Key, list[StepTimeProfile]] = {}
    for row in found.order_by("kind"):
        rows.setdefault((row.code_sha256, row.settings_sha256), []).append(row)
    read = {key: _step_times(rows.get(key, [])) for key in set(keys.values())}
    return {job_id: read[key] for job_id, key in keys.items()}


def _step_times(rows: list[StepTimeProfile]) -> StepTimes:
    by_kind: dict[str, StepTime] = {}
    sync: dict[int, dict[int, Sample]] = {}
    for row in rows:
        samples = samples_read(row)
        if row.measures == StepTimeProfile.COMPUTE:
            fitted = step_time_fit(samples)
            if fitted is not None:
                by_kind[row.kind] = fitted
            continue
        known = sync.setdefault(row.num_rows, {})
        for number, sample in samples.items():
            # The slower sample counts, so that no mix is estimated too fast.
            if number not in known or known[number].recent_s < sample.recent_s:
                known[number] = sample
    fitted_sync = {rows: sync_time_fit(samples) for rows, samples in sync.items()}
    return StepTimes(by_kind, {rows: one for rows, one in fitted_sync.items() if one is not None})


def samples_read(row: StepTimeProfile) -> dict[int, Sample]:
    return {
        int(point): Sample(int(count), float(mean_s), float(recent_s))
        for point, (count, mean_s, recent_s) in row.samples.items()
    }


def slot_step_times(job: Job, allocations: Iterable[Allocation]) -> dict[int, StepTime]:
    """Return the known step times of trainers, by slot.

    Training members are estimated from their own reports, other trainers from their kind; all of
    them from their kind if the last move based on such reports did not pay off.
    """
    active = job.generations.filter(phase=GenerationPhase.ACTIVE).first()
    training = [] if active is None else members_read(active, kinds_by_place([active]))
    if moves_read(job).is_doubtful:
        training = [replace(member, over_time=()) for member in training]
    by_kind = step_times_read([job])[job.pk].by_kind
    times = member_step_times(training, by_kind)
    own = {member.slot: found for member, found in zip(training, times, strict=True)}
    step_times: dict[int, StepTime] = {}
    for row in allocations:
        step_time = own.get(row.slot) or by_kind.get(row.accelerator.kind)
        if step_time is not None:
            step_times[row.slot] = step_time
    return step_times


def accelerator_step_times(job: Job, accelerator_ids: Iterable[int]) -> dict[int, StepTime]:
    """Return the known step times of accelerators for the job, by id."""
    wanted = set(accelerator_ids)
    open_rows = job.allocations.filter(accelerator_id__in=wanted, released_at=None)
    rows = {row.accelerator_id: row for row in open_rows.select_related("accelerator")}
    own = slot_step_times(job, rows.values())
    by_kind = step_times_read([job])[job.pk].by_kind
    kinds = dict(Accelerator.objects.filter(id__in=wanted).values_list("id", "kind"))
    found: dict[int, StepTime] = {}
    for accelerator_id, kind in kinds.items():
        row = rows.get(accelerator_id)
        step_time = by_kind.get(kind) if row is None else own.get(row.slot)
        if step_time is not None:
            found[accelerator_id] = step_time
    return found


def members_read(generation: Generation, kinds: Mapping[tuple[int, int], str]) -> list[MemberSpeed]:
    """List a generation's members with their reported times; `kinds` is by (node id, index)."""
    seconds: Mapping[str, Any] = (generation.speeds or {}).get("seconds", {})
    window = window_read(generation)
    return [
        MemberSpeed(
            slot=member.slot,
            kind=kinds.get((member.node_id, member.accelerator_index), ""),
            num_virtual_nodes=len(member.virtual_nodes),
            seconds=seconds.get(str(member.slot)),
            over_time=member_seconds(window, member.slot),
        )
        for member in generation.membership.members
    ]


def kinds_by_place(generations: Iterable[Generation]) -> dict[tuple[int, int], str]:
    """Return the kind of every accelerator on the nodes of some generations, in one query."""
    nodes = {m.node_id for row in generations for m in row.membership.members}
    rows = Accelerator.objects.filter(node_id__in=nodes, is_present=True)
    return {
        (node_id, index): kind
        for node_id, index, kind in rows.values_list("node_id", "index", "kind")
    }


def window_read(generation: Generation) -> Window:
    """Read the last half minute of a membership, oldest interval first."""
    rows = (generation.speeds or {}).get("window", [])
    return tuple(
        Interval(seconds, num_steps, {int(slot): busy_s for slot, busy_s in busy.items()})
        for seconds, num_steps, busy in rows
    )


def window_written(window: Window) -> list[list[Any]]:
    """Return a window in the form stored in `Generation.speeds`."""
    return [
        [
            stretch.seconds,
            stretch.num_steps,
            {str(slot): float(f"{busy_s:.6g}") for slot, busy_s in stretch.busy_s.items()},
        ]
        for stretch in window
    ]


def moves_read(job: Job) -> RebalancePlan:
    """Read a job's rebalancing state."""
    kept = job.moves
    if not kept:
        return RebalancePlan()
    stored = kept["trial"]
    trial = None
    if stored is not None:
        counts = {int(slot): count for slot, count in stored["counts"].items()}
        trial = RebalanceTrial(
            stored["generation"], counts, stored["before_s"], stored["promised_s"]
        )
    return RebalancePlan(kept["failures"], kept["until_s"], trial)


def moves_written(moves: RebalancePlan) -> dict[str, Any]:
    """Return the rebalancing state as stored in `Job.moves`; times are seconds since 1970."""
    trial = moves.trial
    return {
        "failures": moves.failures,
        "until_s": moves.until_s,
        "trial": None
        if trial is None
        else {
            "generation": trial.generation,
            "counts": {str(slot): count for slot, count in trial.counts.items()},
            "before_s": trial.before_s,
            "promised_s": trial.promised_s,
        },
    }
