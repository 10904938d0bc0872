"""The warning about ports that the kernel gives to outgoing connections."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agents.supervision import bound_ports
from agents.supervision.bound_ports import BoundPorts
from agents.supervision.port_range import port_range_warning


@pytest.mark.parametrize(
    ("first", "last", "reserved", "num_at_risk"),
    [
        (21000, 21999, "", 0),
        (32000, 32767, "", 0),
        (61000, 61999, "", 0),
        (32000, 32768, "", 1),
        (60999, 62000, "", 1),
        (40000, 40009, "", 10),
        (40000, 40009, "8080,40001-40003,40009", 6),
        (40000, 40009, "40000-40009", 0),
    ],
)
def test_ports_at_risk_are_counted(
    tmp_path: Path, first: int, last: int, reserved: str, num_at_risk: int
) -> None:
    (tmp_path / "ip_local_port_range").write_text("32768\t60999\n")
    (tmp_path / "ip_local_reserved_ports").write_text(f"{reserved}\n")
    warning = port_range_warning(first, last, tmp_path)
    if not num_at_risk:
        assert warning is None
    else:
        assert warning is not None
        assert f"--ports {first}-{last}: the kernel gives {num_at_risk} of these ports" in warning
        assert "net.ipv4.ip_local_reserved_ports" in warning


def test_a_system_that_does_not_tell_is_not_warned_about(tmp_path: Path) -> None:
    assert port_range_warning(40000, 40009, tmp_path) is None
    (tmp_path / "ip_local_port_range").write_text("nonsense\n")
    assert port_range_warning(40000, 40009, tmp_path) is None


def test_of_ports_at_risk_nobody_is_said_to_hold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may have chosen them; the others of the range still count."""
    monkeypatch.setattr(bound_ports, "LOOK_EVERY_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as given,
        socket.create_server(("127.0.0.1", 0)) as chosen,
    ):
        at_risk, taken = given.getsockname()[1], chosen.getsockname()[1]
        monkeypatch.setattr(bound_ports, "ports_at_risk", lambda *_: {at_risk})
        ports = BoundPorts(1024, 65535)
        found = [ports.strays(os.geteuid(), set()) & {at_risk, taken} for _ in range(3)]
    assert found == [set(), set(), {taken}]
