"""Real concurrency, on a database that has it: what interleaving in one thread cannot show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections, transaction

from controlplane.core.protocol.node_messages import LogChunk, ValidationReport
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.api.jobs.submission_request import submission_read
from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import (
    Allocation,
    Generation,
    Job,
    Node,
    NotificationDelivery,
    Project,
    Validation,
)
from jobs.selectors.desired_state.state import wanted_state
from jobs.selectors.logs import log_since
from jobs.selectors.projects import accelerators_by_kind
from jobs.services.cluster import nodes, projects
from jobs.services.cluster.node_shapes import ports_taken
from jobs.services.cluster.nodes import enrolment_token_create
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import jobs_lock
from jobs.services.notifications import channels, deliveries
from jobs.services.notifications.senders import Sent
from jobs.services.reports.batches import batch_take
from jobs.services.reports.log_chunks import log_chunks_store
from jobs.services.scheduling.cycle import cycle_run
from jobs.services.scheduling.policy import cluster_setting
from jobs.services.submission.forks import forks_advance
from jobs.services.submission.job_actions import job_cancel, job_submit
from jobs.services.submission.validation_requests import validation_request
from jobs.services.submission.validations import (
    _waits_explain,
    validation_start,
    validation_take,
    validations_start_waiting,
)
from tests.jobs.notifications.channels import channel_make
from tests.jobs.world import PlayedTrainer, World
from tests.support.builders import (
    at,
    enrol_request,
    job_make,
    node_make,
    submission_values,
    user_make,
)
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.django_db(transaction=True)

#: Threads do not meet in the same way twice: more attempts in `make nightly`.
attempts = pytest.mark.parametrize(
    "attempt", [0, 1, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(2, 5))]
)


@pytest.fixture(autouse=True)
def _needs_concurrency(db: None) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: SQLite lets one writer in at a time")


def at_once(*acts: Callable[[], object]) -> None:
    """Run all acts together, each with a connection of its own; raise what one of them raised."""
    barrier = threading.Barrier(len(acts), timeout=DEADLINE_S)
    errors: list[BaseException] = []

    def run(act: Callable[[], object]) -> None:
        try:
            barrier.wait()
            act()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[act]) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def until_waited_for() -> None:
    """Return when another connection waits for a lock of this one, or after a second."""
    ends_at = time.monotonic() + 1.0
    is_waited_for = "SELECT 1 FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    with connection.cursor() as cursor:
        while time.monotonic() < ends_at and cursor.execute(is_waited_for).fetchone() is None:
            time.sleep(0.01)


@attempts
def test_two_last_joiners_on_two_nodes(attempt: int) -> None:
    world = World(num_nodes=2, num_accelerators=1)
    job = job_make()
    world.cycle()
    batches = []
    for played in world.nodes:
        (orders,) = wanted_state(played.node).trainers
        trainer = PlayedTrainer(job.pk, orders.slot, 0, generation=1)
        played.say(trainer, ReportKind.READY)
        batches.append((played.node, played.batch()))
    at_once(*(lambda row=row: batch_take(row[0], row[1], world.now) for row in batches))
    assert Generation.objects.get(job=job).phase == "switching"


@attempts
def test_four_cycles(attempt: int) -> None:
    world = World()
    jobs = [job_make() for _ in range(3)]
    at_once(*(lambda: cycle_run(world.now) for _ in range(4)))
    assert Allocation.objects.filter(released_at=None).count() <= 4
    assert all(Generation.objects.filter(job=job).count() <= 1 for job in jobs)
    assert Generation.objects.exists()
    world.settle(10)
    assert Allocation.objects.filter(released_at=None).count() == 4


@attempts
def test_the_result_of_a_validation_and_a_cancel(attempt: int) -> None:
    node, _ = node_make()
    job = job_make(status=JobStatus.VALIDATING)
    assert validation_start(job.validation, at(0))
    report = ValidationReport(validation_id=job.validation.pk, attempt=1, ok=True)
    at_once(
        lambda: validation_take(node, report, at(1)),
        lambda: validations_start_waiting(at(1)),
        lambda: job_cancel(job.pk, at(1), actor="user:ada"),
    )
    job.refresh_from_db()
    assert job.status == "cancelled"
    assert Validation.objects.get().status in ("passed", "cancelled")


@attempts
def test_a_cycle_and_a_cancel(attempt: int) -> None:
    world = World()
    job = job_make()
    at_once(
        lambda: cycle_run(world.now),
        lambda: job_cancel(job.pk, world.now, actor="user:x"),
    )
    assert Job.objects.get().status == "cancelled"
    assert not Allocation.objects.filter(released_at=None, stop_requested_at=None).exists()
    assert not Generation.objects.filter(phase__in=["preparing", "switching", "active"]).exists()


@pytest.mark.nightly
def test_a_fork_that_asks_again_and_a_change_of_it_and_its_parent() -> None:
    ada = user_make("ada")
    parent = job_make(ada, status=JobStatus.RUNNING)
    waits = {"fork": {"sha256": "", "step": 0}, "fork_deadline_at": at(1000)}
    fork = job_make(ada, status=JobStatus.VALIDATING, forked_from=parent, **waits)
    half_done = threading.Event()

    def change() -> None:
        with transaction.atomic():
            jobs_lock([parent.pk])
            half_done.set()
            until_waited_for()
            jobs_lock([fork.pk])

    def advance() -> None:
        half_done.wait(DEADLINE_S)
        forks_advance(at(50))

    at_once(change, advance)
    parent.refresh_from_db()
    assert parent.save_request == at(50).timestamp() * 1000


@pytest.mark.nightly
def test_a_validation_that_is_assigned_while_its_wait_is_explained() -> None:
    node_make()
    job, is_assigned = job_make(status=JobStatus.VALIDATING), threading.Event()

    def assign() -> None:
        with transaction.atomic():
            assert validation_start(job.validation, at(0))
            is_assigned.set()
            until_waited_for()

    def explain() -> None:
        is_assigned.wait(DEADLINE_S)
        _waits_explain(1)

    at_once(assign, explain)
    job.refresh_from_db()
    assert (job.status_code, job.validation.status) == ("validating", "running")


@pytest.mark.nightly
def test_who_follows_a_log_misses_nothing_of_two_nodes() -> None:
    world = World(num_nodes=2, num_accelerators=1)
    job = job_make()
    world.cycle()
    is_stored, seen = threading.Event(), []

    def store(node: Node, text: str) -> None:
        (trainer,) = wanted_state(node).trainers
        chunk = LogChunk(job_id=job.pk, slot=trainer.slot, offset=0, text=text)
        log_chunks_store(node, [chunk], world.now)

    def store_slowly() -> None:
        with transaction.atomic():
            store(world.nodes[0].node, "one\n")
            is_stored.set()
            until_waited_for()

    def store_and_follow() -> None:
        is_stored.wait(DEADLINE_S)
        with transaction.atomic():
            store(world.nodes[1].node, "two\n")
        seen.append(log_since(job, None, 0))

    at_once(store_slowly, store_and_follow)
    seen.append(log_since(job, None, seen[0].next_cursor))
    text = "".join(part.text for part in seen)
    assert "one" in text
    assert "two" in text


@pytest.mark.nightly
@pytest.mark.parametrize(("is_enrolled", "refused"), [(False, "first_port"), (True, "ports_taken")])
def test_nodes_at_once_share_no_ports(
    monkeypatch: pytest.MonkeyPatch, is_enrolled: bool, refused: str
) -> None:
    """New nodes of a host, and restarted ones whose agents found other ports free."""
    names, ports = ("node-x", "node-y"), {"first_port": 20_000, "last_port": 20_099}
    rows = {name: node_make(name) for name in names} if is_enrolled else {}
    tokens = {name: enrolment_token_create(None, at(0))[1] for name in names}
    errors: list[str] = []

    def taken(*given: Any) -> str:
        found = ports_taken(*given)
        until_waited_for()
        return found

    monkeypatch.setattr(nodes, "ports_taken", taken)

    def begin(name: str) -> None:
        request = enrol_request(tokens[name], name, **ports)
        try:
            if is_enrolled:
                nodes.node_hello(rows[name][0], request, rows[name][1], at(0))
            else:
                nodes.node_enrol(request, at(0))
        except InvalidInputError as error:
            errors.extend(error.fields)
        except ConflictError as error:
            errors.append(error.code)

    at_once(*(lambda name=name: begin(name) for name in names))
    assert (Node.objects.filter(**ports).count(), errors) == (1, [refused])


def test_one_key_at_once_makes_one_job() -> None:
    user = user_make()
    wanted = submission_read(submission_values())
    found: list[int] = []

    def submit() -> None:
        found.append(job_submit(user, wanted, at(0), idempotency_key="same").pk)

    at_once(submit, submit, submit, submit)
    assert Job.objects.count() == 1
    assert set(found) == {Job.objects.get().pk}
    assert len(list(Path(settings.MEDIA_ROOT).rglob("*.py"))) == 1


def test_submissions_at_once_keep_the_limit(settings: Any) -> None:
    settings.LIVE_JOBS_LIMIT = 2
    user = user_make()
    wanted = submission_read(submission_values())
    refused: list[str] = []

    def submit() -> None:
        try:
            job_submit(user, wanted, at(0))
        except ConflictError as error:
            refused.append(error.code)

    at_once(*[submit] * 5)
    assert Job.objects.count() == 2
    assert refused == ["too_many_jobs"] * 3
    assert len(list(Path(settings.MEDIA_ROOT).rglob("*.py"))) == 2


def test_measurements_at_once_leave_one_of_a_user() -> None:
    node_make()
    user = user_make()
    same = submission_read(submission_values())
    others = [submission_read(submission_values(seed=seed)) for seed in (1, 2)]
    at_once(*(lambda one=one: validation_request(user, one, at(0)) for one in others * 2))
    assert Validation.objects.filter(status="running").count() == 1
    at_once(
        lambda: validation_request(user, same, at(1)),
        lambda: job_submit(user, same, at(1)),
    )
    assert Job.objects.get().status == "validating"
    assert Validation.objects.filter(job=None, status="running").count() <= 1


@pytest.mark.nightly
def test_a_channel_that_is_deleted_while_its_message_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ada, is_locked = user_make("ada"), threading.Event()
    channel, _ = channel_make(ada)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    (due,) = deliveries.deliveries_due(at(0))

    def note(*_: object, **__: object) -> None:
        is_locked.set()
        until_waited_for()

    def send(*_: object) -> Sent:
        is_locked.wait(DEADLINE_S)
        return Sent(is_delivered=False, answer="gone", is_final=True)

    monkeypatch.setattr(channels, "audit_add", note)
    monkeypatch.setattr(deliveries, "send", send)
    at_once(
        lambda: deliveries.delivery_attempt(due, at(0)),
        lambda: channels.channel_delete(ada, channel.pk),
    )
    assert not NotificationDelivery.objects.exists()


@pytest.mark.nightly
def test_projects_at_once_share_no_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    boss, check = user_make("boss", is_staff=True), projects._kinds_check
    node_make()
    cluster_setting()

    def checked(*given: Any) -> None:
        check(*given)
        until_waited_for()

    def make(name: str) -> None:
        with suppress(InvalidInputError):
            values = {"guaranteed_by_kind": accelerators_by_kind()}
            projects.project_make(name, values, at(0), by=boss)

    monkeypatch.setattr(projects, "_kinds_check", checked)
    at_once(lambda: make("one"), lambda: make("two"))
    assert Project.objects.count() == 1
