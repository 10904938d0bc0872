"""Local jobs that tests and benchmarks resize, stop and restore."""

from __future__ import annotations

from pathlib import Path

from agents.trainer.local.local_cluster import LocalJob, Mapping
from controlplane.core.protocol.wire import Membership, ReportKind, TrainerReport


class SteeredJob(LocalJob):
    """A local job with whole resizes: ordered, and waited for."""

    def resize(self, num_workers: int, mapping: Mapping | None = None) -> Membership:
        """Start, grow or shrink to `num_workers` and wait until all members have switched."""
        membership = self.plan(num_workers, self.membership, mapping)
        self.prepare(membership)
        self.wait_ready(membership)
        self.go(membership)
        self.wait_switched(membership)
        return membership

    def preempt(self) -> Path:
        """Stop all trainers with a checkpoint; returns its path."""
        assert self.membership is not None
        source = self.membership.members[0].slot
        self.go(self.plan(0, self.membership))
        self.wait(
            lambda: all(
                trainer.process.poll() is not None or trainer.slot in self.lost
                for trainer in self.trainers.values()
            ),
            "trainers to leave",
            120.0,
        )
        self.membership = None
        return self.trainers[source].run_dir / "outputs" / "checkpoint.npz"

    def restore(self, num_workers: int, checkpoint: Path) -> Membership:
        """Start again from a checkpoint with fresh trainers."""
        membership = self.plan(num_workers, None, restore=True)
        self.checkpoint = checkpoint
        self.prepare(membership)
        self.wait_ready(membership)
        self.go(membership)
        self.checkpoint = None
        self.wait_switched(membership)
        return membership

    def step_reports(self) -> list[TrainerReport]:
        """List the STEPS reports of all trainers, including lost ones."""
        for trainer in self.trainers.values():
            trainer.read()
        reports = [report for trainer in self.trainers.values() for report in trainer.reports]
        return [report for report in reports if report.kind is ReportKind.STEPS]
