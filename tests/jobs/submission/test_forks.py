"""Forks: from which states, who may, what is refused, and the wait for a state saved now."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from rest_framework.test import APIClient

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs import tasks
from jobs.models import Artifact, AuditEntry, ClusterSetting, Job, Project, ProjectMembership
from jobs.selectors.desired_state.state import training_spec, wanted_state
from jobs.services.lifecycle.retention import files_delete
from jobs.services.submission import forks, job_actions
from jobs.services.submission.forks import ASK_AGAIN_S, forks_advance
from jobs.services.submission.job_actions import job_cancel
from tests.jobs.world import World
from tests.support.builders import CODE, Clients, at, job_make, submission_values
from tests.support.present import present
from tests.support.rows import file_store

pytestmark = pytest.mark.django_db
URL = "/api/v1/jobs/"
STATE = b"the state"
SHA256 = "5" * 64


def checkpoint_make(job: Job, step: int, name: str = "checkpoint.npz", **other: Any) -> Artifact:
    values = {"sha256": SHA256, "size_bytes": len(STATE), "generation": 1, "at": at(0)} | other
    artifact = Artifact(job=job, name=name, step=step, **values)
    artifact.file.save(name, ContentFile(STATE))
    return artifact


def parent_make(owner: User, status: JobStatus = JobStatus.FINISHED, **other: Any) -> Job:
    """Make a job with two kept checkpoints."""
    values: dict[str, Any] = {"step": 50, "epoch": 2, "settings": {"rate": 0.1, "units": 8}}
    job = job_make(owner, status=status, **(values | other))
    checkpoint_make(job, 40, "checkpoint-40.npz", sha256="4" * 64)
    checkpoint_make(job, 50, epoch=2)
    return job


def fork(client: APIClient, job: Job, **fields: Any) -> Any:
    return client.post(f"{URL}{job.pk}/fork/", fields, format="json")


def errors_of(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 400, answer.data
    found: dict[str, Any] = answer.json()["errors"]
    return found


# ---- from a kept checkpoint ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "status", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.PAUSED, JobStatus.RUNNING]
)
def test_a_fork_has_its_own_state_and_the_rest_of_its_parent(
    status: JobStatus, ada: User, ada_client: APIClient
) -> None:
    parent = parent_make(ada, status)
    made = fork(ada_client, parent)
    assert made.status_code == 201, made.data
    job = Job.objects.get(id=made.data["id"])
    assert (job.forked_from, job.step, job.epoch) == (parent, 50, 2)
    assert job.settings == parent.settings
    spec = present(training_spec(job).fork)
    assert (spec.sha256, spec.step) == (SHA256, 50)
    assert (spec.keeps_order, spec.keeps_rate, spec.keeps_seed) == (True, True, True)
    own = job.artifacts.get()
    assert (own.name, own.generation, own.step, own.epoch) == ("checkpoint.npz", 0, 50, 2)
    assert own.file.name != parent.artifacts.get(name="checkpoint.npz").file.name
    assert (made.data["forked_from"], made.data["forked_at_step"]) == (parent.pk, 50)
    assert ada_client.get(f"{URL}{parent.pk}/").json()["forks"] == [job.pk]
    listed = ada_client.get(URL, {"forked_from": parent.pk}).json()["results"]
    assert [row["id"] for row in listed] == [job.pk]


@pytest.mark.parametrize("can_link", [True, False])
def test_the_parents_deletion_leaves_the_fork_its_state(
    can_link: bool, ada: User, ada_client: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = parent_make(ada)
    source = Path(parent.artifacts.get(name="checkpoint.npz").file.path)

    def refuse(*_: object) -> None:
        raise OSError("no hard links here")

    if not can_link:
        monkeypatch.setattr("jobs.files.os.link", refuse)
    job = Job.objects.get(id=fork(ada_client, parent).data["id"])
    own = job.artifacts.get().file
    assert Path(own.path).samefile(source) == can_link
    files_delete(parent.pk, at(1), actor="user:ada")
    with own.open("rb") as file:
        assert file.read() == STATE
    answer = fork(ada_client, parent)
    assert answer.status_code == 410
    assert fork(ada_client, parent, code="def build(settings):\n    return 1\n").status_code == 400


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"settings.rate": 0.5}, (True, False, True)),
        ({"code": "def build(settings):\n    return 1\n"}, (True, False, True)),
        ({"global_batch_size": 64}, (False, True, True)),
        ({"seed": 7}, (False, True, False)),
        ({"shuffle": False}, (False, True, True)),
        ({"selection": {"method": "random"}}, (False, True, True)),
        ({"num_virtual_nodes": 8, "max_accelerators": 8, "priority": 9, "name": "b"}, (True,) * 3),
    ],
)
def test_what_is_changed_says_what_goes_on(
    changes: dict[str, Any], kept: tuple[bool, ...], ada: User, ada_client: APIClient
) -> None:
    made = fork(ada_client, parent_make(ada, stop_kind="epochs"), **changes)
    assert made.status_code == 201, made.data
    job = Job.objects.get(id=made.data["id"])
    spec = present(training_spec(job).fork)
    assert (spec.keeps_order, spec.keeps_rate, spec.keeps_seed) == kept
    if "settings.rate" in changes:
        assert job.settings == {"rate": 0.5, "units": 8}


@pytest.mark.parametrize(
    ("parent", "fields", "field"),
    [
        ({}, {"checkpoint": "45"}, "checkpoint"),
        ({}, {"checkpoint": "now"}, "checkpoint"),
        ({}, {"checkpoint": "best"}, "checkpoint"),
        ({}, {"checkpoint": True}, "checkpoint"),
        ({"status": JobStatus.VALIDATING}, {"checkpoint": "now"}, "checkpoint"),
        ({}, {"stop_limit": 50}, "stop_limit"),
        ({"stop_kind": "epochs"}, {"stop_limit": 2}, "stop_limit"),
        ({}, {"task": "predict"}, "forked_from"),
        ({}, {"forked_from": 10**9}, "forked_from"),
        ({"task": "predict", "stop_kind": "epochs", "stop_limit": 1, "shuffle": False},
         {"task": "train", "stop": {"kind": "epochs", "limit": 9}}, "forked_from"),
        ({}, {"colour": "red"}, "colour"),
        ({}, {"secrets": ["KEY"]}, "secrets"),
        ({}, {"priority": 1000}, "priority"),
    ],
)  # fmt: skip
def test_refusals_name_the_field_and_leave_nothing(
    parent: dict[str, Any], fields: dict[str, Any], field: str, ada: User, ada_client: APIClient
) -> None:
    job = parent_make(ada, **parent)
    assert field in errors_of(fork(ada_client, job, **fields))
    assert Job.objects.count() == 1
    assert Artifact.objects.count() == 2


def test_the_same_key_makes_one_fork(ada: User, ada_client: APIClient) -> None:
    parent = parent_make(ada)
    key = {"HTTP_IDEMPOTENCY_KEY": "k"}
    url = f"{URL}{parent.pk}/fork/"
    first, again = (ada_client.post(url, {}, format="json", **key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.data["id"] == again.data["id"]
    assert Job.objects.count() == 2
    other = ada_client.post(url, {"checkpoint": 40}, format="json", **key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


def test_the_same_key_at_once_leaves_one_state(
    ada: User, ada_client: APIClient, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    parent, known = parent_make(ada), job_actions.submission_known
    url, key = f"{URL}{parent.pk}/fork/", {"HTTP_IDEMPOTENCY_KEY": "k"}
    first = ada_client.post(url, {}, format="json", **key)
    looks = iter([lambda *_: None])  # the first one is not committed yet
    monkeypatch.setattr(job_actions, "submission_known", lambda *of: next(looks, known)(*of))
    again = ada_client.post(url, {}, format="json", **key)
    assert (again.status_code, again.data["id"]) == (200, first.data["id"])
    assert len(list(Path(settings.MEDIA_ROOT).rglob("*-checkpoint.npz"))) == 2


def test_a_fork_counts_in_the_storage_of_its_owner(
    ada: User, ada_client: APIClient, settings: Any
) -> None:
    parent = parent_make(ada)
    settings.STORAGE_LIMIT_BYTES = 2 * len(STATE) + len(CODE) + 4
    answer = fork(ada_client, parent)
    assert (answer.status_code, answer.json()["code"]) == (413, "storage_full")
    assert (Job.objects.count(), Artifact.objects.count()) == (1, 2)


def test_a_full_disk_is_told(
    ada: User, ada_client: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(forks, "file_share", fail)
    answer = fork(ada_client, parent_make(ada))
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")


# ---- whose ---------------------------------------------------------------------------------------


def test_only_those_who_see_a_job_fork_it(
    ada: User, bob: User, admin: User, client_of: Clients
) -> None:
    """By either way; an admin's fork is the admin's, without the owner's secrets, and audited."""
    left = Project.objects.create(name="left", created_at=at(0))
    parent = parent_make(ada, secrets=["KEY"], project=left)
    assert fork(client_of(bob), parent).status_code == 404
    sent = submission_values(forked_from=parent.pk)
    assert "forked_from" in errors_of(client_of(bob).post(URL, sent, format="json"))
    assert fork(client_of(ada, ("jobs:read",)), parent).status_code == 403
    assert fork(APIClient(), parent).status_code == 401
    assert Job.objects.count() == 1
    made = fork(client_of(admin), parent)
    assert made.status_code == 201, made.data
    assert (made.data["owner"], made.data["secrets"]) == ("admin", [])
    entry = AuditEntry.objects.get(action="job_forked")
    assert (entry.object, entry.details["fork"]) == (f"job:{parent.pk}", made.data["id"])
    assert client_of(ada).get(f"{URL}{made.data['id']}/").status_code == 404
    own = fork(client_of(ada), parent, secrets=[]).data["id"]  # outside the project
    told = parent.events.filter(kind="forked").order_by("pk").values_list("message", flat=True)
    numbered = (f"Another user's job {made.data['id']}", f"Its owner's other job {own}")
    assert [*told] == [f"{name} starts from its state of step 50" for name in numbered]
    submitted = Job.objects.get(pk=own).events.get(kind="submitted").message
    assert submitted.startswith(f"Submitted without project left of job {parent.pk}")


# ---- from the state of now -----------------------------------------------------------------------


@pytest.fixture
def world(db: None) -> World:
    return World(num_nodes=1)


@pytest.fixture
def running(world: World, ada: User) -> Job:
    """Make a job that trains on a played node."""
    job = job_make(ada, stop_limit=1000)
    world.cycle()
    for _ in range(4):
        world.follow(world.nodes[0])
    world.train(job, 5)
    job.refresh_from_db()
    assert job.status == JobStatus.RUNNING, job.status_reason
    return job


def forked_now(world: World, client: APIClient, job: Job) -> Job:
    made = fork(client, job, checkpoint="now")
    assert made.status_code == 201, made.data
    Job.objects.filter(id=made.data["id"]).update(submitted_at=world.now)
    found = Job.objects.get(id=made.data["id"])
    assert (found.status, found.status_code) == ("validating", "awaits_state")
    assert not hasattr(found, "validation")
    return found


def requests_of(world: World) -> set[int]:
    return {row.save_request for row in wanted_state(world.nodes[0].node).trainers}


def save(world: World, job: Job, step: int, **more: Any) -> None:
    """Upload a state and report it, as the leader's agent does; a superseded one stays there."""
    job.refresh_from_db()
    content = f"state {step}".encode()
    sha256 = hashlib.sha256(content).hexdigest()
    if not more.get("superseded"):
        file_store(job, "checkpoint.npz", content, world.now, job.generation)
    played = world.nodes[0]
    trainer = next(row for row in played.trainers.values() if row.job_id == job.pk)
    data = {"step": step, "epoch": 3, "sha256": sha256, "bytes": len(content), "is_last": False}
    played.say(trainer, ReportKind.CHECKPOINTED, file=f"checkpoint-{step}.npz", **data, **more)
    world.follow(played)


def test_now_waits_for_the_leaders_next_state(
    world: World, running: Job, ada_client: APIClient
) -> None:
    assert requests_of(world) == {0}
    job = forked_now(world, ada_client, running)
    first = requests_of(world)
    assert first != {0}
    assert forks_advance(world.now) == set() or requests_of(world) != {0}
    save(world, running, running.step + 1)
    assert job.pk in forks_advance(world.now)
    job.refresh_from_db()
    assert (job.fork_deadline_at, job.step, job.epoch) == (None, running.step + 1, 3)
    assert job.fork_spec is not None
    assert job.validation.status == "running"
    assert requests_of(world) == {0}
    assert forks_advance(world.now) == set()


def test_a_request_that_was_lost_is_made_again(
    world: World, running: Job, ada_client: APIClient
) -> None:
    """Its leader may be gone, or its upload be refused in the middle of a resize."""
    forked_now(world, ada_client, running)
    Job.objects.filter(id=running.pk).update(save_request=int(world.now.timestamp() * 1000))
    before = requests_of(world)
    assert forks_advance(world.now) == set()
    world.now_s += ASK_AGAIN_S + 1
    assert forks_advance(world.now) == {running.pk}
    after = requests_of(world)
    assert before != after
    assert 0 not in after


def test_a_fork_at_which_an_error_is_found_holds_up_no_others(
    world: World, running: Job, ada_client: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (forked_now(world, ada_client, running) for _ in range(2))
    save(world, running, running.step + 1)
    refusal = forks._refusal

    def fail(fork: Job, *values: Any) -> str:
        assert fork.pk != first.pk, "a fault of its rows"
        return refusal(fork, *values)

    with monkeypatch.context() as patched:
        patched.setattr(forks, "_refusal", fail)
        assert forks_advance(world.now) == {second.pk}
    assert forks_advance(world.now) == {first.pk}


@pytest.mark.parametrize("end", ["deadline", "parent ends", "fork is cancelled", "stop is past"])
def test_a_wait_in_vain_ends_with_its_reason(
    end: str, world: World, running: Job, ada: User, ada_client: APIClient, settings: Any
) -> None:
    job = forked_now(world, ada_client, running)
    if end == "deadline":
        Job.objects.filter(id=job.pk).update(fork_deadline_at=world.now)
        ClusterSetting.objects.update(watched_at=None)
        assert tasks.advance_forks() == [], "the site was away"
    elif end == "parent ends":
        job_cancel(running.pk, world.now, actor="user:ada")
    elif end == "fork is cancelled":
        job_cancel(job.pk, world.now, actor="user:ada")
    else:
        save(world, running, 1000)
    forks_advance(world.now)
    job.refresh_from_db()
    reason = {
        "deadline": "saved no state within",
        "parent ends": "ended, cancelled, before it saved",
        "fork is cancelled": "Cancelled",
        "stop is past": "has 1000 steps already",
    }[end]
    assert job.status == ("cancelled" if end == "fork is cancelled" else "invalid")
    assert reason in job.status_reason
    assert job.fork_deadline_at is None
    assert not job.artifacts.exists()
    assert not hasattr(job, "validation")
    running.refresh_from_db()
    assert running.save_request == 0


def test_the_many_forks_of_one_user_keep_no_other_users_waiting(
    world: World,
    running: Job,
    ada_client: APIClient,
    bob: User,
    client_of: Clients,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job of the first user saves nothing: its steps are long, or its code sees to that."""
    monkeypatch.setattr(forks, "_AT_ONCE", 2)
    for _ in range(3):
        forked_now(world, ada_client, running)
    other = job_make(bob, stop_limit=1000, max_accelerators=1)
    world.settle(4)
    world.train(other, 5)
    job = forked_now(world, client_of(bob), other)
    save(world, other, 6)
    assert job.pk in forks_advance(world.now)
    job.refresh_from_db()
    assert (job.fork_deadline_at, job.step) == (None, 6)


@pytest.mark.parametrize("status", [JobStatus.PAUSED, JobStatus.PENDING])
def test_now_of_a_job_at_rest_is_its_newest_checkpoint(
    status: JobStatus, ada: User, ada_client: APIClient
) -> None:
    made = fork(ada_client, parent_make(ada, status), checkpoint="now")
    assert (made.status_code, made.data["forked_at_step"]) == (201, 50)


def test_members_of_a_project_make_no_job_of_others_save_its_state(
    running: Job, bob: User, client_of: Clients
) -> None:
    vision = Project.objects.create(name="vision", created_at=at(0))
    membership = ProjectMembership.objects.create(
        project=vision, user=bob, role="member", since=at(0)
    )
    Job.objects.filter(id=running.pk).update(project=vision)
    errors = errors_of(fork(client_of(bob), running, checkpoint="now"))
    assert "Only its owner and operators of its project" in errors["checkpoint"][0]
    running.refresh_from_db()
    assert (Job.objects.count(), running.save_request) == (1, 0)
    membership.role = "operator"
    membership.save()
    assert fork(client_of(bob), running, checkpoint="now").status_code == 201


# ---- kept checkpoints ----------------------------------------------------------------------------


def test_the_newest_checkpoints_are_kept_under_their_steps(
    world: World, running: Job, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    settings.KEPT_CHECKPOINTS = 3
    files = []
    for step in (10, 20, 20, 30, 40):
        with django_capture_on_commit_callbacks(execute=True):
            save(world, running, step)
        files.append(Path(running.artifacts.get(name="checkpoint.npz").file.path))
    kept = list(running.artifacts.order_by("step").values_list("name", "step"))
    assert kept == [
        ("checkpoint-20.npz", 20), ("checkpoint-30.npz", 30), ("checkpoint.npz", 40)
    ]  # fmt: skip
    assert [path.exists() for path in files] == [False, False, True, True, True]
    save(world, running, 45, superseded=True)
    assert running.artifacts.get(name="checkpoint.npz").step == 40
    settings.KEPT_CHECKPOINTS = 1
    save(world, running, 50)
    assert list(running.artifacts.values_list("name", flat=True)) == ["checkpoint.npz"]


def test_forks_of_one_state_differ_in_their_selection_alone(
    ada: User, ada_client: APIClient
) -> None:
    selection = encode(SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP))
    parent = parent_make(ada, stop_kind="epochs", selection=selection)
    for change in ({"beta": 2.0}, {"method": "random"}):
        fields = {f"selection_{name}": value for name, value in change.items()}
        made = fork(ada_client, parent, **fields)
        assert made.status_code == 201, made.data
        assert Job.objects.get(id=made.data["id"]).selection == {**selection, **change}
