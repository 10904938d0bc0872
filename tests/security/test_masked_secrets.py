"""The value of a secret on its node: stars stand for it in all that trainers tell (M11)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.supervision.fork_servers import ForkServers
from agents.supervision.isolation import JOB_USER_COMMAND
from agents.supervision.log_tail import LogTail
from agents.supervision.masking import STARS, Mask
from agents.supervision.processes import OwnedProcess
from agents.trainer.contract.fork_server import ForkRequest
from agents.trainer.contract.job_user import LATER_PREFIX, JobUser
from controlplane.core.protocol.wire import ReportKind
from jobs.selectors.secrets import JOB_SECRETS_LIMIT_BYTES
from tests.agents.builders import (
    agent_settings,
    job_uids,
    run_directory,
    wanted_trainer,
    wanted_validation,
)
from tests.agents.conftest import Drive, trainers_below, wait_until
from tests.agents.control_plane import ControlPlane
from tests.security.known_secret import FORMS, VALUE, leaks
from tests.support.present import present
from tests.support.reachable import root_needed


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
