"""The value of a secret reaches the trainers of its job, and no answer, row or page (M11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from controlplane.core.protocol.node_messages import WantedState
from controlplane.core.protocol.wire import decode, encode
from jobs.models import Allocation, Job, Secret, Validation
from jobs.sealing import UnsealError, seal, unseal
from jobs.selectors.desired_state.state import wanted_orders, wanted_state
from jobs.selectors.secrets import JOB_SECRETS_LIMIT_BYTES
from jobs.services.cluster.secrets import SECRETS_LIMIT, VALUE_LIMIT_BYTES, secret_store
from jobs.services.failures.unsendable import unsendable_end
from tests.jobs.test_authorisation import routes
from tests.jobs.world import World
from tests.security.known_secret import VALUE, leaks
from tests.support.builders import Clients, at, audit_acts, job_make, logged_in, submission_values

pytestmark = pytest.mark.django_db

URL = "/api/v1/secrets/"


def store(user: User, name: str = "S3_KEY", value: str = VALUE) -> Secret:
    return secret_store(user, name, value, at(0))[0]


# --- storing ---------------------------------------------------------------------------------


def test_a_secret_is_stored_replaced_and_deleted(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    made = client.put(f"{URL}S3_KEY/", {"value": VALUE})
    assert (made.status_code, sorted(made.json())) == (201, ["changed_at", "created_at", "name"])
    assert unseal(Secret.objects.get().sealed) == VALUE
    assert client.put(f"{URL}S3_KEY/", {"value": "another value"}).status_code == 200
    assert unseal(Secret.objects.get().sealed) == "another value"
    assert [row["name"] for row in client.get(URL).json()] == ["S3_KEY"]
    assert client.delete(f"{URL}S3_KEY/").status_code == 204
    assert client.delete(f"{URL}S3_KEY/").status_code == 404
    acts = audit_acts().values_list("action", "object", "actor")
    assert [*acts] == [
        (action, "secret:S3_KEY", "user:ada")
        for action in ("secret_made", "secret_replaced", "secret_deleted")
    ]


def test_secrets_are_their_owners_alone(ada: User, bob: User, client_of: Clients) -> None:
    store(bob)
    client = client_of(ada)
    assert client.get(URL).json() == []
    assert client.delete(f"{URL}S3_KEY/").status_code == 404
    assert client.put(f"{URL}S3_KEY/", {"value": "a value of ada"}).status_code == 201
    assert unseal(Secret.objects.get(owner=bob).sealed) == VALUE


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        *((name, VALUE, "name") for name in ("1A", "A-B", "A" * 65, "Ä", "A B", "A=B")),
        *((name, VALUE, "name") for name in ("PATH", "LD_PRELOAD", "PYTHONPATH", "LC_ALL")),
        *((name, VALUE, "name") for name in ("VIRTUALFLOW_RUN_DIR", "CUDA_VISIBLE_DEVICES")),
        *(("A", value, "value") for value in (None, 7, [VALUE], "", "1234567", "a\0" * 8)),
        ("A", "\x1b[31m red", "value"),
        ("A", "€" * (VALUE_LIMIT_BYTES // 3 + 1), "value"),
    ],
)
def test_odd_secrets_are_refused_by_field(
    name: str, value: Any, field: str, ada: User, client_of: Clients
) -> None:
    response = client_of(ada).put(f"{URL}{quote(name)}/", {"value": value})
    assert response.status_code == 400
    assert [*response.json()["errors"]] == [field]
    assert leaks(response.content.decode()) == []
    assert not Secret.objects.exists()


def test_a_user_has_so_many_secrets(ada: User, client_of: Clients) -> None:
    for number in range(SECRETS_LIMIT):
        store(ada, f"A{number}", "x" * 8)
    refused = client_of(ada).put(f"{URL}ONE_MORE/", {"value": VALUE})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_secrets")
    assert client_of(ada).put(f"{URL}A3/", {"value": VALUE}).status_code == 200


def test_the_page_stores_and_deletes_and_shows_no_value(ada: User) -> None:
    client = logged_in(ada)
    browser_sends = VALUE.replace("\n", "\r\n")
    page = client.post("/account/secrets/", {"name": "S3_KEY", "value": browser_sends}, follow=True)
    assert "S3_KEY" in page.content.decode()
    assert unseal(Secret.objects.get().sealed) == VALUE
    refused = client.post("/account/secrets/", {"name": "PATH", "value": "a-refused-value"})
    assert "choose another name" in refused.content.decode()
    assert "a-refused-value" not in refused.content.decode()
    assert client.post("/account/secrets/OTHER/delete/").status_code == 404
    client.post("/account/secrets/S3_KEY/delete/")
    assert not Secret.objects.exists()


def test_another_key_does_not_open_it(settings: Any) -> None:
    sealed = seal(VALUE)
    settings.SECRETS_KEY = "another key" * 5
    with pytest.raises(UnsealError):
        unseal(sealed)


# --- submitting ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["jobs/", "jobs/?dry_run=1", "validations/"])
def test_a_missing_secret_is_refused_at_its_field(
    path: str, ada: User, bob: User, client_of: Clients
) -> None:
    store(bob)
    body = submission_values(secrets=["S3_KEY"])
    response = client_of(ada).post(f"/api/v1/{path}", body)
    assert response.status_code == 400
    assert "S3_KEY" in response.json()["errors"]["secrets"][0]


def test_all_secrets_of_a_job_have_a_limit(ada: User, client_of: Clients) -> None:
    names = ["A", "B"]
    for name in names:
        store(ada, name, "x" * (JOB_SECRETS_LIMIT_BYTES // 2))
    assert client_of(ada).post("/api/v1/jobs/", submission_values(secrets=names)).status_code == 201
    store(ada, "B", "x" * (JOB_SECRETS_LIMIT_BYTES // 2 + 1))
    refused = client_of(ada).post("/api/v1/jobs/", submission_values(secrets=names))
    assert "At most" in refused.json()["errors"]["secrets"][0]


@pytest.mark.parametrize("given", [["S3_KEY", "DB"], "S3_KEY, DB"])
def test_a_job_and_its_clone_name_them(given: Any, ada: User, client_of: Clients) -> None:
    store(ada)
    store(ada, "DB")
    made = client_of(ada).post("/api/v1/jobs/", submission_values(secrets=given)).json()
    assert made["secrets"] == ["S3_KEY", "DB"]
    cloned = client_of(ada).post(f"/api/v1/jobs/{made['id']}/clone/", {})
    assert cloned.json()["secrets"] == ["S3_KEY", "DB"]


def test_an_admins_clone_hands_no_secrets_to_strange_code(
    ada: User, admin: User, client_of: Clients
) -> None:
    store(admin)
    job = job_make(ada, secrets=["S3_KEY"])
    assert client_of(admin).post(f"/api/v1/jobs/{job.pk}/clone/", {}).json()["secrets"] == []
    client = logged_in(admin)
    form = client.get(f"/jobs/new/?from={job.pk}").context["form"]
    assert not form["secrets"].value()


def test_what_was_validated_with_other_secrets_is_validated_again(
    ada: User, client_of: Clients
) -> None:
    store(ada)
    world = World(num_nodes=1)
    first = client_of(ada).post("/api/v1/validations/", submission_values(secrets="S3_KEY"))
    world.follow(world.nodes[0])
    assert Validation.objects.get(id=first.json()["id"]).status == "passed"
    plain = client_of(ada).post("/api/v1/jobs/", submission_values()).json()
    named = client_of(ada).post("/api/v1/jobs/", submission_values(secrets="S3_KEY")).json()
    assert (plain["status"], named["status"]) == ("validating", "pending")


# --- the site --------------------------------------------------------------------------------


def running_job(owner: User, world: World) -> Job:
    job = job_make(owner, secrets=["S3_KEY"], max_accelerators=1, num_virtual_nodes=1)
    world.cycle()
    assert Allocation.objects.filter(job=job).exists()
    return job


def test_only_the_node_of_the_job_gets_the_value(ada: User) -> None:
    store(ada)
    world = World(num_nodes=2, num_accelerators=1)
    job = running_job(ada, world)
    host = Allocation.objects.get(job=job).accelerator.node_id
    for played in world.nodes:
        state = wanted_state(played.node)
        sent = {name: value for one in state.trainers for name, value in one.secrets.items()}
        assert sent == ({"S3_KEY": VALUE} if played.node.pk == host else {})
        assert leaks(repr(state)) == []
        assert decode(WantedState, json.loads(json.dumps(encode(state)))) == state


def test_the_version_follows_the_value_without_telling_it(ada: User, settings: Any) -> None:
    store(ada)
    world = World(num_nodes=1)
    running_job(ada, world)
    first = wanted_state(world.nodes[0].node).version
    assert wanted_state(world.nodes[0].node).version == first
    store(ada)  # the same value again: encrypted anew, so the version is no digest of the value
    assert wanted_state(world.nodes[0].node).version != first


@pytest.mark.parametrize("cause", ["deleted", "another key"])
def test_a_running_job_without_its_secret_fails_with_the_reason(
    cause: str, ada: User, client_of: Clients, settings: Any
) -> None:
    store(ada)
    world = World(num_nodes=1)
    job = running_job(ada, world)
    if cause == "deleted":
        client_of(ada).delete(f"{URL}S3_KEY/")
    else:
        settings.SECRETS_KEY = "another key" * 5
    node = world.nodes[0].node
    state, left_out = wanted_orders(node)
    assert state.trainers == ()
    assert unsendable_end(node, left_out, at(1)) == {job.pk}
    job.refresh_from_db()
    assert (job.status, job.status_code, job.error_field) == ("failed", "secret_missing", "secrets")
    assert "S3_KEY" in job.status_reason
    assert unsendable_end(node, left_out, at(1)) == set()


def test_a_trainer_with_its_secrets_goes_on_under_another_key(ada: User, settings: Any) -> None:
    store(ada)
    world = World(num_nodes=1)
    job = running_job(ada, world)
    world.until(job.generations.filter(phase="active").exists)
    settings.SECRETS_KEY = "another key" * 5
    state, left_out = wanted_orders(world.nodes[0].node)
    assert ([one.secrets for one in state.trainers], left_out) == ([{}], [])


def test_a_validation_without_its_secret_fails_with_the_reason(
    ada: User, client_of: Clients
) -> None:
    store(ada)
    world = World(num_nodes=1)
    made = client_of(ada).post("/api/v1/jobs/", submission_values(secrets="S3_KEY")).json()
    node = world.nodes[0].node
    (wanted,) = wanted_state(node).validations
    assert wanted.secrets == {"S3_KEY": VALUE}
    Secret.objects.all().delete()
    unsendable_end(node, wanted_orders(node)[1], at(1))
    job = Job.objects.get(id=made["id"])
    assert (job.status, job.status_code, job.error_field) == (
        "invalid", "secret_missing", "secrets",
    )  # fmt: skip


def test_no_answer_and_no_row_has_the_value(
    admin: User, client_of: Clients, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rest, pages = client_of(admin), logged_in(admin)
    with caplog.at_level(0):
        rest.put(f"{URL}S3_KEY/", {"value": VALUE})
        pages.post("/account/secrets/", {"name": "S3_KEY", "value": VALUE})
        World(num_nodes=1)
        made = rest.post("/api/v1/jobs/", submission_values(secrets="S3_KEY")).json()
        num_read = 0
        for route, _ in routes():
            path = "/" + route.replace("<int:job_id>", str(made["id"]))
            path = path.replace("<int:validation_id>", "1").replace("<str:name>", "S3_KEY")
            if "<" in path or "^" in path or "logout" in path or path.startswith("/stream"):
                continue
            for client in (rest, pages):
                answer = client.get(path)
                text = b"".join(answer) if answer.streaming else answer.content
                assert leaks(text.decode(errors="replace")) == [], path
                num_read += answer.status_code == 200
    assert num_read > 40
    assert leaks(caplog.text) == []
    dump = tmp_path / "dump.json"
    call_command("dumpdata", output=str(dump))
    content = json.dumps(json.loads(dump.read_text()), ensure_ascii=False)
    assert "S3_KEY" in content
    assert leaks(content) == leaks(dump.read_text()) == []
