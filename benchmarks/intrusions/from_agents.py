"""Attacks by the holder of one node's stolen token."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import psutil

from agents.state_directory import boot_id_of
from benchmarks.intrusions.attempts import Attempt, Site, accepted
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.node_messages import HelloRequest
from controlplane.core.protocol.wire import AcceleratorInfo

NODE = "node-b"
MEBIBYTE = 2**20


def attempts(site: Site, waiting: int) -> Iterator[Attempt]:
    """Say hello with more than the node has, and ask for a job that it was not given."""
    folder = site.stack.directory / NODE
    token = json.loads((folder / "credentials.json").read_text())["reply"]["agent_token"]
    boot_id = boot_id_of(folder)
    command = psutil.Process(site.stack.supervisor.pids()[NODE]).cmdline()
    first_port, _, last_port = command[command.index("--ports") + 1].partition("-")
    node = next(row for row in site.stack.get("nodes/")["results"] if row["name"] == NODE)
    with httpx.Client(
        base_url=f"{site.stream_url}/api/v1/agent/",
        headers={"Authorization": f"Agent {token}"},
        timeout=30.0,
        trust_env=False,
    ) as agent:
        kind = node["accelerators"][0]["kind"]
        many = tuple(
            AcceleratorInfo(index=index, kind=kind, name="x", memory_bytes=MEBIBYTE, threads=1)
            for index in range(64)
        )
        hello = HelloRequest(
            host="127.0.0.1",
            first_port=int(first_port),
            last_port=int(last_port),
            boot_id=boot_id,
            accelerators=many,
        )
        changes: dict[str, dict[str, Any]] = {
            "C1 more accelerators": {},
            "H7 another host": {"accelerators": many[:2], "host": "169.254.169.254"},
            "H7 a name of its own": {"accelerators": many[:2], "host": "no-such-name.invalid"},
        }
        for name, change in changes.items():
            yield accepted(name, agent.post, "hello/", json=encode(replace(hello, **change)))
        for part in ("code", "checkpoint", "adopted", "source"):
            name = f"C1 fetches {part} of a job it was not given"
            yield accepted(name, agent.get, f"jobs/{waiting}/{part}/")
        yield accepted(
            "C1 stores a file of a job it was not given",
            agent.put,
            f"jobs/{waiting}/files/model.keras/",
            params={"slot": 0, "generation": 1},
            content=b"x",
        )
        report: dict[str, Any] = {
            "job_id": waiting,
            "slot": 0,
            "generation": 1,
            "sequence": 0,
            "at": time.time(),
        }
        report |= {"kind": "finished", "data": {"step": 1, "metrics": {}, "digest": "0" * 64}}
        batch = {"boot_id": boot_id, "sent_at": time.time(), "trainers": [], "reports": [report]}
        agent.post("reports/", json={**batch, "logs": [], "validations": []})
        status = site.stack.get(f"jobs/{waiting}/")["status"]
        yield Attempt("C1 ends a job it was not given", status in ("finished", "failed"))
