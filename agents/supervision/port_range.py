"""Compares the ports of trainers with the kernel's range for outgoing connections."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

SYSTEM_SETTINGS = Path("/proc/sys/net/ipv4")


def ports_at_risk(first_port: int, last_port: int, settings: Path = SYSTEM_SETTINGS) -> Set[int]:
    """Return the ports that the kernel gives to outgoing connections too; none if it is unknown."""
    try:
        low, high = map(int, (settings / "ip_local_port_range").read_text().split())
        reserved = _reserved((settings / "ip_local_reserved_ports").read_text())
    except (OSError, ValueError):
        return set()  # not Linux, or the settings cannot be read
    return {*range(max(first_port, low), min(last_port, high) + 1)} - reserved


def port_range_warning(
    first_port: int, last_port: int, settings: Path = SYSTEM_SETTINGS
) -> str | None:
    """Return a warning if some of these ports may be taken before a trainer starts, else None.

    A trainer holds its port from its start on. Between the choice of a port and that start a port
    is safe only if the kernel does not assign its number to outgoing connections.
    """
    at_risk = ports_at_risk(first_port, last_port, settings)
    if not at_risk:
        return None
    return (
        f"--ports {first_port}-{last_port}: the kernel gives {len(at_risk)} of these ports to "
        f"outgoing connections too (from {min(at_risk)} to {max(at_risk)}), so a trainer may find "
        "its port taken; choose ports outside, or set net.ipv4.ip_local_reserved_ports"
    )


def _reserved(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= {*range(int(first), int(last or first) + 1)}
    return found
