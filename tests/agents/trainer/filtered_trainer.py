"""A real trainer to which not even its own machine may speak unless its job names the address.

`python -m tests.agents.trainer.filtered_trainer --run-dir DIR ...`: after each look at the sockets
of its port it writes their filters to `filters.json` in DIR: [kind, whether it listens, number of
instructions] of each.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
from pathlib import Path

from agents.trainer.__main__ import main
from agents.trainer.peers import socket_filter
from agents.trainer.peers.socket_filter import PeerFilter, sockets_of

FILTERED_PROGRAM = (sys.executable, "-m", "tests.agents.trainer.filtered_trainer")
FILTERS_FILE = "filters.json"
SO_GET_FILTER = 26


def filters_watch(folder: Path) -> None:
    """Leave out what every machine may, and note each time what is attached."""
    apply = PeerFilter.apply

    def apply_and_note(which: PeerFilter) -> None:
        apply(which)
        found = [
            [
                each.type.name,
                each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN),
                len(bytes(each.getsockopt(socket.SOL_SOCKET, SO_GET_FILTER, 1024))),
            ]
            for each in sockets_of(which.port)
        ]
        partial = folder / f".{FILTERS_FILE}"
        partial.write_text(json.dumps(found))
        partial.replace(folder / FILTERS_FILE)

    socket_filter.own_addresses = set  # type: ignore[attr-defined]
    PeerFilter.apply = apply_and_note  # type: ignore[method-assign]


if __name__ == "__main__":
    faulthandler.enable()
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    filters_watch(Path(sys.argv[sys.argv.index("--run-dir") + 1]))
    sys.exit(main(sys.argv[1:]))
