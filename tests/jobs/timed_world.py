"""A world whose reports follow a known model of speed and a known curve of the loss."""

from __future__ import annotations

from typing import Any

from controlplane.core.estimates.throughput import ThroughputModel, slices_of
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values import types
from jobs.models import Job
from jobs.selectors.cluster import cluster_snapshot
from jobs.services.reports.batches import batch_take
from jobs.services.reports.model_fitting import models_fit
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.setups import setup_once

#: 10 ms and 1 ms an example for a slice; 30 ms to exchange on one machine, 80 ms between two.
TRUTH = ThroughputModel(0.01, 0.001, 0.03, 0.0, 0.08, 0.0, 1.0)


class TimedWorld(World):
    """A world whose trainers take time by a known model, and whose losses fall by a known curve."""

    truth = TRUTH
    phi = 448.0
    #: Seconds from one report to the next.
    report_s = 1.0

    def report(self, job: Job, num_steps: int = 10, **changes: Any) -> int:
        """Let a job's leader report some steps; gives the batch size that it has."""
        played, trainer = self.leader_of(job)
        generation = job.generations.get(phase="active")
        members = generation.membership.members
        batch_size = generation.membership.global_batch_size or job.global_batch_size
        batch_size = changes.get("batch_size", batch_size)
        num = len(members)
        nodes = len({row.node_id for row in members})
        slices = int(slices_of(job.num_virtual_nodes, num))
        slice_size = batch_size / job.num_virtual_nodes
        step_s = float(self.truth.step_s(num, nodes, slice_size, slices))
        own_s = slices * float(self.truth.grad_s(slice_size))
        first = self.steps.get(job.pk, 0)
        self.steps[job.pk] = first + num_steps
        self.now_s += self.report_s
        data: dict[str, Any] = {
            "first_step": first + 1,
            "last_step": first + num_steps,
            "epoch": 0,
            "examples": num_steps * batch_size,
            "seconds": num_steps * step_s,
            "loss": 0.3 + 2.0 / (1.0 + 0.01 * first),
            "num_accelerators": num,
            "compute_s": {str(row.slot): own_s for row in members},
            "batch_size": batch_size,
            "learning_rate": 0.1,
            # var falls as 1 / batch size; the noise scale is batch size * var / sqr.
            "noise": {"sqr": 1.0, "var": self.phi / batch_size},
        }
        played.say(trainer, ReportKind.STEPS, **(data | changes))
        batch_take(played.node, played.batch(), self.now)
        models_fit(self.now)
        job.refresh_from_db()
        return batch_size

    def train_on(self, job: Job, num_reports: int) -> None:
        for _ in range(num_reports):
            self.report(job)

    def seen(self, job: Job) -> types.Job:
        """Give a job as policies see it."""
        jobs = cluster_snapshot(self.now).snapshot.jobs
        return next(row for row in jobs if row.id == job.pk)


def timed_job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "global_batch_size": 64,
        "num_virtual_nodes": 8,
        "max_accelerators": 4,
    }
    return job_make(**(values | {"stop_kind": "steps", "stop_limit": 1000} | changes))


def started(world: World, job: Job) -> None:
    world.until(lambda: job.generations.filter(phase="active").exists())


@setup_once
def begun(num_accelerators: int = 1) -> tuple[TimedWorld, Job]:
    """Let a job begin on the only node."""
    world, job = TimedWorld(1, num_accelerators), timed_job()
    started(world, job)
    return world, job
