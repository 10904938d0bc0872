"""Nodes without processes: they follow their orders as agents and trainers do, one move at a time.

Only the trainers are played. Orders and reports go through the real services, so what a test sees
is what the control plane does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.core.protocol.node_messages import (
    ReportBatch,
    TrainerState,
    ValidationReport,
    WantedTrainer,
)
from controlplane.core.protocol.wire import ReportKind, TrainerReport
from jobs.models import Allocation, ClusterSetting, Job, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.selectors.estimates.job import fits_seen
from jobs.services.reports.batches import batch_take
from jobs.services.scheduling.cycle import cycle_run
from tests.support.builders import at, job_make, node_make
from tests.support.messages import batch_of
from tests.support.rows import file_store
from tests.support.setups import setup_once

#: Seconds that a cycle takes, and a node to follow its orders.
ACT_S = 0.1


@dataclass
class PlayedTrainer:
    """A trainer that a test plays: what it was told last and how far it is."""

    job_id: int
    slot: int
    accelerator_index: int
    generation: int = 0
    has_joined: bool = False
    is_told_ready: bool = False
    adoption: int = 0
    sequence: int = 0


@dataclass
class PlayedNode:
    """An agent that a test plays."""

    node: Node
    trainers: dict[tuple[int, int], PlayedTrainer] = field(default_factory=dict)
    reports: list[TrainerReport] = field(default_factory=list)
    stale: tuple[TrainerState, ...] = ()

    def say(
        self, trainer: PlayedTrainer, kind: ReportKind, generation: int | None = None, **data: Any
    ) -> TrainerReport:
        """Note a report for the next batch."""
        report = TrainerReport(
            job_id=trainer.job_id,
            slot=trainer.slot,
            generation=trainer.generation if generation is None else generation,
            sequence=trainer.sequence,
            at=at(0).timestamp(),
            kind=kind,
            data=data,
        )
        trainer.sequence += 1
        self.reports.append(report)
        return report

    def batch(self, wanted_version: str = "") -> ReportBatch:
        """Give the batch that is due now and forget what was in it."""
        states = tuple(
            TrainerState(
                job_id=trainer.job_id,
                slot=trainer.slot,
                generation=trainer.generation,
                accelerator_index=trainer.accelerator_index,
                pid=1000 + trainer.slot,
                adoption=trainer.adoption,
            )
            for trainer in self.trainers.values()
        )
        reports, self.reports = tuple(self.reports), []
        return batch_of(
            self.node,
            sent_at=at(0).timestamp(),
            trainers=states,
            reports=reports,
            wanted_version=wanted_version,
        )


@setup_once
def _nodes_make(number: int, num_accelerators: int) -> list[Node]:
    return [node_make(f"played{i}", num_accelerators)[0] for i in range(number)]


class World:
    """Some nodes, their played trainers, and a clock that a test moves.

    Accelerators are shared by weight alone, so that a test can foretell who gets how many.
    """

    #: Facts that a validation reports.
    facts: Mapping[str, Any] = {"num_examples": 64}

    def __init__(
        self, num_nodes: int = 2, num_accelerators: int = 2, policy: str = "weighted_fair"
    ) -> None:
        ClusterSetting.objects.update_or_create(id=1, defaults={"policy": policy})
        # As in a new process: what stayed of another world is about other jobs of the same numbers.
        fits_seen.clear()
        self.nodes = [PlayedNode(node) for node in _nodes_make(num_nodes, num_accelerators)]
        self.now_s = 0.0
        self.steps: dict[int, int] = {}
        self.adopted: dict[int, int] = {}
        self.state: dict[int, str] = {}

    @property
    def now(self) -> datetime:
        return at(self.now_s)

    def cycle(self) -> set[int]:
        """Let the control plane decide once."""
        self.now_s += ACT_S
        return cycle_run(self.now)

    def cap(self, job: Job, num: int) -> None:
        """Let a job have at most so many accelerators, and the control plane decide."""
        Job.objects.filter(id=job.pk).update(max_accelerators=num)
        self.cycle()

    def follow(self, played: PlayedNode, *, boots: bool = True) -> bool:
        """Let one node do what it is told, and report it; return whether there was anything."""
        self.now_s += ACT_S
        state = wanted_state(played.node)
        wanted = {(row.spec.job_id, row.slot): row for row in state.trainers}
        for key in [key for key in played.trainers if key not in wanted]:
            played.say(played.trainers.pop(key), ReportKind.EXITED, exit_code=-15)
        for key, orders in wanted.items():
            self.trainer_follow(played, key, orders, boots=boots)
        for validation in state.validations:
            self.validate(played, validation.validation_id, validation.attempt)
        batch = played.batch(state.version)
        outcome = batch_take(played.node, batch, self.now)
        played.stale = outcome.reply.stale
        return bool(state.validations or batch.reports or outcome.changed_jobs)

    def trainer_follow(
        self, played: PlayedNode, key: tuple[int, int], orders: WantedTrainer, *, boots: bool
    ) -> None:
        """Let the trainer of a job's slot do what it is told; start it if there is none."""
        trainer = played.trainers.get(key)
        if trainer is None:
            trainer = PlayedTrainer(key[0], key[1], orders.accelerator_index)
            played.trainers[key] = trainer
        if orders.adoption is not None:
            trainer.adoption = orders.adoption.number
        self._obey(played, trainer, orders, boots=boots)

    def validate(self, played: PlayedNode, validation_id: int, attempt: int) -> None:
        """Report that a job's code builds."""
        report = ValidationReport(
            validation_id=validation_id, attempt=attempt, ok=True, facts=self.facts
        )
        batch_take(played.node, batch_of(played.node, validations=(report,)), self.now)

    def measure(self, played: PlayedNode, orders: WantedTrainer) -> dict[str, Any]:
        """Say what a joiner found out about its own speed; nothing unless a test overrides it."""
        return {}

    def _obey(
        self, played: PlayedNode, trainer: PlayedTrainer, orders: WantedTrainer, *, boots: bool
    ) -> None:
        membership = orders.membership
        if not trainer.has_joined:
            trainer.generation = membership.generation
            if not trainer.is_told_ready and boots:
                trainer.is_told_ready = True
                measured = self.measure(played, orders)
                played.say(
                    trainer, ReportKind.READY, boot_s=5.0, build_s=1.0, trace_s=1.0, **measured
                )
            if not orders.go or not trainer.is_told_ready:
                return
        elif membership.generation <= trainer.generation:
            return
        was_member = trainer.has_joined
        trainer.generation = membership.generation
        step = self.steps.setdefault(trainer.job_id, 0)
        if membership.member(trainer.slot) is not None:
            self._switch(played, trainer, membership, step, was_member=was_member)
            return
        if trainer.slot == membership.source_slot and not membership.members:
            self._checkpoint(played, trainer, step)
        else:
            played.say(trainer, ReportKind.LEFT, step=step)
        played.say(trainer, ReportKind.EXITED, exit_code=0)
        del played.trainers[trainer.job_id, trainer.slot]

    def _switch(
        self,
        played: PlayedNode,
        trainer: PlayedTrainer,
        membership: Any,
        step: int,
        *,
        was_member: bool,
    ) -> None:
        trainer.has_joined = True
        pause_s = 0.05 if was_member else 0.0
        if membership.adoption is not None:
            self.adopted[trainer.job_id] = membership.adoption.number
        played.say(
            trainer,
            ReportKind.SWITCHED,
            step=step,
            pause_s=pause_s,
            bytes_moved=0 if was_member else 4096,
            joined=not was_member,
            adopted=self.adopted.get(trainer.job_id, 0),
        )
        if membership.recover:
            return  # whoever is as far as the others gives and takes nothing
        digest = hashlib.sha256(f"{trainer.job_id}:{step}".encode()).hexdigest()
        if trainer.slot == membership.source_slot:
            played.say(trainer, ReportKind.DIGEST, step=step, sha256=digest, role="before")
        played.say(trainer, ReportKind.DIGEST, step=step, sha256=digest, role="after")

    def _checkpoint(self, played: PlayedNode, trainer: PlayedTrainer, step: int) -> None:
        content = f"state of {trainer.job_id} at {step}".encode()
        job = Job.objects.get(id=trainer.job_id)
        stored = file_store(job, "checkpoint.npz", content, self.now, trainer.generation)
        played.say(
            trainer,
            ReportKind.CHECKPOINTED,
            step=step,
            epoch=0,
            file="checkpoint.npz",
            sha256=stored.sha256,
            bytes=len(content),
        )

    def kill(self, job: Job, *slots: int, exit_code: int | None = -9, **data: Any) -> None:
        """Let trainers die, and their agents tell; those of one node in one batch."""
        for played in self.nodes:
            for slot in slots:
                trainer = played.trainers.pop((job.pk, slot), None)
                if trainer is not None:
                    played.say(trainer, ReportKind.EXITED, exit_code=exit_code, **data)
            if played.reports:
                self.tell(played)

    def stall(self, job: Job, slot: int, *unreachable: int) -> None:
        """Let a trainer say that it waits for orders, because others do not answer."""
        played, trainer = next(row for row in self.trainers_of(job) if row[1].slot == slot)
        step = self.steps.get(job.pk, 0)
        played.say(
            trainer, ReportKind.STALLED, step=step, message="lost", unreachable=[*unreachable]
        )
        self.tell(played)

    def hear(self, *played: PlayedNode) -> None:
        """Let nodes be heard of now; all of them unless some are named."""
        pks = [row.node.pk for row in played or self.nodes]
        Node.objects.filter(id__in=pks).update(last_seen_at=self.now)

    def tell(self, played: PlayedNode) -> None:
        """Send what a node has to say."""
        played.stale = batch_take(played.node, played.batch(), self.now).reply.stale

    def follow_all(self) -> None:
        """Let every node follow its orders once; no cycle runs."""
        for played in self.nodes:
            self.follow(played)

    def steps_say(
        self, job: Job, first: int, last: int, generation: int | None = None, **data: Any
    ) -> PlayedNode:
        """Let a job's leader note a report of steps, of 0.1 s each unless told."""
        played, trainer = self.leader_of(job)
        num_steps = last - first + 1
        values: dict[str, Any] = {
            "epoch": 0,
            "examples": num_steps * job.global_batch_size,
            "seconds": 0.1 * num_steps,
            "loss": 0.5,
            "num_accelerators": len(self.trainers_of(job)),
        }
        span = {"first_step": first, "last_step": last}
        played.say(trainer, ReportKind.STEPS, generation, **{**values, **span, **data})
        return played

    def train(self, job: Job, num_steps: int = 10, **data: Any) -> None:
        """Let a job's leader report its next steps; they take a second unless told."""
        first = self.steps.get(job.pk, 0)
        self.steps[job.pk] = first + num_steps
        values = {"seconds": 1.0, "loss": 1.0 / (first + 1), **data}
        self.now_s += values["seconds"]
        self.tell(self.steps_say(job, first + 1, first + num_steps, **values))

    def finish(self, job: Job) -> None:
        """Let all trainers of a job report that it is done, and exit."""
        leader = self.leader_of(job)[1]
        for played, trainer in self.trainers_of(job):
            results: dict[str, Any] = {}
            if trainer is leader:
                results = {"metrics": {"loss": 0.25}, "digest": "d" * 64, "files": []}
            played.say(trainer, ReportKind.FINISHED, step=100, epoch=1, reason="steps", **results)
            played.say(trainer, ReportKind.EXITED, exit_code=0)
            del played.trainers[trainer.job_id, trainer.slot]
            batch_take(played.node, played.batch(), self.now)

    def trainers_of(self, job: Job) -> list[tuple[PlayedNode, PlayedTrainer]]:
        """List the live trainers of a job with their nodes, by slot."""
        rows = [
            (played, trainer)
            for played in self.nodes
            for trainer in played.trainers.values()
            if trainer.job_id == job.pk
        ]
        return sorted(rows, key=lambda row: row[1].slot)

    def leader_of(self, job: Job) -> tuple[PlayedNode, PlayedTrainer]:
        """Find the trainer that reports for its job now."""
        generation = job.generations.get(phase="active")
        slot = generation.membership.leader_slot
        return next(row for row in self.trainers_of(job) if row[1].slot == slot)

    def until(self, is_so: Callable[[], bool], *, rounds: int = 30) -> None:
        """Let everybody act in turn until something holds; a test fails when it never does."""
        for _ in range(rounds):
            if is_so():
                return
            self.cycle()
            for played in self.nodes:
                self.follow(played)
        raise AssertionError("it never came about")

    def settle(self, rounds: int = 8) -> None:
        """Let everybody act in turn a few times; once nobody acts, only the time goes on."""
        for left in reversed(range(rounds)):
            is_changed = bool(self.cycle())
            has_acted = [self.follow(played) for played in self.nodes]
            if not is_changed and not any(has_acted):
                self.now_s += left * ACT_S * (1 + len(self.nodes))
                return


def num_held(*jobs: Job) -> int:
    """Return how many accelerators jobs hold."""
    return Allocation.objects.filter(job__in=jobs, released_at=None).count()


@setup_once
def settled(**values: Any) -> tuple[World, Job]:
    """Return a world of one node whose job of these values has been started there."""
    world = World(num_nodes=1)
    job = job_make(**values)
    world.settle(4)
    return world, Job.objects.get(id=job.pk)
