"""Replies of a fork server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agents.trainer.contract.fork_server import ROOM_VARIABLE, RUN_DIR_VARIABLE

AGENT = """
import os, sys, time
from pathlib import Path
from agents.supervision.processes import subreaper_set
from agents.trainer.contract import fork_server

subreaper_set()
requests, replies = os.pipe(), os.pipe()
if not os.fork():
    os.close(requests[1])
    os.dup2(requests[0], 0)
    os.dup2(replies[1], 1)
    end = os._exit
    os._exit = lambda code: (time.sleep(0.2), end(code))  # the process in between, ends late
    fork_server.fork_server_run(Path(sys.argv[1]), lambda: None)
    time.sleep(60)
run_dir = Path(sys.argv[1])
os.write(requests[1], fork_server.ForkRequest("--run-dir", str(run_dir), {}, None).line())
pid = int(os.read(replies[0], 100))
assert pid, "nothing was forked"
os.kill(pid, 9)
print(os.waitpid(pid, 0)[1])
"""


def test_a_process_that_is_replied_is_the_agents_child(tmp_path: Path) -> None:
    """Otherwise the agent is not told how it ends, and takes it for dead at once."""
    (tmp_path / "code").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", AGENT, str(tmp_path)],
        env={**os.environ, RUN_DIR_VARIABLE: str(tmp_path), ROOM_VARIABLE: "x" * 200},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert done.stdout == "9\n", done.stderr
