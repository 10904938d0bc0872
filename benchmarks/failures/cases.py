"""The losses that `benchmarks.failure` measures: each is done to a job that trains steadily."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.failures.hits import FatedJob, node_signal, node_silence, site_kill

#: Minutes without a control plane: longer than all leases, limits and waits of an agent.
AWAY_S = 150.0


@dataclass(frozen=True)
class Hit:
    """One loss.

    Attributes:
        slots: which trainers were lost.
        at: when, in wall time.
        clean: is called when the loss was measured.
    """

    slots: tuple[int, ...]
    at: float
    clean: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Case:
    """A kind of loss.

    Attributes:
        name: as in the table.
        hit: does it to a job that trains on the slots given, the leader's first.
        repeats: how often, in a full run.
        figure: which of the benchmark's figures it counts for, if any.
        without_site: the control plane has to come back first.
        lasts_s: for how long it trains on before the loss.
    """

    name: str
    hit: Callable[[FatedJob, Sequence[int]], Hit]
    repeats: int = 1
    figure: str = ""
    without_site: bool = False
    lasts_s: float = 0.0


def killed(place: str, *, leader: bool = False) -> Callable[[FatedJob, Sequence[int]], Hit]:
    """Kill the leader or a follower at a place of its steps."""

    def do(job: FatedJob, slots: Sequence[int]) -> Hit:
        job.fates.set(place, slots[0 if leader else -1])
        return _met(job, place)

    return do


def kill_joiner(place: str) -> Callable[[FatedJob, Sequence[int]], Hit]:
    """Kill a joiner while it joins; the follower whose place it takes was killed before."""

    def do(job: FatedJob, slots: Sequence[int]) -> Hit:
        job.fates.set_joiner(place, slots)
        job.hit(slots[-1:])
        return _met(job, place)

    return do


def kill_in_growth(place: str) -> Callable[[FatedJob, Sequence[int]], Hit]:
    """Kill a survivor of a loss while the lost one's successor comes in."""

    def do(job: FatedJob, slots: Sequence[int]) -> Hit:
        job.fates.set(place, slots[1])
        job.hit(slots[-1:])
        return _met(job, place)

    return do


def kill_in_recovery(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Kill a second one while the survivors of the first meet; the time runs from the first."""
    job.fates.set("recovering", slots[1])
    at = time.time()
    job.hit(slots[-1:])
    job.meets("recovering")
    return Hit((slots[1], slots[-1]), at)


def kill_two(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Kill the leader and a follower at once."""
    at = time.time()
    lost = (slots[0], slots[-1])
    job.hit(lost)
    return Hit(lost, at)


def hang(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Stop a trainer's process in the middle of a step."""
    job.fates.set("computing", slots[-1], signal.SIGSTOP)
    return _met(job, "computing")


def node_silent(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Silence the node that the leader is not on; see `node_silence`."""
    node = node_silence(job, _other_node(job, slots))
    return Hit(node.slots, node.at, node.bury)


def leaders_node_silent(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Silence the leader's node; what it has not reported yet is lost."""
    node = node_silence(job, job.stack.node_of(job.id, slots[0]))
    return Hit(node.slots, node.at, node.bury)


def node_killed(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Kill the agent and all trainers of the node that the leader is not on.

    Their kernel lives and closes their connections: the others hear of it at once.
    """
    lost, at = node_signal(job.stack, job, _other_node(job, slots), signal.SIGKILL)
    return Hit(tuple(lost), at)


def agent_cut_off(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Cut the line between the control plane and the agent that is not the leader's.

    Its trainers train on with the others until the lease is over: nothing stands still before.
    """
    node = _other_node(job, slots)
    lost = [slot for slot in slots if job.stack.node_of(job.id, slot) == node]
    cut = job.stack.directory / f"cut-{node}"
    at = time.time()
    cut.touch()
    job.goes_on_without(*lost)
    cut.unlink()
    return Hit(tuple(lost), at)


def trainer_cut_off(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Let no packet of its peers reach a follower; its agent is heard all the time."""
    at = time.time()
    job.fates.cut(slots[-1])
    return Hit((slots[-1],), at)


def site_away(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Kill the control plane, then a follower; the time runs from the follower's end."""
    site_kill(job.stack)
    at = time.time()
    job.hit(slots[-1:])
    return Hit((slots[-1],), at)


def site_away_for_long(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Kill the control plane, train on for minutes, then kill a follower and let it come back.

    What is reported meanwhile waits with the agents: every epoch has to be told in the end.
    """
    site_kill(job.stack)
    until = time.monotonic() + AWAY_S
    job.stack.wait_for(
        "minutes to go by", lambda: time.monotonic() > until, 2 * AWAY_S, revives=False
    )
    at = time.time()
    job.hit(slots[-1:])
    return Hit((slots[-1],), at)


def kill_all(job: FatedJob, slots: Sequence[int]) -> Hit:
    """Kill all trainers: nothing is left but the newest checkpoint."""
    at = time.time()
    job.hit(job.stack.trainers_of(job.id))
    return Hit(tuple(slots), at)


CASES = (
    Case("follower, computing", killed("computing"), 2, "kill_to_step_s"),
    Case("leader, computing", killed("computing", leader=True), 2, "kill_to_step_s"),
    Case("follower, reducing", killed("reducing"), figure="kill_to_step_s"),
    Case("leader, evaluating", killed("evaluating", leader=True), figure="kill_to_step_s"),
    Case("leader, checkpointing", killed("checkpointing", leader=True), figure="kill_to_step_s"),
    Case("joiner, before its state", kill_joiner("joining"), figure="kill_to_step_s"),
    Case("joiner, with its state", kill_joiner("joined"), figure="kill_to_step_s"),
    Case("survivor, rehearsing", kill_in_growth("rehearsing"), figure="kill_to_step_s"),
    Case("survivor, switching", kill_in_growth("switching"), figure="kill_to_step_s"),
    Case("second one, recovering", kill_in_recovery),
    Case("two at once", kill_two),
    Case("hang", hang, 2, "hang_to_step_s"),
    Case("trainer cut off", trainer_cut_off),
    Case("node silent", node_silent, 2, "node_loss_to_step_s"),
    Case("leader's node silent", leaders_node_silent, figure="node_loss_to_step_s"),
    Case("node's processes killed", node_killed),
    Case("agent cut off", agent_cut_off),
    Case("control plane away", site_away, without_site=True),
    Case("away for minutes", site_away_for_long, without_site=True, lasts_s=AWAY_S),
    Case("all: restart", kill_all, 2, "restart_to_step_s"),
)


def _met(job: FatedJob, place: str) -> Hit:
    met = job.meets(place)
    return Hit((met.slot,), met.at)


def _other_node(job: FatedJob, slots: Sequence[int]) -> str:
    """Name the node that the leader is not on; the job has to be on both."""
    nodes = [job.stack.node_of(job.id, slot) for slot in slots]
    return next(node for node in nodes if node != nodes[0])
