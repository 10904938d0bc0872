"""Accelerators that that a job excludes for a while, and nodes in quarantine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Accelerator, Event, Job, JobAttempts, Node, StartFailure
from jobs.selectors.cluster import cluster_snapshot
from jobs.services.failures.quarantine import node_unquarantine, nodes_judge
from jobs.services.failures.timeouts import generations_expire
from jobs.services.submission.job_actions import job_cancel
from tests.jobs.world import PlayedNode, World
from tests.support.builders import job_make, user_make
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db


def fail_start(world: World, played: PlayedNode, job: Job, code: str = "internal") -> None:
    """Let every trainer of a job on a node fail before it is ready."""
    world.follow(played, boots=False)
    for key in [key for key in played.trainers if key[0] == job.pk]:
        trainer = played.trainers.pop(key)
        played.say(trainer, ReportKind.FAILED, code=code, message="no room", traceback="")
        played.say(trainer, ReportKind.EXITED, exit_code=3)
    world.tell(played)


def hang_start(world: World, played: PlayedNode, job: Job) -> None:
    """Let every trainer of a job on a node get neither ready nor end by itself."""
    world.follow(played, boots=False)
    world.now_s += settings.PREPARE_LIMIT_S + 1
    world.hear()
    assert generations_expire(world.now) == {job.pk}
    world.follow(played, boots=False)
    nodes_judge(world.now)


#: Ways in which a start fails: the agent tells, or its trainers hang.
STARTS = [fail_start, hang_start]
Start = Callable[[World, PlayedNode, Job], None]


class TestShunning:
    @staticmethod
    @setup_once
    def growing() -> tuple[World, Job, PlayedNode]:
        """Let a job train on one node; the other has one accelerator that it would grow to."""
        world = World(num_nodes=2, num_accelerators=1)
        job = job_make(max_accelerators=1)
        world.settle(4)
        Job.objects.filter(id=job.pk).update(max_accelerators=2)
        (other,) = [played for played in world.nodes if not played.trainers]
        return world, Job.objects.get(id=job.pk), other

    def test_a_first_crash_does_not_make_an_accelerator_wait(self) -> None:
        world, job, other = self.growing()
        world.cycle()
        fail_start(world, other, job)
        number = Job.objects.get(id=job.pk).generation
        world.cycle()
        assert Job.objects.get(id=job.pk).generation == number + 1

    def test_a_first_one_that_was_found_out_late_does(self, settings: Any) -> None:
        world, job, other = self.growing()
        world.cycle()
        world.follow(other, boots=False)
        world.now_s += settings.PREPARE_LIMIT_S + 1
        assert generations_expire(world.now) == {job.pk}
        failure = StartFailure.objects.get(job=job)
        assert failure.accelerator.node == other.node
        assert (failure.until_at - world.now).total_seconds() == settings.START_COOL_DOWN_S

    def test_a_crash_long_after_another_one_is_a_first_one(self, settings: Any) -> None:
        world, job, other = self.growing()
        for wait_s in (0.0, settings.START_COOL_DOWN_LIMIT_S + 1.0):
            world.now_s += wait_s
            world.hear()
            world.cycle()
            fail_start(world, other, job)
            failure = StartFailure.objects.get(job=job)
            assert (failure.count, failure.until_at) == (1, world.now)

    def test_a_crash_while_training_is_the_first_one(self, settings: Any) -> None:
        world, job, other = self.growing()
        world.settle(4)
        (slot,) = [slot for _, slot in other.trainers]
        world.kill(job, slot)
        world.follow_all()
        world.cycle()
        fail_start(world, other, job)
        failure = StartFailure.objects.get(job=job)
        assert (failure.until_at - world.now).total_seconds() == settings.START_COOL_DOWN_S

    def test_an_accelerator_that_fails_is_not_offered_for_a_while(self, settings: Any) -> None:
        world, job, other = self.growing()
        for _ in range(2):
            world.cycle()
            fail_start(world, other, job)
        failure = StartFailure.objects.get(job=job)
        assert failure.accelerator.node == other.node
        assert (failure.until_at - world.now).total_seconds() == settings.START_COOL_DOWN_S
        number = Job.objects.get(id=job.pk).generation
        world.cycle()
        assert Job.objects.get(id=job.pk).generation == number
        assert "did not come up there" in Job.objects.get(id=job.pk).policy_reason
        world.now_s += settings.START_COOL_DOWN_S
        world.cycle()
        assert Job.objects.get(id=job.pk).generation == number + 1

    def test_each_failure_doubles_the_time_up_to_a_bound(self, settings: Any) -> None:
        settings.START_COOL_DOWN_LIMIT_S = 25
        settings.QUARANTINE_DEATHS = 0
        world, job, other = self.growing()
        waits = []
        for _ in range(4):
            world.cycle()
            fail_start(world, other, job)
            failure = StartFailure.objects.get(job=job)
            waits.append((failure.until_at - world.now).total_seconds())
            world.now_s += waits[-1]
        assert waits == [0, 10, 20, 25]

    def test_a_trainer_that_gets_ready_makes_up_for_them(self, settings: Any) -> None:
        world, job, other = self.growing()
        world.cycle()
        fail_start(world, other, job)
        world.now_s += settings.START_COOL_DOWN_S
        world.settle(3)
        assert not StartFailure.objects.exists()
        assert job.allocations.filter(released_at=None).count() == 2


class TestBrokenNodes:
    """One of two nodes starts no trainer, and the other is held by another job."""

    def starting(self) -> tuple[World, Job, Job, PlayedNode]:
        world = World(num_nodes=2)
        held = {"min_accelerators": 2, "max_accelerators": 2, "num_virtual_nodes": 2}
        other = job_make(user_make("bob"), **held)
        world.settle(4)
        (broken,) = [played for played in world.nodes if not played.trainers]
        job = job_make(max_accelerators=1)
        return world, job, other, broken

    def fail_starts(
        self, world: World, job: Job, broken: PlayedNode, times: int = 8, start: Start = fail_start
    ) -> Job:
        for _ in range(times):
            world.now_s += 5
            world.hear()
            world.cycle()
            if start is fail_start or Job.objects.get(id=job.pk).status == "starting":
                start(world, broken, job)
        return Job.objects.get(id=job.pk)

    @pytest.mark.parametrize("start", STARTS)
    def test_a_job_waits_for_another_node_and_starts_there(
        self, settings: Any, start: Start
    ) -> None:
        world, job, other, broken = self.starting()
        job = self.fail_starts(world, job, broken, start=start)
        assert job.status == "pending"
        name, num_tries = broken.node.name, 5 if start is fail_start else 2
        expected = f"{num_tries} times in a row trainers did not come up on {name}"
        assert expected in job.status_reason
        assert "did not come up there" in job.policy_reason
        job_cancel(other.pk, world.now, actor="user:bob")
        world.follow_all()
        world.cycle()
        world.now_s += settings.PREPARE_LIMIT_S + 1
        world.hear()
        assert generations_expire(world.now) == {job.pk}
        job.refresh_from_db()
        attempts = JobAttempts.objects.get(job=job)
        assert (job.status_code, attempts.restarts) == ("timeout", num_tries)
        assert name not in job.status_reason
        world.settle()
        held = job.allocations.get(released_at=None)
        assert held.accelerator.node != broken.node

    def test_one_that_starts_nowhere_is_given_up(self, settings: Any) -> None:
        """A single try loses as many trainers of one node as tries are allowed."""
        settings.RESTART_LIMIT = 2
        world = World(num_nodes=2, num_accelerators=2)
        job = job_make(min_accelerators=2, max_accelerators=2, num_virtual_nodes=2)
        for _ in range(4):
            world.now_s += 60
            world.hear()
            world.cycle()
            for played in world.nodes:
                fail_start(world, played, job)
        job.refresh_from_db()
        assert (job.status, job.status_code) == ("failed", "restart_limit")

    @pytest.mark.parametrize("is_cordoned", [True, False])
    def test_one_that_fits_on_no_other_node_is_given_up(
        self, settings: Any, is_cordoned: bool
    ) -> None:
        """The other node takes no work, or has one accelerator of each of two kinds."""
        settings.RESTART_LIMIT = 2
        world = World(num_nodes=2, num_accelerators=2)
        broken, other = world.nodes
        Node.objects.filter(id=other.node.pk).update(is_cordoned=is_cordoned)
        if not is_cordoned:
            Accelerator.objects.filter(node=other.node, index=1).update(kind="other")
        job = job_make(min_accelerators=2, max_accelerators=2, num_virtual_nodes=2)
        job = self.fail_starts(world, job, broken, 5)
        assert (job.status, job.status_code) == ("failed", "restart_limit")


class TestNodes:
    def dying(self, settings: Any, neighbour: User | None = None) -> tuple[World, PlayedNode]:
        """Let three trainers of two jobs crash on one node, beside a job of `neighbour`."""
        world = World(num_nodes=1, num_accelerators=2 if neighbour is None else 3)
        (played,) = world.nodes
        if neighbour is not None:
            job_make(neighbour, max_accelerators=1)
        owner = user_make()
        one, two = (job_make(owner, max_accelerators=1) for _ in range(2))
        world.settle(4)
        world.kill(one, *[slot for job_id, slot in played.trainers if job_id == one.pk])
        world.settle(3)
        world.kill(one, *[slot for job_id, slot in played.trainers if job_id == one.pk])
        assert Node.objects.get().quarantined_until is None
        world.kill(two, *[slot for job_id, slot in played.trainers if job_id == two.pk])
        return world, played

    def test_three_deaths_of_two_jobs_set_a_node_aside(self, settings: Any) -> None:
        world, _ = self.dying(settings)
        node = Node.objects.get()
        assert node.shown_status == "quarantined"
        assert (node.quarantined_until - world.now).total_seconds() == settings.QUARANTINE_S
        assert node.quarantine_reason == "3 trainers of 2 jobs died there within 10 min"
        assert cluster_snapshot(world.now).snapshot.accelerators == ()
        assert "quarantined for 5 min" in Event.objects.get(kind="node_quarantined").message

    def test_deaths_of_one_owners_jobs_set_no_node_aside_on_which_others_train(
        self, settings: Any, ada: User
    ) -> None:
        """Else a user could set all nodes aside by jobs that crash."""
        self.dying(settings, ada)
        assert Node.objects.get().quarantined_until is None

    def test_it_comes_back_and_stays_away_twice_as_long_the_next_time(self, settings: Any) -> None:
        world, played = self.dying(settings)
        world.now_s += settings.QUARANTINE_S
        assert nodes_judge(world.now)
        assert Event.objects.filter(kind="node_taken_back", actor="system").exists()
        assert len(cluster_snapshot(world.now).snapshot.accelerators) == 2
        for job in Job.objects.filter(status="pending"):
            JobAttempts.objects.filter(job=job).delete()
        world.settle(4)
        for _ in range(2):
            for job in Job.objects.filter(status="starting"):
                world.kill(job, *[slot for job_id, slot in played.trainers if job_id == job.pk])
            world.settle(3)
        node = Node.objects.get()
        assert node.num_quarantines == 2
        assert (
            node.quarantined_until - node.quarantined_at
        ).total_seconds() == 2 * settings.QUARANTINE_S

    def test_one_job_that_crashes_is_not_the_nodes_fault(self) -> None:
        world = World(num_nodes=1)
        (played,) = world.nodes
        job = job_make(max_accelerators=1)
        for _ in range(5):
            world.settle(3)
            world.kill(job, *[slot for _, slot in played.trainers])
        assert Node.objects.get().quarantined_until is None

    def test_jobs_that_crash_everywhere_are_not_the_nodes_fault(self, settings: Any) -> None:
        settings.QUARANTINE_DEATHS = 2
        world = World(num_nodes=2, num_accelerators=1)
        for _ in range(2):
            job = job_make()
            world.settle(3)
            slots = [trainer.slot for _, trainer in world.trainers_of(job)]
            assert len(slots) == 2
            world.kill(job, *slots)
            job_cancel(job.pk, world.now, actor="user:x")
        assert not Node.objects.filter(quarantined_until__isnull=False).exists()

    @pytest.mark.parametrize("num_jobs", [1, 2])
    def test_trainers_that_cannot_be_started_set_a_node_aside_by_two_jobs(
        self, settings: Any, num_jobs: int
    ) -> None:
        """A failed start may be reported by the job's own code."""
        settings.RESTART_LIMIT = 10
        world = World(num_nodes=1, num_accelerators=num_jobs)
        jobs = [job_make(max_accelerators=1) for _ in range(num_jobs)]
        for number in range(3):
            assert Node.objects.get().quarantined_until is None
            world.cycle()
            fail_start(world, world.nodes[0], jobs[number % num_jobs], "port_in_use")
            world.now_s += 100
        assert Node.objects.get().quarantine_reason == (
            "3 trainers of 2 jobs died there within 10 min" if num_jobs == 2 else ""
        )

    @pytest.mark.parametrize("is_half_dead", [True, False])
    def test_trainers_that_hang_set_a_node_aside_on_which_no_others_start(
        self, settings: Any, ada: User, is_half_dead: bool
    ) -> None:
        """Each job may be slow to build; where another one came up the node is fine."""
        settings.QUARANTINE_DEATHS = 2
        world = World(num_nodes=1, num_accelerators=3)
        if not is_half_dead:
            job_make(ada, max_accelerators=1)
            world.settle(4)
        jobs = [job_make(user_make(name), max_accelerators=1) for name in ("bob", "eve")]
        world.cycle()
        world.follow(world.nodes[0], boots=False)
        world.now_s += settings.PREPARE_LIMIT_S + 1
        assert generations_expire(world.now) == {job.pk for job in jobs}
        nodes_judge(world.now)
        assert Node.objects.get().quarantine_reason == (
            "2 trainers of 2 jobs did not get ready there within 10 min" if is_half_dead else ""
        )

    def test_deaths_long_ago_are_forgotten(self, settings: Any) -> None:
        world = World(num_nodes=1, num_accelerators=1)
        job = job_make(max_accelerators=1)
        for _ in range(3):
            world.cycle()
            fail_start(world, world.nodes[0], job)
            world.now_s += settings.QUARANTINE_WINDOW_S
        assert Node.objects.get().quarantined_until is None


def test_an_admin_takes_a_node_back(ada: User, admin: User, client_of: Any) -> None:
    world = World(num_nodes=1)
    node = world.nodes[0].node
    Node.objects.filter(id=node.pk).update(
        quarantined_until=world.now,
        quarantined_at=world.now,
        num_quarantines=3,
        quarantine_reason="they died",
    )
    url = f"/api/v1/nodes/{node.pk}/unquarantine/"
    assert client_of(ada).get(f"/api/v1/nodes/{node.pk}/").data["status"] == "quarantined"
    assert client_of(ada).post(url).status_code == 403
    for _ in range(2):
        response = client_of(admin).post(url, {"reason": "new fan"})
        assert (response.status_code, response.data["status"]) == (200, "online")
    node.refresh_from_db()
    assert (node.num_quarantines, node.quarantine_reason) == (0, "")
    event = Event.objects.get(kind="node_taken_back")
    assert (event.actor, event.data) == ("user:admin", {"reason": "new fan"})
    assert not node_unquarantine(node, world.now, actor="user:admin")
    assert client_of(admin).post("/api/v1/nodes/4711/unquarantine/").status_code == 404
