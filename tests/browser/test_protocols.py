"""Refusals of HTTP/2 and WebSockets by the servers of the demo."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.browser.page_site import Site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: The client's part of a connection's start in HTTP/2, with empty settings.
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
WEBSOCKET = (
    b"GET /stream/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def _answer(address: str, sent: bytes) -> bytes:
    parts = urlsplit(address)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=30) as connection:
        connection.sendall(sent)
        try:
            return connection.recv(200)
        except ConnectionResetError:  # closed with something unread
            return b""


@pytest.mark.parametrize("server", ["web", "stream"])
def test_other_protocols_are_refused(server: str, site: Site) -> None:
    address = site.address if server == "web" else site.stream_address
    assert _answer(address, HTTP_2) == b""
    status = int(_answer(address, WEBSOCKET).split()[1])
    assert 400 <= status < 500
