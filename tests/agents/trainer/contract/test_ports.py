"""Ports stay with the trainer that they were declared for, from their choice to its server."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agents.trainer.contract import ports
from agents.trainer.contract.ports import HeldPort, PortHolder, beacon_socket, port_hold
from controlplane.core.protocol.wire import AcceleratorInfo, SlotAddress, TrainerOrders
from tests.agents.trainer.local_jobs import local_job, membership_of, training_spec
from tests.agents.trainer.patient_trainer import (
    BEFORE_ALL,
    BEFORE_TENSORFLOW,
    patient_program,
    wait_for,
)

TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


def steals(port: int, kind: int, *, shares: bool) -> bool:
    """Try to get a port as another server would; say whether that worked."""
    with socket.socket(socket.AF_INET, kind) as thief:
        if shares:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            thief.bind(("", port))
            if kind == TCP:
                thief.listen()
        except OSError:
            return False
    return True


def is_stolen(port: int) -> bool:
    """Try everything that another process could do to get a port."""
    ways = [(TCP, False), (TCP, True), (UDP, False)]
    return any(steals(port, kind, shares=shares) for kind, shares in ways)


class TestHolding:
    def test_nobody_gets_a_port_that_is_held(self) -> None:
        held = HeldPort.take("127.0.0.1:0")
        assert not is_stolen(held.number)
        with pytest.raises(OSError, match="in use"):
            HeldPort.take(f"127.0.0.1:{held.number}")
        held.close()
        assert is_stolen(held.number)

    @pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
    def test_a_server_listens_beside_it_once_it_is_shared(self, family: int) -> None:
        held = HeldPort.take("127.0.0.1:0")
        try:
            server = socket.socket(family, TCP)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            pytest.skip("this machine has no IPv6")
        with server:
            with pytest.raises(OSError, match="in use"):
                server.bind(("", held.number))
            held.share()
            server.bind(("", held.number))
            server.listen()
            held.hand_on()
            assert not steals(held.number, TCP, shares=True)
            socket.create_connection(("127.0.0.1", held.number), 5.0).close()
        held.close()

    def test_old_connections_of_an_earlier_server_are_not_in_the_way(self) -> None:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", 0))
            server.listen()
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted, _ = server.accept()
                accepted.close()  # the side that closes first waits out its time
                assert client.recv(1) == b""
        held = HeldPort.take(f"127.0.0.1:{port}")
        assert not is_stolen(port)
        held.close()

    def test_a_child_holds_it_on(self) -> None:
        holder = PortHolder(1)
        numbers = [os.dup(number) for number in holder.files(0)]
        port = holder.numbers[0]
        holder.release(0)
        assert holder.files(0) == ()
        inherited = HeldPort.inherit(numbers)
        assert inherited.number == port
        assert not any(os.get_inheritable(number) for number in inherited.files)
        assert not is_stolen(port)
        inherited.close()
        assert is_stolen(port)

    def test_a_number_that_is_taken_for_udp_is_not_chosen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passed_over = []

        def taken_twice(address: str) -> socket.socket | None:
            opened = beacon_socket(address)
            if len(passed_over) < 2 and opened is not None:
                passed_over.append(int(address.rpartition(":")[2]))
                opened.close()
                return None
            return opened

        monkeypatch.setattr(ports, "beacon_socket", taken_twice)
        holder = PortHolder(1)
        assert len(passed_over) == 2
        assert not is_stolen(holder.numbers[0])
        holder.close()

    def test_no_free_number_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ports, "beacon_socket", lambda _: None)
        with pytest.raises(OSError, match="100 ports in a row are taken for UDP"):
            PortHolder(1)

    def test_a_trainer_that_finds_its_port_taken_holds_none_yet(self) -> None:
        with socket.socket() as squatter:
            squatter.bind(("", 0))
            squatter.listen()
            address = f"127.0.0.1:{squatter.getsockname()[1]}"
            cluster_addresses = (SlotAddress(slot=0, address=address),)
            membership = membership_of({0: (0, 1, 2, 3, 4)}, cluster_addresses=cluster_addresses)
            accelerator = AcceleratorInfo(
                index=0, kind="cpu", name="emulated 0", memory_bytes=0, threads=1
            )
            orders = TrainerOrders(
                spec=training_spec(),
                slot=0,
                accelerator=accelerator,
                membership=membership,
                go=False,
                checkpoint_path=None,
            )
            assert port_hold(orders) is None
        held = port_hold(orders)
        assert held is not None
        assert not is_stolen(held.number)
        held.close()


@pytest.mark.parametrize(
    ("before", "inherits"),
    [
        pytest.param(BEFORE_ALL, True, marks=pytest.mark.nightly),
        (BEFORE_TENSORFLOW, True),
        pytest.param(BEFORE_TENSORFLOW, False, marks=pytest.mark.nightly),
    ],
)
def test_a_port_is_held_while_its_trainer_starts(
    tmp_path: Path, before: str, inherits: bool
) -> None:
    """Without the parent's sockets a trainer holds the port itself, as those of agents do."""
    with local_job(tmp_path, training_spec()) as job:
        gate = tmp_path / "gate"
        job.program = patient_program(before, gate)
        port = int(job.cluster_addresses[0].address.rpartition(":")[2])
        if not inherits:
            job.free_port(0)
        membership = job.plan(1, None)
        job.prepare(membership)
        wait_for(gate.with_suffix(".waiting"))
        assert not is_stolen(port)
        gate.touch()
        job.wait_ready(membership)
        assert not is_stolen(port)
        job.go(membership)
        job.wait_finished()
