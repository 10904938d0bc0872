"""What goes wrong with trainers, validations and waits, and what the control plane makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Sum

from controlplane.core.protocol import wire
from controlplane.core.protocol.wire import ReportKind, ValidationReport
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Event, Job, LogChunk, Node, Validation
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.cluster import nodes
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.failures.timeouts import generations_expire
from jobs.services.reports import log_chunks
from jobs.services.reports.batches import batch_take
from jobs.services.reports.log_chunks import log_chunks_store
from jobs.services.submission import validations
from jobs.services.submission.job_actions import job_cancel
from jobs.services.submission.validations import (
    TIME_LIMIT_GRACE_S,
    validation_start,
    validation_take,
    validations_expire,
    validations_spread,
    validations_start_waiting,
)
from tests.jobs.world import World, settled
from tests.support.builders import at, job_make, node_make, user_make
from tests.support.messages import batch_of
from tests.support.rows import allocation_make

pytestmark = pytest.mark.django_db


def fail(world: World, job: Job, code: str, slot: int = 0) -> None:
    played, trainer = next(row for row in world.trainers_of(job) if row[1].slot == slot)
    played.say(trainer, ReportKind.FAILED, code=code, message="it broke", traceback="Trace...")
    played.say(trainer, ReportKind.EXITED, exit_code=3)
    del played.trainers[job.pk, slot]
    batch_take(played.node, played.batch(), world.now)


def test_the_users_own_error_ends_the_job_with_its_traceback() -> None:
    world, job = settled()
    fail(world, job, "user_code")
    job.refresh_from_db()
    assert (job.status, job.status_code, job.status_reason) == ("failed", "user_code", "it broke")
    assert job.error_traceback == "Trace..."
    assert job.ended_at is not None
    world.settle(2)
    assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.parametrize("code", ["peer_lost", "port_in_use", "internal"])
def test_other_failures_cost_the_trainer_and_not_the_job(code: str) -> None:
    world, job = settled()
    fail(world, job, code)
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    generation = job.generations.get(number=2)
    assert [row["code"] for row in generation.lost] == [code]
    assert generation.membership.leader_slot == 4
    world.settle(8)
    now_open = set(job.allocations.filter(released_at=None).values_list("slot", flat=True))
    assert len(now_open) == 2
    assert 0 not in now_open


def test_a_crash_is_told_by_the_exit_alone() -> None:
    world, job = settled(max_accelerators=1)
    world.kill(job, 0)
    job.refresh_from_db()
    assert (job.status, job.status_code) == ("pending", "crash")
    assert "ended with status -9" in job.status_reason


def test_a_job_is_given_up_after_some_restarts(settings: Any) -> None:
    settings.RESTART_LIMIT = 1
    world, job = settled(max_accelerators=1)
    fail(world, job, "internal", slot=world.trainers_of(job)[0][1].slot)
    world.settle(8)
    fail(world, job, "internal", slot=world.trainers_of(job)[0][1].slot)
    job.refresh_from_db()
    assert (job.status, job.status_code) == ("failed", "restart_limit")
    world.settle(3)
    assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.parametrize(
    ("code", "taken"),
    [("node_lost", "internal"), ("odd", "internal"), ("state_misfit", "state_misfit")],
)
def test_a_trainer_reports_no_loss_that_is_found_out_here(code: str, taken: str) -> None:
    world = World(num_nodes=1, num_accelerators=1)
    job = job_make(max_accelerators=1)
    world.cycle()
    world.follow(world.nodes[0], boots=False)
    fail(world, job, code, slot=0)
    job.refresh_from_db()
    assert (job.status, job.status_code) == ("pending", taken)
    assert job.attempts.restarts == 1


def test_a_joiner_that_fails_does_not_touch_the_members() -> None:
    world, job = settled(max_accelerators=1)
    member = set(job.allocations.values_list("slot", flat=True))
    world.cap(job, 2)
    (played,) = world.nodes
    world.follow(played, boots=False)
    (joiner,) = set(job.allocations.values_list("slot", flat=True)) - member
    fail(world, job, "port_in_use", slot=joiner)
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    open_slots = set(job.allocations.filter(released_at=None).values_list("slot", flat=True))
    assert open_slots == member
    assert Event.objects.filter(job=job, kind="resize_given_up").exists()


def test_a_report_of_odd_shape_does_not_keep_out_the_others() -> None:
    world, job = settled()
    played, leader = world.leader_of(job)
    played.say(leader, ReportKind.STEPS, first_step="?")
    played.say(leader, ReportKind.EPOCH, epoch=0, step=9, logs={"loss": None, "acc": 0.5})
    batch_take(played.node, played.batch(), world.now)
    job.refresh_from_db()
    assert job.metrics == {"loss": None, "acc": 0.5}
    assert job.step_reports.count() == 0


def test_two_states_that_differ_are_told() -> None:
    world, job = settled()
    played, trainer = world.trainers_of(job)[0]
    played.say(trainer, ReportKind.DIGEST, step=0, sha256="f" * 64, role="after")
    batch_take(played.node, played.batch(), world.now)
    event = Event.objects.get(job=job, kind="digest_mismatch")
    assert event.data["got"] == "f" * 64


def test_a_finished_job_waits_for_its_trainers_but_not_for_ever(settings: Any) -> None:
    world, job = settled()
    played, leader = world.leader_of(job)
    played.say(leader, ReportKind.FINISHED, step=100, epoch=1, reason="steps", metrics={})
    batch_take(played.node, played.batch(), world.now)
    assert len(wanted_state(played.node).trainers) == 2
    assert generations_expire(world.now) == set()
    world.now_s += settings.LEAVE_LIMIT_S + 1
    assert generations_expire(world.now) == {job.pk}
    assert wanted_state(played.node).trainers == ()


def test_a_job_that_finishes_before_it_switches_sends_its_joiners_away() -> None:
    world, job = settled(max_accelerators=1)
    world.cap(job, 2)
    (played,) = world.nodes
    _, leader = world.leader_of(job)
    world.follow(played)
    assert job.generations.filter(phase="switching").exists()
    played.say(leader, ReportKind.FINISHED, step=100, epoch=1, reason="steps", metrics={})
    batch_take(played.node, played.batch(), world.now)
    assert [trainer.slot for trainer in wanted_state(played.node).trainers] == [leader.slot]
    assert job.generations.order_by("-number")[0].phase == "aborted"
    assert Job.objects.get(id=job.pk).status == JobStatus.FINISHED


def test_a_growth_that_never_gets_ready_is_given_up(settings: Any) -> None:
    world, job = settled(max_accelerators=1)
    world.cap(job, 2)
    world.now_s += settings.PREPARE_LIMIT_S + 1
    assert generations_expire(world.now) == {job.pk}
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    assert len(wanted_state(world.nodes[0].node).trainers) == 1
    assert generations_expire(world.now) == set()


def test_a_switch_that_never_happens_restarts_the_job(settings: Any) -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.cycle()
    (played,) = world.nodes
    world.follow(played)
    assert job.generations.get().phase == "switching"
    world.now_s += settings.SWITCH_LIMIT_S + 1
    assert generations_expire(world.now) == {job.pk}
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("pending", 1)


def test_a_trainer_that_never_came_up_is_released_without_a_word() -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.cycle()
    job_cancel(job.pk, world.now, actor="user:x")
    (played,) = world.nodes
    # The agent never saw the orders in between; its next heartbeat knows of nothing.
    batch_take(played.node, played.batch("an old version"), world.now)
    assert Allocation.objects.filter(released_at=None).count() == 2
    batch_take(played.node, played.batch(wanted_state(played.node).version), world.now)
    assert not Allocation.objects.filter(released_at=None).exists()


def test_a_node_is_lost_when_its_lease_is_over(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = node_make(now=at(0))
    assert nodes_expire(at(settings.LEASE_S - 1)) == (set(), set())
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "event_add", None)  # as if its worker was killed there
        with pytest.raises(TypeError):
            nodes_expire(at(settings.LEASE_S + 1))
    assert nodes_expire(at(settings.LEASE_S + 1)) == ({node.pk}, set())
    assert Node.objects.get().shown_status == "lost"
    assert Event.objects.filter(kind="node_lost").count() == 1
    assert nodes_expire(at(settings.LEASE_S + 1)) == (set(), set())


class TestValidations:
    def report(self, job: Job, **other: Any) -> ValidationReport:
        asked = Validation.objects.get(job=job)
        values: dict[str, Any] = {"validation_id": asked.pk, "attempt": asked.attempt, "ok": True}
        return ValidationReport(**{**values, **other})

    def waiting(self, owner: User | None = None) -> Job:
        job = job_make(owner, status=JobStatus.VALIDATING)
        validation_start(job.validation, at(0))
        return Job.objects.get(id=job.pk)

    def again(self, jobs: Sequence[Job]) -> list[Job]:
        return [Job.objects.get(id=job.pk) for job in jobs]

    def test_the_least_busy_node_is_asked(self) -> None:
        first, _ = node_make()
        second, _ = node_make()
        assert [self.waiting().validation.node for _ in range(3)] == [first, second, first]

    def test_code_behind_slow_code_moves_to_a_node_that_builds_none(self, settings: Any) -> None:
        first, _ = node_make()
        second, _ = node_make()
        slow, quick, behind, last = [self.waiting() for _ in range(4)]
        assert validations_spread(at(1)) == set(), "both build"
        told = self.report(behind)
        for job in (quick, last):
            assert validation_take(second, self.report(job), at(5))
        assert validations_spread(at(6)) == {behind.pk}
        assert [one.validation_id for one in wanted_state(first).validations] == [
            slow.validation.pk
        ]
        (wanted,) = wanted_state(second).validations
        assert (wanted.validation_id, wanted.attempt) == (behind.validation.pk, 1)
        behind.refresh_from_db()
        assert second.name in behind.status_reason
        assert not validation_take(first, told, at(7))
        over = at(4 * settings.VALIDATION_TIMEOUT_S + TIME_LIMIT_GRACE_S + 1)
        assert validations_expire(over) == {slow.pk}, "time counts from the move"
        assert validation_take(second, told, over)

    def test_one_user_holds_all_nodes_but_one_where_there_are_others(self) -> None:
        """Ada's code never ends. Of three nodes it holds two; nobody's waits behind it."""
        nodes = [node_make()[0] for _ in range(3)]
        ada, bob = user_make("ada"), user_make("bob")
        loops = [self.waiting(ada) for _ in range(6)]
        used = [job.validation.node for job in loops]
        assert used == [nodes[0], nodes[1], nodes[0], nodes[1], None, None]
        assert validations_spread(at(1)) == set()
        other = self.waiting(bob)
        assert other.validation.node == nodes[2]
        for _ in range(2):
            validations_start_waiting(at(2))
            validations_spread(at(2))
        assert {job.validation.node for job in self.again(loops)} == {*nodes[:2], None}
        assert validation_take(nodes[2], self.report(other), at(3))
        assert validations_spread(at(4)) == set()
        assert self.waiting(bob).validation.node == nodes[2]
        User.objects.filter(pk=bob.pk).update(is_active=False)
        assert validations_start_waiting(at(5)) == {job.pk for job in loops[4:]}

    def test_a_move_that_takes_no_node_more_is_allowed(self) -> None:
        """Ada holds one of two nodes: her second code stays there, bob's behind it moves."""
        first, _ = node_make()
        ada, bob = user_make("ada"), user_make("bob")
        loop, second, behind = self.waiting(ada), self.waiting(ada), self.waiting(bob)
        assert {job.validation.node for job in (loop, second, behind)} == {first}
        other, _ = node_make()
        assert validations_spread(at(1)) == {behind.pk}
        assert [job.validation.node for job in self.again([loop, second, behind])] == [
            first,
            first,
            other,
        ]

    def test_a_job_that_waits_for_others_of_its_owner_says_so(self, settings: Any) -> None:
        first, _ = node_make()
        ada = user_make("ada")
        jobs = [self.waiting(ada) for _ in range(4)]
        assert validations_start_waiting(at(1)) == {job.pk for job in jobs[2:]}
        (last,) = self.again(jobs[3:])
        assert (last.status_code, last.version) == ("validations_limit", jobs[3].version + 1)
        assert "the code of at most 2 jobs is built at a time" in last.status_reason
        assert validations_start_waiting(at(2)) == set(), "told once"
        for job in jobs[:2]:
            validation_take(first, self.report(job), at(3))
        assert validations_start_waiting(at(4)) == {job.pk for job in jobs[2:]}
        assert "being built" in self.again(jobs[3:])[0].status_reason
        over = at(4 * settings.VALIDATION_TIMEOUT_S + TIME_LIMIT_GRACE_S + 5)
        Node.objects.update(status="lost")
        assert validations_expire(over) == {job.pk for job in jobs[2:]}
        assert self.again(jobs[3:])[0].status_code == "no_node", "no longer being built"

    def test_those_whose_code_is_being_built_keep_nobody_waiting(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many users wait as are looked at in one go, and no more of their code may be built."""
        monkeypatch.setattr(validations, "_AT_ONCE", 1)
        ada, bob = user_make("ada"), user_make("bob")
        jobs = [self.waiting(ada) for _ in range(3)] + [self.waiting(bob)]
        node_make()
        assert jobs[0].pk in validations_start_waiting(at(1))
        assert jobs[3].pk in validations_start_waiting(at(2))
        assert [job.validation.status for job in self.again(jobs)] == [
            "running", "running", "waiting", "running",
        ]  # fmt: skip

    def test_a_job_that_no_node_takes_from_strangers_says_so(self, settings: Any) -> None:
        settings.USERS_TRUST_EACH_OTHER = False
        node_make(isolation="none")
        job = self.waiting(user_make("ada"))
        user_make("bob")
        Validation.objects.update(status="waiting", node=None, deadline_at=None)
        Job.objects.update(status_code="no_node")
        assert validations_start_waiting(at(1)) == {job.pk}
        assert "all jobs share a user" in self.again([job])[0].status_reason

    @pytest.mark.parametrize(
        "state",
        [
            {"status": "lost"},
            {"is_cordoned": True},
            {"quarantined_until": at(500)},
            {"removed_at": at(0)},
        ],
    )
    def test_code_does_not_move_to_a_node_that_takes_no_work(self, state: dict[str, Any]) -> None:
        node, _ = node_make()
        jobs = [self.waiting() for _ in range(2)]
        other, _ = node_make()
        Node.objects.filter(pk=other.pk).update(**state)
        assert validations_spread(at(1)) == set()
        assert {job.validation.node for job in jobs} == {node}
        Node.objects.filter(pk=other.pk).update(
            status="online", is_cordoned=False, quarantined_until=at(1), removed_at=None
        )
        assert validations_spread(at(2)) == {jobs[1].pk}

    def test_a_job_waits_for_a_node(self) -> None:
        job = self.waiting()
        assert job.validation.node is None
        node_make()
        assert validations_start_waiting(at(5)) == {job.pk}
        assert validations_start_waiting(at(5)) == set()

    def test_the_node_is_told_what_to_build(self) -> None:
        node, _ = node_make()
        job = self.waiting()
        (wanted,) = wanted_state(node).validations
        assert (wanted.spec.job_id, wanted.attempt, wanted.code_name) == (job.pk, 1, "job.py")
        assert wanted.spec.stop.metric is None

    def test_good_code_is_queued_with_its_facts(self) -> None:
        node, _ = node_make()
        job = self.waiting()
        assert validation_take(node, self.report(job, facts={"num_examples": 9}), at(3))
        job.refresh_from_db()
        assert (job.status, job.facts, job.pending_since) == ("pending", {"num_examples": 9}, at(3))
        validation = Validation.objects.get(job=job)
        assert (validation.status, validation.status_code) == ("passed", "passed")
        assert wanted_state(node).validations == ()
        assert not validation_take(node, self.report(job), at(4))

    def test_bad_code_comes_back_with_its_traceback(self) -> None:
        node, _ = node_make()
        job = self.waiting()
        bad = self.report(
            job, ok=False, code="user_code", field="code", message="no build", traceback="Trace"
        )
        validation_take(node, bad, at(3))
        job.refresh_from_db()
        assert (job.status, job.status_code, job.error_field) == ("invalid", "user_code", "code")
        assert (job.status_reason, job.error_traceback) == ("no build", "Trace")
        assert job.ended_at == at(3)

    def test_only_the_node_that_was_asked_may_answer(self) -> None:
        node_make()
        other, _ = node_make()
        job = self.waiting()
        assert not validation_take(other, self.report(job), at(3))
        job.refresh_from_db()
        assert job.status == "validating"

    def test_an_overdue_one_goes_elsewhere_and_the_late_answer_is_dropped(
        self, settings: Any
    ) -> None:
        node, _ = node_make()
        job = self.waiting()
        late = self.report(job)
        other, _ = node_make()
        Node.objects.filter(id=node.pk).update(status="lost")
        now = at(4 * settings.VALIDATION_TIMEOUT_S + 60)
        assert validations_expire(at(1)) == set()
        assert validations_expire(now) == {job.pk}
        job.refresh_from_db()
        assert (job.validation.node, job.validation.attempt) == (other, 2)
        assert not validation_take(node, late, now)

    def test_the_time_of_those_that_wait_on_a_node_counts_from_its_last_result(
        self, settings: Any
    ) -> None:
        node, _ = node_make()
        jobs = [self.waiting() for _ in range(3)]
        most_s = 4 * settings.VALIDATION_TIMEOUT_S
        for number, job in enumerate(jobs, start=1):
            assert validations_expire(at(number * most_s)) == set()
            batch = batch_of(node, validations=(self.report(job),))
            batch_take(node, batch, at(number * most_s))
        assert [Job.objects.get(pk=job.pk).status for job in jobs] == ["pending"] * 3

    def test_a_lost_node_gives_its_validations_to_another(self, settings: Any) -> None:
        node, _ = node_make(now=at(0))
        job = self.waiting()
        other, _ = node_make(now=at(settings.LEASE_S))
        assert nodes_expire(at(settings.LEASE_S + 1)) == ({node.pk}, {job.pk})
        job.refresh_from_db()
        assert (job.validation.node, job.validation.attempt) == (other, 2)

    def test_what_a_broken_node_refuses_is_built_elsewhere(self, settings: Any) -> None:
        broken, _ = node_make()
        other, _ = node_make()
        job = self.waiting()
        refusal = {"ok": False, "code": "internal", "message": "Read-only file system"}
        for node, attempt in ((broken, 1), (other, 2), (broken, 3)):
            job.validation.refresh_from_db()
            assert (job.validation.node, job.validation.attempt) == (node, attempt)
            report = self.report(job, **refusal)
            assert validation_take(node, report, at(attempt))
        job.refresh_from_db()
        assert (job.status, job.status_code) == ("invalid", "internal")
        told = Event.objects.filter(kind="node_doubted").values_list("node", flat=True)
        assert sorted(told) == [broken.pk, other.pk]

    @pytest.mark.parametrize("code", ["timeout", "crashed"])
    @pytest.mark.parametrize("proof", ["none", "passed", "ready"])
    def test_what_does_not_end_on_a_node_that_may_be_half_dead_is_built_once_elsewhere(
        self, settings: Any, code: str, proof: str
    ) -> None:
        """A disk or a GPU that does not answer looks like an endless loop in everybody's code."""
        now = at(settings.QUARANTINE_WINDOW_S + 2)
        suspect, _ = node_make(now=now)
        built = self.waiting()
        validation_take(suspect, self.report(built), at(1 if proof == "none" else 10))
        if proof == "ready":
            Validation.objects.update(ended_at=at(1))
            row = allocation_make(built, suspect.accelerators.all()[0], granted_at=at(5))
            Allocation.objects.filter(pk=row.pk).update(ready_at=at(10))
        other, _ = node_make(now=now)
        job = job_make(status=JobStatus.VALIDATING)
        Validation.objects.filter(job=job).update(
            node=suspect, status="running", attempt=1, deadline_at=now
        )
        refusal = {"ok": False, "code": code, "field": "code", "message": "an endless loop"}
        assert validation_take(suspect, self.report(job, **refusal), now)
        if proof == "none":
            job = Job.objects.get(pk=job.pk)
            found = (job.status, job.validation.node, job.validation.attempt)
            assert found == ("validating", other, 2)
            assert validation_take(other, self.report(job, **refusal), now)
        job = Job.objects.get(pk=job.pk)
        assert (job.status, job.status_code) == ("invalid", code)

    def test_in_the_end_it_is_given_up(self, settings: Any) -> None:
        node_make()
        job = self.waiting()
        now = at(0)
        for _ in range(settings.VALIDATION_ATTEMPTS_LIMIT):
            now += timedelta(seconds=4 * settings.VALIDATION_TIMEOUT_S + 60)
            validations_expire(now)
        job.refresh_from_db()
        assert (job.status, job.status_code) == ("invalid", "validation_lost")


class TestLogs:
    def store(self, world: World, job: Job, *chunks: tuple[int, str]) -> str:
        (played,) = world.nodes
        rows = [wire.LogChunk(job_id=job.pk, slot=0, offset=o, text=t) for o, t in chunks]
        log_chunks_store(played.node, rows, world.now)
        return "".join(
            LogChunk.objects.filter(job=job).order_by("offset").values_list("text", flat=True)
        )

    def test_chunks_join_whatever_comes_again(self) -> None:
        world, job = settled()
        assert self.store(world, job, (0, "one ")) == "one "
        assert self.store(world, job, (0, "one "), (4, "two ")) == "one two "
        assert self.store(world, job, (4, "two three")) == "one two three"
        assert self.store(world, job, (4, "two three")) == "one two three"

    def test_offsets_are_bytes_not_letters(self) -> None:
        world, job = settled()
        assert self.store(world, job, (0, "é"), (2, "è")) == "éè"
        assert self.store(world, job, (2, "èê")) == "éèê"

    def test_what_the_agent_left_out_is_noted(self) -> None:
        world, job = settled()
        assert self.store(world, job, (0, "one\ntw"), (1_000_006, "\rnew\n")) == (
            "one\ntw\n[1,000,000 bytes of this log are left out]\nnew\n"
        )

    def test_of_a_long_log_beginning_and_newest_part_are_kept(self, settings: Any) -> None:
        settings.LOG_LIMIT_BYTES = 160
        world, job = settled()
        lines = [f"{number:09}\n" for number in range(40)]
        for number, line in enumerate(lines):
            text = self.store(world, job, (10 * number, line))
            size = LogChunk.objects.aggregate(size=Sum("size_bytes"))["size"]
            assert size <= 160
            assert text.startswith("".join(lines[: min(number + 1, 4)]))
            assert text.endswith("".join(lines[max(0, number - 9) : number + 1]))
        kept = text.partition("]\n")[2]
        left_out = 400 - 40 - len(kept)
        assert text == (
            "".join(lines[:4]) + f"\n[{left_out} bytes of this log are left out]\n" + kept
        )

    def test_a_long_log_in_large_parts_keeps_its_newest_part(self, settings: Any) -> None:
        settings.LOG_LIMIT_BYTES = 16
        world, job = settled()
        chunks = [(20 * number, f"{number:020}") for number in range(4)]
        text = self.store(world, job, *chunks)
        assert text.startswith("0" * 20)
        assert text.endswith(f"{3:020}")
        assert "[40 bytes of this log are left out]" in text

    @pytest.mark.parametrize("distance", [1, 3, 10**15])
    def test_a_log_in_tiny_parts_has_few_rows(
        self, distance: int, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.LOG_LIMIT_BYTES = 4_000
        monkeypatch.setattr(log_chunks, "ROWS_LIMIT", 40)
        world, job = settled()
        for batch in range(10):
            numbers = range(20 * batch, 20 * batch + 20)
            text = self.store(world, job, *((n * distance, chr(97 + n % 26)) for n in numbers))
            assert LogChunk.objects.count() <= 40
            assert text.startswith("a")
            assert text.endswith(chr(97 + numbers[-1] % 26))
        assert "bytes of this log are left out]" in text


def test_a_leaver_that_crashes_after_the_switch_harms_nobody() -> None:
    world, job = settled()
    world.cap(job, 1)
    (played,) = world.nodes
    played_leader, leader = world.leader_of(job)
    (leaver,) = (t for _, t in world.trainers_of(job) if t is not leader)
    assert job.generations.get(number=2).phase == "switching"
    played.say(leader, ReportKind.SWITCHED, 2, step=5, pause_s=0.1, bytes_moved=0, joined=False)
    played.say(leaver, ReportKind.EXITED, exit_code=-11)
    del played.trainers[job.pk, leaver.slot]
    leader.generation = 2
    batch_take(played.node, played.batch(), world.now)
    assert played_leader is played
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    assert job.generations.get(number=2).phase == "active"
    assert job.allocations.filter(released_at=None).count() == 1


def test_a_leaver_that_crashes_before_the_switch_is_a_loss() -> None:
    world, job = settled()
    world.cap(job, 1)
    world.kill(job, 4, exit_code=-11)
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    recovery = job.generations.get(number=3)
    assert recovery.membership.slots == (0,)
    assert recovery.membership.recover
