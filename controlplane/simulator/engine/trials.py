"""Parallel tuning in a simulation: rounds of trials on accelerators that would be idle.

Rounds follow each other as on a live cluster (`controlplane.core.tuning.rounds`), but no losses are
simulated: a trial changes nothing of its job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from controlplane.core.tuning.rounds import PATIENCE, PATIENCE_S
from controlplane.core.values.tiers import Tier
from controlplane.simulator.engine.jobs import SimulatedJob, Terms


@dataclass
class _Tuning:
    """Tuning of one job.

    Attributes:
        begun_at, begun_s: its progress and the time at the begin of the newest round.
        running: trials of that round that have not ended.
    """

    job: SimulatedJob
    num_trials: int = 0
    begun_at: float = 0.0
    begun_s: float = 0.0
    running: list[SimulatedJob] = field(default_factory=list)

    @property
    def trial_progress(self) -> float:
        assert self.job.spec.tuning is not None, "the job is tuned"
        return self.job.spec.tuning.trial_share * self.job.total_progress

    @property
    def done(self) -> float:
        """Progress of the job since the round began, in trials."""
        return (self.job.progress - self.begun_at) / self.trial_progress


class Trials:
    """Trials of all jobs of a simulation that are tuned.

    Attributes:
        jobs: all trials so far; their ids follow those of the workload's jobs.
    """

    def __init__(self, jobs: Sequence[SimulatedJob], terms: Terms) -> None:
        self.jobs: list[SimulatedJob] = []
        self._terms = terms
        self._next_id = len(jobs) + 1
        self._tunings = {job.id: _Tuning(job) for job in jobs if job.spec.tuning is not None}

    @property
    def are_possible(self) -> bool:
        """True if a job of the workload is tuned."""
        return bool(self._tunings)

    @property
    def num_live(self) -> int:
        """Number of the trials in the system."""
        running = (trial for one in self._tunings.values() for trial in one.running)
        return sum(trial.ended_at is None for trial in running)

    def cancelled(self, now: float) -> list[int]:
        """Give up the trials of jobs that have ended and of rounds that take too long."""
        gone = []
        for one in self._tunings.values():
            one.running = [trial for trial in one.running if trial.ended_at is None]
            is_late = one.done >= PATIENCE and now >= one.begun_s + PATIENCE_S
            if one.job.ended_at is not None or is_late:
                gone += [trial.id for trial in one.running]
                one.running = []
        return gone

    def begun(
        self, live: Sequence[SimulatedJob], num_idle: int, now: float
    ) -> Iterator[SimulatedJob]:
        """Begin the rounds that are due, as far as there are idle accelerators for their trials."""
        for job in live:
            one, plan = self._tunings.get(job.id), job.spec.tuning
            if one is None or plan is None or one.running or not job.active:
                continue
            if one.num_trials and one.done < 1.0:
                continue  # the job itself is a trial of the round
            if job.total_progress - job.progress < 2.0 * one.trial_progress:
                continue
            least = job.bounds[0]
            left = plan.max_trials - one.num_trials
            number = min(plan.max_parallel, left, max(num_idle, 0) // least)
            num_idle -= number * least
            if number:
                one.begun_at, one.begun_s = job.progress, now
                one.running = [self._trial(one, now) for _ in range(number)]
                yield from one.running

    def _trial(self, one: _Tuning, now: float) -> SimulatedJob:
        job = one.job
        one.num_trials += 1
        spec = dataclasses.replace(
            job.spec,
            name=f"{job.spec.name}, trial {one.num_trials}",
            submitted_at=now,
            tier=Tier.IDLE,
            is_fixed=True,
            sweep=None,
            tuning=None,
        )
        trial = SimulatedJob(self._next_id, spec, job.application, self._terms)
        self._next_id += 1
        trial.epoch, trial.progress = job.epoch, job.progress
        trial.last_progress = job.progress + one.trial_progress
        self.jobs.append(trial)
        return trial
