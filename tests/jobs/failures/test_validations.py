"""Validations: which node builds the code of a job, and how those end that do not pass."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Event, Job, Node, Validation
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.reports.batches import batch_take
from jobs.services.submission import validations
from jobs.services.submission.validations import (
    TIME_LIMIT_GRACE_S,
    validation_start,
    validation_take,
    validations_expire,
    validations_spread,
    validations_start_waiting,
)
from tests.support.builders import at, job_make, node_make, user_make
from tests.support.messages import batch_of
from tests.support.rows import allocation_make

pytestmark = pytest.mark.django_db


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
