"""Login and its token, by the command line on a live site."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from virtualflow.cli.common import ExitCode
from virtualflow.cli.main import main
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE, credentials_path

from tests.client.conftest import Shell, Site
from tests.client.scripted_site import Answer, scripted_site
from tests.support.builders import job_make


def test_login_keeps_the_token_for_its_owner_alone(site: Site, shell: Shell) -> None:
    ended = shell("login", site.address, text=site.token(site.ada) + "\n")
    assert (ended.code, ended.out) == (0, f"Logged in at {site.address} as ada.\n")
    assert site.token(site.ada) not in ended.out + ended.err
    path = credentials_path()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    assert shell("ls").code == ExitCode.FINE
    path.chmod(0o640)
    ended = shell("ls")
    assert (ended.code, "chmod 600" in ended.err) == (ExitCode.USAGE, True)
    path.chmod(0o600)
    assert json.loads(shell("logout", "--json").out) == {"forgotten": True}
    ended = shell("ls")
    assert (ended.code, "virtualflow login" in ended.err) == (ExitCode.USAGE, True)


def test_the_environment_wins(site: Site, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("login", site.address, text=site.token(site.ada))
    job_make(site.ada)
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    job_make(site.admin)
    assert len(json.loads(shell("ls", "--json").out)) == 2


def test_a_stored_token_goes_to_its_own_site_alone(
    site: Site, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("login", site.address, text=site.token(site.ada))
    with scripted_site(Answer(200, {"results": []})) as other:
        monkeypatch.setenv(SERVER_VARIABLE, other.address)
        ended = shell("ls")
        assert (ended.code, other.asked) == (ExitCode.USAGE, [])
        assert "token: Run `virtualflow login`" in ended.err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"server": 7, "token": "x"}', "\x00" * 10])
def test_a_damaged_file_says_what_to_do(shell: Shell, content: str) -> None:
    path = credentials_path()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.chmod(0o600)
    ended = shell("ls")
    assert (ended.code, "virtualflow login" in ended.err) == (ExitCode.USAGE, True)


def test_sigterm_ends_a_watch_as_ctrl_c_does(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(*_: Any, **__: Any) -> Iterator[Any]:
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
        yield

    monkeypatch.setattr("virtualflow.Client.watch", watch)
    monkeypatch.setenv(SERVER_VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
    ended = shell("watch", 7)
    assert (ended.code, "job 7 goes on" in ended.err) == (ExitCode.INTERRUPTED, True)


def test_a_wrong_token_is_not_stored(site: Site, shell: Shell) -> None:
    ended = shell("login", site.address, text="vfp_invented")
    assert ended.code == ExitCode.REFUSED
    assert "account page" in ended.err
    assert "vfp_invented" not in ended.out + ended.err
    assert not credentials_path().exists()


@pytest.mark.parametrize("given", [None, b"\xff\xfev\x00f\x00"])
def test_input_that_holds_no_token_is_a_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: bytes | None
) -> None:
    closed_or_utf_16 = None if given is None else io.TextIOWrapper(io.BytesIO(given), "utf-8")
    monkeypatch.setattr(sys, "stdin", closed_or_utf_16)
    monkeypatch.setattr(sys, "argv", ["virtualflow", "login", "http://127.0.0.1:9"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, "account page" in capsys.readouterr().err) == (ExitCode.USAGE, True)


@pytest.mark.usefixtures("no_pauses")
def test_a_token_on_an_open_network_is_warned_of(shell: Shell) -> None:
    ended = shell("login", "http://127.1.1.1:9", text="vfp_x")
    assert "not encrypted" in ended.err


def test_no_place_for_the_token_is_a_wrong_use(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    ended = shell("logout")
    assert (ended.code, "credentials.json: Not a directory" in ended.err) == (ExitCode.USAGE, True)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user without a home
    ended = shell("logout")
    assert (ended.code, "HOME: Set HOME" in ended.err) == (ExitCode.USAGE, True)
