"""Jobs with users of their own reach the trainers of their job, and nothing else (finding H7)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import wait
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from agents.supervision import firewall
from agents.supervision.cgroups import Cgroups
from agents.supervision.firewall import Firewall, FirewallError
from agents.supervision.fork_servers import REPLY_LIMIT_S
from agents.supervision.isolation import Isolation
from agents.supervision.watchdog import STUCK_S
from tests.agents.builders import agent_settings
from tests.security.network_namespace import JOB, PORTS, UIDS

_LIMIT_S = 120
_PEERS = ["peer", "peer's beacon"]


def test_a_job_reaches_its_peers_alone() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a network namespace and set rules")
    if shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        if os.environ.get("TEST_SERVERS_REQUIRED") == "1":
            pytest.fail("nft is missing: install the package nftables")
        pytest.skip("nft is missing")
    command = ["unshare", "--net", sys.executable, "-m", "tests.security.network_namespace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    everything = found.pop("no rules")
    assert len(everything) == 6
    assert found == {
        "no peers": [],
        "a peer": _PEERS,
        "a job without rules of its own": [],
        "the agent": everything,
        "a peer, after a change for another job": _PEERS,
        "another peer": ["site over IPv6"],
        "a peer with GPUs": ["site"],
        "a network for all jobs": ["store of data"],
    }


def test_rules_that_are_not_set_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = frozenset({(ip_address("10.0.0.1"), 21_001)})
    wall = Firewall(UIDS, PORTS, [])
    monkeypatch.setattr(firewall.shutil, "which", lambda *_, **__: None)
    for _ in range(2):
        with pytest.raises(FirewallError, match="package nftables"):
            wall.follow(JOB, peers)

    def hang(*_: object, timeout: float, **__: object) -> None:
        assert timeout + 2 * REPLY_LIMIT_S < STUCK_S, "the watchdog kills the job before that"
        raise subprocess.TimeoutExpired("nft", timeout)

    with monkeypatch.context() as patched:
        patched.setattr(firewall.shutil, "which", lambda *_, **__: "/usr/sbin/nft")
        patched.setattr(firewall.subprocess, "run", hang)
        with pytest.raises(FirewallError, match="did not end within 3 s"):
            wall.follow(JOB, peers)
        assert wall.is_paused
        patched.setattr(firewall.subprocess, "run", None)  # not run again for a time
        with pytest.raises(FirewallError, match="tried again in some seconds"):
            wall.follow(JOB + 1, peers)
    later = time.monotonic() + firewall.PAUSE_S
    monkeypatch.setattr(firewall, "time", SimpleNamespace(monotonic=lambda: later))
    assert not wall.is_paused
    calls: list[str] = []
    monkeypatch.setattr(firewall, "_nft", lambda rules, *_: calls.append(rules))
    for _ in range(2):
        wall.follow(JOB, peers)
    assert len(calls) == 1
    wall.follow(JOB + 1, frozenset())
    wall.forget(JOB)
    wall.follow(JOB + 2, frozenset())
    assert ["10.0.0.1" in rules for rules in calls] == [True, True, False]
    wall.forget(JOB + 1)
    assert len(calls) == 3
    wall.forget(JOB + 2)
    assert calls[3].endswith("delete table inet virtualflow_200000\n")


def test_a_name_server_that_is_away_keeps_the_loop_waiting_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    asked: list[str] = []

    def slow(name: str, *_args: object, **_options: object) -> list[Any]:
        asked.append(name)
        answers.wait(10)
        return [(0, 0, 0, "", ("10.0.0.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(firewall, "LOOKUP_S", 0.001)
    wall = Firewall(UIDS, PORTS, [])
    for _ in range(3):
        with pytest.raises(FirewallError, match=r"node-7: .*not answered yet"):
            wall.callers_at(21_001, ["node-7"])
    assert asked == ["node-7"]
    answers.set()
    wait(wall._lookups.values())
    expected = frozenset({(21_001, ip_address("10.0.0.7"))})
    assert wall.callers_at(21_001, ["node-7"]) == expected
    answers.clear()
    assert wall.callers_at(21_001, ["node-7"]) == expected
    answers.set()


def test_names_are_looked_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    all_asked = threading.Barrier(3, timeout=5)

    def answer(name: str, *_args: object, **_options: object) -> list[Any]:
        all_asked.wait()
        return [(0, 0, 0, "", (f"10.0.0.{name[-1]}", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    wall = Firewall(UIDS, PORTS, [])
    found = wall.peers_at(["node-1:21001", "node-2:21001", "node-3:21002"], has_gpus=False)
    expected = [("10.0.0.1", 21_001), ("10.0.0.2", 21_001), ("10.0.0.3", 21_002)]
    assert found == {(ip_address(address), port) for address, port in expected}


def test_rules_do_not_grow_with_the_peers() -> None:
    """Thousands would take nft seconds, for which the agent's loop waits."""
    addresses = [ip_address(f"10.0.{number % 9}.{number % 251}") for number in range(256)]
    peers = frozenset((address, port) for address in addresses for port in (21_001, None))
    callers = frozenset((21_002, address) for address in addresses)
    rules = Firewall(UIDS, PORTS, [])._rules({JOB: (peers, callers)})
    assert len(rules.splitlines()) < 30


def test_a_firewall_that_fails_keeps_no_other_folder_from_being_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Mock(follow=Mock(side_effect=FirewallError("nft did not end")))
    monkeypatch.setattr(Firewall, "find", lambda _: wall)
    monkeypatch.setattr(Cgroups, "find", lambda: None)
    isolation = Isolation(agent_settings("http://127.0.0.1:9", tmp_path, job_uids=UIDS), 1)
    one, other, third = (tmp_path / name for name in "abc")
    isolation._users = {one: JOB, third: JOB}  # a job's user stays while it has another trainer
    isolation.leave(one)
    isolation.leave(other)
    isolation.step()
    assert isolation.leaving == [one]
    wall.follow.side_effect = None
    isolation.step()
    assert not isolation.leaving
