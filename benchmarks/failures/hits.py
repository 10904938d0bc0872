"""A job on a running stack, what can be done to its trainers, and how it takes that, by REST."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.failures.fates import Fates, Met
from tests.support.stack import Stack

CODE = (Path(__file__).parent / "fated_job.py").read_text()
BATCH = 16
DEADLINE_S = 150.0
SITE = ("web", "stream", "worker", "beat")


class FatedJob:
    """A job of `fated_job`; all of them with as many steps compute the same."""

    def __init__(
        self, stack: Stack, name: str, num_steps: int, settings: dict[str, Any], **fields: Any
    ) -> None:
        """Submit it.

        Args:
            settings: `pace_s`, seconds per step, and `slow_from`, the step from which it goes very
                slowly, so that it does not end before the last loss.
        """
        self.stack = stack
        self.name = name
        self.fates = Fates(stack.directory / f"fates-{name}")
        body = {
            "name": name,
            "code": CODE,
            "settings": {"fates": str(self.fates.folder), **settings},
            "global_batch_size": BATCH,
            "num_virtual_nodes": 8,
            "stop": {"kind": "steps", "limit": num_steps},
            "seed": 7,
            **fields,
        }
        self.id = stack.post("jobs/", body, expect=201)["id"]

    # ---- what there is ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Read the job.

        Raises:
            AssertionError: it has failed.
        """
        state: dict[str, Any] = self.stack.get(f"jobs/{self.id}/")
        if state["status"] in ("failed", "invalid"):
            raise AssertionError(f"{state['status_reason']}\n{state['error_traceback']}")
        return state

    def generations(self) -> list[dict[str, Any]]:
        """List its newest generations, newest first."""
        found = self.stack.get(f"jobs/{self.id}/generations/")["results"]
        return sorted(found, key=lambda row: -row["number"])

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """List events of some kinds, oldest first."""
        found = self.stack.get(f"jobs/{self.id}/events/", page_size=200)["results"]
        return [event for event in reversed(found) if event["kind"] in kinds]

    def epochs(self) -> list[tuple[int, int, dict[str, float]]]:
        """List what was reported of each epoch: its number, the steps until its end, its logs."""
        rows = self.stack.get(f"jobs/{self.id}/metrics/")["epochs"]
        return [(row["epoch"], row["step"], row["logs"]) for row in rows]

    def settled(self, least: int, *, revives: bool = True) -> dict[str, Any]:
        """Wait until it does steps on so many accelerators or more; give the generation.

        All of them have the job's state: steps go on before joiners have it, and a job that loses
        the others until then has to start again. Another resize may be under way meanwhile.
        """

        def active() -> dict[str, Any] | None:
            self.state()
            row = next((row for row in self.generations() if row["phase"] == "active"), None)
            if row is None or not row["first_step_at"] or row["num_members"] < least:
                return None
            return row if row["num_switched"] >= row["num_members"] else None

        found: dict[str, Any] = self._wait_for(f"{least} members", active, revives=revives)
        return found

    def slots(self, least: int) -> list[int]:
        """Wait until it does steps on so many or more; give its slots, the leader's first."""
        return [member["slot"] for member in self.settled(least)["members"]]

    # ---- what is done to it ----------------------------------------------------------------------

    def hit(self, slots: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to trainers; those that are gone already are none of them."""
        pids = self.stack.trainers_of(self.id)
        for slot in slots:
            if slot in pids:
                send(pids[slot], number)

    def lose(
        self, place: str, slot: int, number: signal.Signals = signal.SIGKILL
    ) -> dict[str, Any]:
        """Lose the trainer in `slot` when it comes to `place`; give the event of going on."""
        self.fates.set(place, slot, number)
        self.meets(place)
        return self.goes_on_without(slot)

    def meets(self, place: str) -> Met:
        """Wait until somebody has met its fate at `place`."""
        met: Met = self._wait_for(
            f"a fate {place}", lambda: self.fates.met(place), look_every_s=0.02
        )
        return met

    def goes_on_without(self, *slots: int, revives: bool = True) -> dict[str, Any]:
        """Wait for the event that says how it goes on without all of these; give its data."""

        def told() -> dict[str, Any] | None:
            for event in reversed(self.events("recovered", "resize_given_up")):
                if {*slots} <= {row["slot"] for row in event["data"]["lost"]}:
                    return dict(event["data"])
            return None

        found: dict[str, Any] = self._wait_for(f"the loss of {slots}", told, revives=revives)
        return found

    def finish(self) -> dict[str, Any]:
        """Let it train as fast as it can; give it as it is when it has finished."""
        self.fates.go()

        def finished() -> dict[str, Any] | None:
            state = self.state()
            return (
                state if (state["status"], state["num_accelerators"]) == ("finished", 0) else None
            )

        state: dict[str, Any] = self._wait_for("the end", finished)
        return state

    def _wait_for(self, what: str, condition: Callable[[], Any], **options: Any) -> Any:
        return self.stack.wait_for(f"{self.name}: {what}", condition, DEADLINE_S, **options)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def site_kill(stack: Stack) -> None:
    """Take the whole control plane away, but not what it keeps its data in."""
    pids = stack.supervisor.pids()
    for name in SITE:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pids[name], signal.SIGKILL)


def answers(stack: Stack) -> bool:
    """Say whether the control plane is there."""
    try:
        return stack.rest.get("nodes/").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def node_signal(
    stack: Stack, job: FatedJob, node: str, number: signal.Signals
) -> tuple[list[int], float]:
    """Send a signal to an agent and the job's trainers beside it; give these, and when."""
    pids = stack.trainers_of(job.id)
    slots = [slot for slot in pids if stack.node_of(job.id, slot) == node]
    at = time.time()
    send(stack.supervisor.pids()[node], number)
    for slot in slots:
        send(pids[slot], number)
    return slots, at


@dataclass(frozen=True)
class SilentNode:
    """A node that is as good as dead: see `node_silence`.

    Attributes:
        slots: the job's trainers on it.
        at: wall time before which all of it was heard.
    """

    job: FatedJob
    name: str
    slots: tuple[int, ...]
    at: float
    pids: tuple[int, ...]

    def bury(self) -> None:
        """Kill its processes; the node can come back then, with a new agent."""
        for pid in self.pids:
            send(pid, signal.SIGKILL)
        for slot in self.slots:
            self.job.fates.join(slot)
        _cut(self.job.stack, self.name).unlink()


def node_silence(job: FatedJob, node: str) -> SilentNode:
    """Silence a node as a power failure does.

    The kernel closes the connections of a process that is killed, and the other ends notice at
    once. Without power there is no kernel: nothing is closed, refused, answered or acknowledged. So
    the node's line to the control plane is cut, the kernel drops every packet that arrives for its
    trainers, connections that begin included, and all its processes are stopped at once, so that
    they send nothing either; they are killed when it is over. One thing differs from a power
    failure: what was sent before and not acknowledged yet is sent again.
    """
    stack = job.stack
    slots = tuple(s for s in stack.trainers_of(job.id) if stack.node_of(job.id, s) == node)
    pids = tuple(stack.pids_on(node))
    at = time.time()
    _cut(stack, node).touch()
    for slot in slots:
        job.fates.cut(slot)
    stack.wait_for(
        f"{node} to be cut off",
        lambda: all(job.fates.is_cut(slot) for slot in slots),
        DEADLINE_S,
        revives=False,
        look_every_s=0.005,
    )
    for pid in pids:
        send(pid, signal.SIGSTOP)
    return SilentNode(job, node, slots, at, pids)


def _cut(stack: Stack, node: str) -> Path:
    """Name the file that cuts a node's line to the control plane."""
    return stack.directory / f"cut-{node}"
