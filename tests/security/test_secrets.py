"""The value of a secret reaches the trainers of its job, and nothing else (M11)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from agents.supervision.fork_servers import ForkServers
from agents.supervision.isolation import JOB_USER_COMMAND
from agents.supervision.log_tail import LogTail
from agents.supervision.masking import STARS, Mask
from agents.supervision.processes import OwnedProcess
from agents.trainer.contract.fork_server import ForkRequest
from agents.trainer.contract.job_user import LATER_PREFIX, JobUser
from controlplane.core.protocol.wire import ReportKind, WantedState, decode, encode
from jobs.models import Allocation, Job, Secret, Validation
from jobs.sealing import UnsealError, seal, unseal
from jobs.selectors.desired_state.state import wanted_orders, wanted_state
from jobs.selectors.secrets import JOB_SECRETS_LIMIT_BYTES
from jobs.services.cluster.secrets import SECRETS_LIMIT, VALUE_LIMIT_BYTES, secret_store
from jobs.services.failures.unsendable import unsendable_end
from tests.agents.builders import (
    agent_settings,
    job_uids,
    run_directory,
    wanted_trainer,
    wanted_validation,
)
from tests.agents.conftest import Drive, trainers_below, wait_until
from tests.agents.control_plane import ControlPlane
from tests.jobs.test_authorisation import routes
from tests.jobs.world import World
from tests.security.secret_forms import secret_forms
from tests.support.builders import Clients, at, audit_acts, job_make, logged_in, submission_values
from tests.support.present import present
from tests.support.reachable import root_needed

pytestmark = pytest.mark.django_db

URL = "/api/v1/secrets/"
#: Lines, quotes and letters beyond ASCII: its encodings differ from it.
VALUE = 'k€y/"7+x%&\nsecond ¢line of it'
FORMS = secret_forms(VALUE)


def leaks(text: str) -> list[str]:
    """Name the forms of the value that a text contains."""
    return [name for name, form in FORMS.items() if form.rstrip("=") in text]


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


# --- the agent -------------------------------------------------------------------------------


def with_secret(plane: ControlPlane, **settings: Any) -> Any:
    secrets = {"S3_KEY": VALUE, "FIELD": "exit_code"}
    return dataclasses.replace(wanted_trainer(plane, **settings), secrets=secrets)


def files_with_the_value(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if leaks(path.read_bytes().decode(errors="replace"))]


def test_a_trainer_has_it_and_what_it_tells_is_masked(
    plane: ControlPlane, drive: Drive, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driven = drive()
    with caplog.at_level(0):
        plane.want(with_secret(plane, play="tell"))
        driven.until(lambda: plane.report(1, 0, ReportKind.FAILED))
        driven.until(lambda: plane.log(1, 0).endswith("told\n"))
    booted = plane.told(1, 0, ReportKind.PHASE)
    # The value was there: nothing else becomes stars.
    assert booted.data["environment"]["S3_KEY"] == STARS
    failed = plane.told(1, 0, ReportKind.FAILED)
    assert failed.data["message"].count(STARS) == len(FORMS)
    log = plane.log(1, 0)
    assert log.count("*" * len(VALUE.encode())) >= 1
    assert leaks(log + repr(plane.batches) + caplog.text) == []
    others = [path for path in files_with_the_value(state_dir) if path.parent.name != "1-0"]
    assert [path.name for path in others] == ["secrets.json"]
    assert (others[0].stat().st_mode & 0o077, others[0].parent.stat().st_mode & 0o077) == (0, 0)
    run_dir = state_dir / "trainers" / "1-0"
    assert leaks((run_dir / "orders.json").read_text()) == []
    plane.want()
    driven.until(lambda: not driven.agent.trainers)
    exited = plane.told(1, 0, ReportKind.EXITED)
    assert "exit_code" in exited.data  # the name of a field is no secret
    assert [path for path in files_with_the_value(state_dir) if path.parent != run_dir] == []


def test_a_later_agent_process_masks_as_well(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    plane.want(with_secret(plane, play="tell later"))
    driven.until(lambda: plane.report(1, 0, ReportKind.PHASE))
    driven.vanish()
    (driven.state.trainers / "1-0" / "outputs" / "go").touch()
    wait_until(lambda: "told" in (driven.state.trainers / "1-0" / "log.txt").read_text())
    plane.want()  # nobody tells the next agent the value
    later = drive()
    later.until(lambda: "told" in plane.log(1, 0))
    later.until(lambda: plane.report(1, 0, ReportKind.EXITED))
    assert leaks(plane.log(1, 0) + repr(plane.batches)) == []


def test_a_validation_has_it_and_its_result_is_masked(plane: ControlPlane, drive: Drive) -> None:
    wanted = wanted_validation(plane, play="tell")
    secrets = {"S3_KEY": VALUE, "FIELD": "validation_id", "FACT": "environment"}
    plane.want(validations=[dataclasses.replace(wanted, secrets=secrets)])
    driven = drive()
    driven.until(lambda: [batch for batch in plane.batches if batch.validations])
    (report,) = next(batch.validations for batch in plane.batches if batch.validations)
    assert report.message.count(STARS) == len(FORMS)
    assert report.facts["environment"]["S3_KEY"] == STARS
    assert leaks(repr(plane.batches)) == []


def written_memory(pid: int) -> Iterator[bytes]:
    """Read what a process has written: a copy of it is in all that it forks."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for place, rights, *_ in map(str.split, maps):
            if rights.startswith("rw"):
                start, end = (int(number, 16) for number in place.split("-"))
                memory.seek(start)
                yield memory.read(end - start)


@pytest.mark.timeout(180)
def test_a_forked_process_has_it_and_the_next_one_does_not(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(fork_servers=True)
    driven.until(lambda: list((state_dir / "fork_servers").glob("*/warm")))
    plane.want(with_secret(plane, play="finish"))
    driven.until(lambda: plane.report(1, 0, ReportKind.EXITED))
    (server,) = trainers_below(state_dir / "fork_servers")
    assert not [part for part in written_memory(server.pid) if b"line of it" in part]
    plane.want(wanted_trainer(plane, job_id=2, play="finish"))
    driven.until(lambda: plane.report(2, 0, ReportKind.EXITED))
    first, second = (plane.report(job, 0, ReportKind.PHASE) for job in (1, 2))
    assert first is not None
    assert second is not None
    assert first.data["environment"]["S3_KEY"] == STARS
    assert "S3_KEY" not in second.data["environment"]


def test_a_secret_changes_no_variable_of_the_trainer(plane: ControlPlane, drive: Drive) -> None:
    wanted = wanted_trainer(plane, play="finish")
    secrets = {"PYTHONHASHSEED": "12345678", "S3_KEY": VALUE}
    plane.want(dataclasses.replace(wanted, secrets=secrets))
    drive().until(lambda: plane.report(1, 0, ReportKind.EXITED))
    booted = plane.told(1, 0, ReportKind.PHASE)
    assert booted.data["environment"]["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("character", ["x", "é", "€", '"', "\n", "\\"])
def test_a_fork_request_with_all_secrets_fits_into_a_pipe(character: str) -> None:
    """An agent would wait for a fork server that does not read."""
    values = character * (JOB_SECRETS_LIMIT_BYTES // len(character.encode()))
    request = ForkRequest("--run-dir", "/" + "r" * 200, {"A": values, "B" * 64: ""}, "{}")
    line = request.line()
    assert len(line) < 64 * 1024
    assert ForkRequest(**json.loads(line)) == request


def test_no_secret_steers_the_process_that_still_has_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that LD_PRELOAD names would run as root, before the user is another one."""
    started: list[dict[str, str]] = []
    monkeypatch.setattr(OwnedProcess, "start", lambda *parts, **_: started.append(parts[1]))
    servers = ForkServers(agent_settings("http://127.0.0.1:1", tmp_path), (), tmp_path)
    user = JobUser(4_000_000, 4096, 4096)
    servers.start("--run-dir", tmp_path, {}, user, {"LD_PRELOAD": "/evil.so"})
    (environment,) = started
    assert "LD_PRELOAD" not in environment
    assert environment[f"{LATER_PREFIX}LD_PRELOAD"] == "/evil.so"


def test_a_process_that_became_its_user_has_the_secret() -> None:
    root_needed()
    user = JobUser(job_uids(1)[0], 4096, 4096)
    done = subprocess.run(
        [*JOB_USER_COMMAND, user.text(), "/bin/sh", "-c", 'id -u; printf %s "$S3_KEY"'],
        env={f"{LATER_PREFIX}S3_KEY": VALUE},
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    )
    assert done.stdout == f"{user.uid}\n{VALUE}"


# --- the mask --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_log_is_masked_however_it_is_written_and_cut(
    form: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.supervision.log_tail.CHUNK_BYTES", 16)
    directory = run_directory(tmp_path)
    tail = LogTail(directory, beginning_bytes=10_000, slack_bytes=10)
    tail.mask = Mask([VALUE])
    text = f"before {FORMS[form]} between {FORMS[form]}{FORMS[form]} kept".encode()
    written, sent = b"", ""
    for start in [*range(0, len(text), step), len(text)]:
        written = text[: start + step]
        directory.log.write_bytes(written)
        while chunk := tail.next_chunk(is_writer_gone=start == len(text)):
            assert chunk.offset == len(sent.encode())
            sent += chunk.text
            tail.accept(chunk)
    assert len(sent.encode()) == len(text)
    stars = "*" * len(FORMS[form].rstrip("=").encode())
    plain = FORMS[form].rstrip("=")
    rest = "=" * (len(FORMS[form]) - len(plain))
    assert sent == f"before {stars}{rest} between {stars}{rest}{stars}{rest} kept"


def test_the_beginning_of_a_secret_at_a_logs_end_is_masked(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    tail = LogTail(directory, beginning_bytes=10_000, slack_bytes=10)
    tail.mask = Mask(["correct horse battery"])
    directory.log.write_text("it is correct horse")
    waiting = present(tail.next_chunk(is_writer_gone=False))
    assert waiting.text == "it is "
    ended = present(tail.next_chunk(is_writer_gone=True))
    assert ended.text == "it is *************"


def test_the_longest_secret_is_masked_first() -> None:
    mask = Mask(["password", "password-of-ada"])
    assert mask.value({"a password-of-ada": ["password"]}) == {f"a {STARS}": [STARS]}
    assert mask.value([1, None, 2.5, True, "plain"]) == [1, None, 2.5, True, "plain"]
