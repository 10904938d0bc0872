"""A line between each agent and the control plane that can be cut.

While it is cut connections stay open and nothing arrives, as in a network that loses packets. What
was sent meanwhile arrives when the line is whole again.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

LOOK_EVERY_S = 0.05
BLOCK_BYTES = 64 * 1024


class Links:
    """The lines of all nodes. `cut-<node>` in `folder` cuts one, as long as it is there."""

    def __init__(self, folder: Path) -> None:
        """Open no line yet: see `address_for`."""
        self._folder = folder
        self._is_open = True
        self._listeners: list[socket.socket] = []

    def address_for(self, node: str, server: str) -> str:
        """Open a line from `node` to the control plane at `server`; give its near end."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        far = urlsplit(server)
        assert far.hostname is not None
        assert far.port is not None
        threading.Thread(
            target=self._accept, args=(listener, node, (far.hostname, far.port)), daemon=True
        ).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def close(self) -> None:
        """Close every line."""
        self._is_open = False
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: socket.socket, node: str, far: tuple[str, int]) -> None:
        listener.settimeout(LOOK_EVERY_S)
        while self._is_open:
            with suppress(OSError):
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near, node, far), daemon=True).start()

    def _carry(self, near: socket.socket, node: str, far: tuple[str, int]) -> None:
        """Carry one connection until either side closes it."""
        self._wait_until_whole(node)
        try:
            there = socket.create_connection(far, timeout=5.0)
        except OSError:
            near.close()
            return
        ends = (near, there), (there, near)
        threads = [
            threading.Thread(target=self._pump, args=(*pair, node), daemon=True) for pair in ends
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        near.close()
        there.close()

    def _pump(self, source: socket.socket, target: socket.socket, node: str) -> None:
        source.settimeout(None)
        try:
            while self._is_open and (block := source.recv(BLOCK_BYTES)):
                self._wait_until_whole(node)
                target.sendall(block)
        except OSError:
            pass
        self._wait_until_whole(node)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait_until_whole(self, node: str) -> None:
        while self._is_open and (self._folder / f"cut-{node}").exists():
            time.sleep(LOOK_EVERY_S)


@contextmanager
def open_links(folder: Path) -> Iterator[Links]:
    """Have lines that `cut-<node>` files in `folder` cut."""
    links = Links(folder)
    try:
        yield links
    finally:
        links.close()
