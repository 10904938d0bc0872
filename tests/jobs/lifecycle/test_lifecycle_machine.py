"""Whatever happens in whatever order: what must always hold, holds.

A machine of random moves: people submit, cancel, pause, resume and reprioritise; trainers start,
train, crash and finish; nodes follow their orders, stay silent, get lost and come back; time limits
pass. After every move the invariants are checked, and in the end everything must come to rest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import (
    ENDED_JOB_STATUSES,
    JOB_TRANSITIONS,
    GenerationPhase,
    JobStatus,
)
from jobs.exceptions import ConflictError
from jobs.models import Allocation, Generation, Job, Node
from jobs.services.cluster.nodes import node_hello, node_remove, nodes_expire
from jobs.services.failures.timeouts import generations_expire, stalled_recover
from jobs.services.reports.batches import batch_take
from jobs.services.submission.job_actions import job_cancel, job_pause, job_reprioritise, job_resume
from jobs.services.submission.standing import Standing
from tests.jobs.world import PlayedNode, World
from tests.support.builders import job_make, node_make, user_make
from tests.support.messages import hello_request

OPEN_PHASES = [GenerationPhase.PREPARING, GenerationPhase.SWITCHING, GenerationPhase.ACTIVE]
picks = st.integers(0, 1000)


def reachable() -> dict[str, set[str]]:
    """Close the table of transitions: one move of a test may make several."""
    closure = {status: {status, *JOB_TRANSITIONS[status]} for status in JobStatus}
    for _ in JobStatus:
        for after in closure.values():
            for status in list(after):
                after |= closure[status]
    return {status.value: {s.value for s in after} for status, after in closure.items()}


REACHABLE = reachable()


class Lifecycle(RuleBasedStateMachine):
    """Two nodes of two accelerators and up to four jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.undo = transaction.atomic()
        self.undo.__enter__()

    def teardown(self) -> None:
        try:
            self.come_to_rest()
        finally:
            transaction.set_rollback(True)
            self.undo.__exit__(None, None, None)

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.owner = user_make()
        self.seen: dict[int, str] = {}

    def pick(self, number: int, statuses: tuple[str, ...] = ()) -> Job | None:
        rows = Job.objects.order_by("id")
        if statuses:
            rows = rows.filter(status__in=statuses)
        jobs = list(rows)
        return jobs[number % len(jobs)] if jobs else None

    def node(self, number: int) -> PlayedNode:
        return self.world.nodes[number % len(self.world.nodes)]

    @precondition(lambda self: Job.objects.count() < 4)
    @rule(least=st.integers(1, 3), more=st.integers(0, 2), priority=st.integers(1, 1000))
    def submit(self, least: int, more: int, priority: int) -> None:
        most = min(least + more, 4)
        job_make(self.owner, min_accelerators=least, max_accelerators=most, priority=priority)

    @rule(number=picks, act=st.sampled_from([job_cancel, job_pause, job_resume]))
    def people(self, number: int, act: Any) -> None:
        job = self.pick(number)
        if job is not None:
            with contextlib.suppress(ConflictError):
                act(job.pk, self.world.now, actor="user:x")

    @rule(number=picks, priority=st.integers(1, 1000))
    def reprioritise(self, number: int, priority: int) -> None:
        job = self.pick(number)
        if job is not None:
            with contextlib.suppress(ConflictError):
                job_reprioritise(job.pk, Standing(priority), self.world.now, actor="user:x")

    @rule()
    def cycle(self) -> None:
        self.world.cycle()

    @rule(number=picks, boots=st.booleans())
    def follow(self, number: int, boots: bool) -> None:
        played = self.node(number)
        if Node.objects.get(id=played.node.pk).status == "online":
            self.world.follow(played, boots=boots)

    @rule(number=picks)
    def train(self, number: int) -> None:
        job = self.training(number)
        if job is not None:
            self.world.train(job)

    @rule(number=picks)
    def finish(self, number: int) -> None:
        job = self.training(number)
        if job is not None:
            self.world.finish(job)

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def grace_ends(self, seconds: float) -> None:
        self.world.now_s += seconds
        stalled_recover(self.world.now)

    def training(self, number: int) -> Job | None:
        job = self.pick(number, ("starting", "running"))
        if job is None or not job.generations.filter(phase=GenerationPhase.ACTIVE).exists():
            return None
        slot = job.generations.get(phase=GenerationPhase.ACTIVE).membership.leader_slot
        is_there = any(t.slot == slot for _, t in self.world.trainers_of(job))
        return job if is_there else None

    @rule(number=picks, is_reported=st.booleans())
    def crash(self, number: int, is_reported: bool) -> None:
        rows = [(n, t) for n in self.world.nodes for t in n.trainers.values()]
        if not rows:
            return
        played, trainer = rows[number % len(rows)]
        if is_reported:
            played.say(trainer, ReportKind.FAILED, code="peer_lost", message="", traceback="")
        played.say(trainer, ReportKind.EXITED, exit_code=-9)
        del played.trainers[trainer.job_id, trainer.slot]
        batch_take(played.node, played.batch(), self.world.now)

    @rule(number=picks, unreachable=st.frozensets(st.integers(0, 3), max_size=2))
    def stall(self, number: int, unreachable: frozenset[int]) -> None:
        rows = [(n, t) for n in self.world.nodes for t in n.trainers.values() if t.has_joined]
        if not rows:
            return
        played, trainer = rows[number % len(rows)]
        others = [t.slot for _, t in rows if t.job_id == trainer.job_id]
        missed = [others[rank % len(others)] for rank in unreachable]
        played.say(trainer, ReportKind.STALLED, step=1, message="", unreachable=missed)
        batch_take(played.node, played.batch(), self.world.now)

    @rule(number=picks)
    def lose(self, number: int) -> None:
        played = self.node(number)
        self.world.now_s += 100
        Node.objects.exclude(id=played.node.pk).update(last_seen_at=self.world.now)
        Node.objects.filter(id=played.node.pk).update(last_seen_at=played.node.last_seen_at)
        nodes_expire(self.world.now)

    @rule(number=picks)
    def remove(self, number: int) -> None:
        """Remove a node whatever its trainers do, and let another one enrol."""
        played = self.node(number)
        node_remove(Node.objects.get(id=played.node.pk), self.world.now, actor="user:root")
        self.world.nodes.remove(played)
        self.world.nodes.append(PlayedNode(node_make(now=self.world.now)[0]))

    @rule(number=picks, is_same_boot=st.booleans())
    def come_back(self, number: int, is_same_boot: bool) -> None:
        played = self.node(number)
        if Node.objects.get(id=played.node.pk).status == "lost":
            self.hello(played, is_same_boot=is_same_boot)

    def hello(self, played: PlayedNode, *, is_same_boot: bool) -> None:
        if not is_same_boot:
            played.trainers.clear()
        node = Node.objects.get(id=played.node.pk)
        boot_id = node.boot_id if is_same_boot else f"{node.boot_id[:20]}-{self.world.now_s:.1f}"
        node_hello(node, hello_request(node, boot_id=boot_id), "token", self.world.now)
        played.node = Node.objects.get(id=node.pk)

    @rule(seconds=st.sampled_from([10.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds
        generations_expire(self.world.now)

    @invariant()
    def statuses_move_along_the_table(self) -> None:
        for pk, status in Job.objects.values_list("id", "status"):
            assert status in REACHABLE[self.seen.get(pk, status)]
            self.seen[pk] = status

    @invariant()
    def only_holding_jobs_have_wanted_trainers(self) -> None:
        wanted = Allocation.objects.filter(released_at=None, stop_requested_at=None)
        holding = {"starting", "running", "preempting", "finished"}
        assert set(wanted.values_list("job__status", flat=True)) <= holding
        for job in Job.objects.filter(status__in=["starting", "running", "preempting"]):
            assert job.generations.filter(phase__in=OPEN_PHASES).exists(), job.status

    @invariant()
    def lost_nodes_hold_nothing(self) -> None:
        held = Allocation.objects.filter(released_at=None)
        assert not held.exclude(accelerator__node__status="online").exists()

    @invariant()
    def what_waits_or_has_ended_resizes_nothing(self) -> None:
        idle = ["pending", "paused", "cancelled", "failed", "invalid"]
        rows = Generation.objects.filter(job__status__in=idle, phase__in=OPEN_PHASES)
        assert not rows.exists()

    @invariant()
    def members_are_within_the_jobs_bounds(self) -> None:
        for row in Generation.objects.select_related("job"):
            members = row.membership.members
            assert len(members) == row.num_members
            if members:
                assert len(members) <= row.job.max_accelerators
                is_parked = row.membership.parked
                assert is_parked == (len(members) < row.job.min_accelerators)
                assert row.membership.recover or not is_parked
                covered = sorted(v for m in members for v in m.virtual_nodes)
                assert covered == list(range(row.job.num_virtual_nodes))

    def come_to_rest(self) -> None:
        """Let all nodes come back and everybody act: nothing may stay stuck."""
        if not hasattr(self, "world"):
            return
        for played in self.world.nodes:
            if Node.objects.get(id=played.node.pk).status == "lost":
                self.hello(played, is_same_boot=True)
        self.world.settle(8)
        assert not Job.objects.filter(status="preempting").exists()
        for _ in range(3):
            self.world.settle(8)
            self.world.now_s += 400
            generations_expire(self.world.now)
        self.world.settle(8)
        assert not Allocation.objects.filter(
            released_at=None, stop_requested_at__isnull=False
        ).exists()
        assert not Allocation.objects.filter(
            released_at=None, job__status__in=[*ENDED_JOB_STATUSES, "paused", "pending"]
        ).exists()
        under_way = Generation.objects.filter(phase__in=["preparing", "switching"])
        assert not under_way.exists()
        held = Generation.objects.filter(phase="active", membership__parked=True)
        assert {row.job.status_code for row in held.select_related("job")} <= {"below_minimum"}
        # Accelerators that are free are free because nobody who waits could use them.
        num_free = 4 - Allocation.objects.filter(released_at=None).count()
        for job in Job.objects.filter(status="pending"):
            assert job.min_accelerators > num_free


@pytest.mark.django_db
def test_whatever_happens() -> None:
    run_state_machine_as_test(
        Lifecycle,
        settings=settings(
            max_examples=settings.default.max_examples // 3,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[*HealthCheck],
        ),
    )
