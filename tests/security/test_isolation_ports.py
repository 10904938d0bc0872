"""Ports of jobs on a node with isolation `uid`: which a job reaches, and which it may not take."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.supervision import bound_ports, firewall
from agents.supervision.firewall import Firewall
from agents.supervision.isolation import Isolation
from controlplane.core.protocol.wire import AcceleratorInfo, Membership, SlotAddress, TrainerOrders
from tests.agents.builders import agent_settings, isolation_make, membership, training_spec
from tests.agents.conftest import wait_until
from tests.support.present import present


def test_the_port_of_a_trainer_that_is_gone_is_closed_to_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port may be that of another job's trainer next."""
    monkeypatch.setattr(Firewall, "check", lambda _: None)
    rules: list[str] = []
    monkeypatch.setattr(firewall, "_nft", lambda text, *_: rules.append(text))
    isolation = isolation_make(tmp_path, 4, job_networks=())
    orders = orders_make(membership(1, 0, 1))
    for slot in (0, 1):
        (tmp_path / f"1-{slot}").mkdir()
        isolation.reach(tmp_path / f"1-{slot}", dataclasses.replace(orders, slot=slot))
        isolation.enter("job 1", tmp_path / f"1-{slot}")
    assert " . 21001" in rules[-1].partition("reject")[0]
    assert isolation.is_cleared(tmp_path / "1-1")
    isolation.reach(tmp_path / "1-0", orders)
    reached = rules[-1].partition("reject")[0]
    assert " . 21000" in reached
    assert " . 21001" not in reached
    wait_until(lambda: isolation.is_cleared(tmp_path / "1-0"))


@pytest.fixture
def ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Isolation]:
    """Isolation that looks for ports in each call, with a directory of job 1 and one of job 2."""
    monkeypatch.setattr(bound_ports, "ports_at_risk", lambda *_: set())
    monkeypatch.setattr(bound_ports, "LOOK_EVERY_S", 0.0)
    isolation = isolation_make(tmp_path, 4, first_port=1024, last_port=65535)
    for name in ("1-0", "2-0"):
        (tmp_path / name).mkdir()
        isolation.enter(name.partition("-")[0], tmp_path / name)
    yield isolation
    for name in ("1-0", "2-0"):
        wait_until(lambda name=name: isolation.is_cleared(tmp_path / name))


def orders_make(members: Membership) -> TrainerOrders:
    one = AcceleratorInfo(index=0, kind="cpu", name="one", memory_bytes=0, threads=1)
    spec = training_spec("0" * 64)
    return TrainerOrders(spec=spec, slot=0, accelerator=one, membership=members, go=True)


def orders_at(port: int) -> TrainerOrders:
    declared = SlotAddress(slot=0, address=f"127.0.0.1:{port}")
    return orders_make(dataclasses.replace(membership(1, 0), cluster_addresses=(declared,)))


def found(isolation: Isolation, run_dir: Path) -> str:
    """Return what is found once a port was seen often enough."""
    return [isolation.port_fault(run_dir) for _ in range(4)][-1]


def test_a_job_that_takes_ports_of_others_is_seen(ported: Isolation, tmp_path: Path) -> None:
    """A foreign port keeps trainers of other jobs from starting."""
    own, others, unknown = (tmp_path / name for name in ("1-0", "2-0", "3-0"))
    for family, kind, use in itertools.product(
        (socket.AF_INET, socket.AF_INET6),
        (socket.SOCK_STREAM, socket.SOCK_DGRAM),
        ("bound", "listening", "connected"),
    ):
        if (kind, use) == (socket.SOCK_STREAM, "bound") and not shows_bound_sockets():
            continue
        with taken_port(own.stat().st_uid, family, kind, use) as port:
            assert not ported.port_fault(own)  # its trainer may just have ended
            fault = f"it took port {port}, which is kept for other jobs"
            assert found(ported, own) == fault, (family, kind, use)
            assert not found(ported, others)
            assert not found(ported, unknown)
            ported.reach(own, orders_at(port))
            assert not found(ported, own)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_crowd_of_sockets_hides_no_port(
    kind: socket.SocketKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than some of them are looked at, and none is wrong by itself."""
    monkeypatch.setattr(bound_ports, "ports_at_risk", lambda *_: set())
    monkeypatch.setattr(bound_ports, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(bound_ports, "MOST_SOCKETS", 8)
    own, others = tmp_path / "1-0", tmp_path / "2-0"
    with contextlib.ExitStack() as crowd:
        port = 0
        sockets = [crowd.enter_context(socket.socket(socket.AF_INET, kind)) for _ in range(8)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(("127.0.0.1", port))
            port = one.getsockname()[1]
            if kind is socket.SOCK_STREAM:
                one.listen()
        isolation = isolation_make(tmp_path, 4, first_port=port, last_port=port)
        for run_dir in (own, others):
            run_dir.mkdir()
            isolation.enter(run_dir.name, run_dir)
        isolation.reach(own, orders_at(port))
        for one in sockets[:5]:
            os.fchown(one.fileno(), own.stat().st_uid, own.stat().st_uid)
        assert found(isolation, own) == "it holds too many sockets on its ports"
        assert not found(isolation, others)
        sockets.pop().close()
        assert not found(isolation, own)
    for run_dir in (own, others):
        wait_until(lambda run_dir=run_dir: isolation.is_cleared(run_dir))


@contextlib.contextmanager
def taken_port(
    uid: int, family: socket.AddressFamily, kind: socket.SocketKind, use: str
) -> Iterator[int]:
    """Have a port taken by a user."""
    host = "127.0.0.1" if family is socket.AF_INET else "::1"
    with (
        contextlib.closing(socket.socket(family, kind)) as taken,
        contextlib.closing(socket.socket(family, kind)) as peer,
    ):
        os.fchown(taken.fileno(), uid, uid)
        taken.bind((host, 0))
        peer.bind((host, 0))
        server = peer if use == "connected" else taken
        if kind is socket.SOCK_STREAM and use != "bound":
            server.listen()
        if use == "connected":
            taken.connect(peer.getsockname()[:2])
        yield taken.getsockname()[1]


def shows_bound_sockets() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 8)


def test_what_a_trainer_leaves_on_its_port_is_not_held_against_its_job(
    ported: Isolation, tmp_path: Path
) -> None:
    """Connections that wait for their peers outlive it, and others of the job go on."""
    uid = (tmp_path / "1-0").stat().st_uid
    (tmp_path / "1-1").mkdir()
    ported.enter("1", tmp_path / "1-1")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        os.fchown(server.fileno(), uid, uid)
        ported.reach(tmp_path / "1-1", orders_at(server.getsockname()[1]))
        with contextlib.closing(socket.create_connection(server.getsockname())):
            accepted, _ = server.accept()
            os.fchown(accepted.fileno(), uid, uid)
            assert not found(ported, tmp_path / "1-0")
            wait_until(lambda: ported.is_cleared(tmp_path / "1-1"))
            assert not ported.port_fault(tmp_path / "1-0")  # its socket is about to close
            server.close()
            accepted.close()
            assert not found(ported, tmp_path / "1-0")


def test_an_agent_without_isolation_spares_trainers_of_one_that_had_it(
    ported: Isolation, tmp_path: Path
) -> None:
    later = Isolation(
        agent_settings("http://127.0.0.1:9", tmp_path, first_port=1024, last_port=65535), 1
    )
    uid = later.adopt("1", tmp_path / "1-0")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        os.fchown(server.fileno(), present(uid), present(uid))
        later.reach(tmp_path / "1-0", orders_at(server.getsockname()[1]))
        assert not found(later, tmp_path / "1-0")
