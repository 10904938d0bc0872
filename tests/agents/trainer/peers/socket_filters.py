"""The mark of tests that attach socket filters."""

from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest

from agents.trainer.peers.bpf import filter_attach, filter_program


def _is_allowed() -> bool:
    with socket.socket() as tried:
        try:
            filter_attach(tried, filter_program([ip_network("127.0.0.1")]))
        except OSError:
            return False
    return True


needs_filters = pytest.mark.skipif(
    not _is_allowed(), reason="the kernel gives this user no socket filters"
)
