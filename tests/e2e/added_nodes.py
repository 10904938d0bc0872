"""Nodes that join a running stack, each with accelerators of a kind of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.stack import Stack

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 150.0
#: Ports of an added node.
PORTS = 40


@contextmanager
def added_node(stack: Stack, kind: str, num_accelerators: int, ports: range) -> Iterator[None]:
    """Add the node `node-<kind>` with accelerators of a kind of its own."""
    node = f"node-{kind}"
    token = stack.post("enrolment-tokens/", {}, expect=201)["token"]
    server = str(stack.rest.base_url).removesuffix("api/v1/").rstrip("/")
    command = [
        sys.executable, "-m", "agents", "--server", server, "--node", node,
        "--state-dir", str(stack.directory / node), "--host", "127.0.0.1",
        "--ports", f"{ports.start}-{ports.stop - 1}", "--gpus", "none",
        "--emulate", str(num_accelerators), "--kind", kind,
    ]  # fmt: skip
    environment = {**os.environ, "VIRTUALFLOW_ENROLMENT_TOKEN": token}
    with (stack.directory / "logs" / f"{node}.log").open("wb") as log:
        agent = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def known() -> list[int]:
        assert agent.poll() is None, (stack.directory / "logs" / f"{node}.log").read_text()
        return [row["id"] for row in stack.get("nodes/")["results"] if row["name"] == node]

    try:
        (number,) = stack.wait_for(f"{node} to enrol", known, START_DEADLINE_S)
        try:
            yield
        finally:
            stack.rest.request("DELETE", f"nodes/{number}/", json={"reason": "over"})
    finally:
        agent.terminate()
        agent.wait(30.0)
