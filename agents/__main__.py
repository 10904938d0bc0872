"""`python -m agents`: runs this machine's trainers for a control plane until stopped."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from urllib.parse import urlsplit

from agents.loop import BUSY_TICK_S, Agent
from agents.session.client import ConnectionSettingsError
from agents.session.contact import EXIT_REFUSED
from agents.settings import AgentSettings, settings_from
from agents.state_directory import StateDirectory, StateDirectoryBusyError
from agents.supervision.devices import accelerators_found
from agents.supervision.isolation import isolation_check
from agents.supervision.port_range import port_range_warning
from agents.supervision.processes import orphans_reap, subreaper_set
from controlplane.core.log_format import JsonFormatter

log = logging.getLogger("agents")

EXIT_USAGE = 2
EXIT_BUSY = 3
#: Time limit for the last reports after the last process has gone.
FAREWELL_S = 3.0
#: Time limit for killed processes to disappear.
KILL_S = 5.0
ONCE_S = 120.0
FAILED_ROUND_S = 1.0


class StopSignal:
    """Records that SIGTERM or SIGINT was received; the loop looks at least every half second."""

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal, without a lock that the interrupted code may hold."""
        self.is_set = True


def main() -> int:
    """Read the settings, run, and return the exit status (see docs/node-agents.md)."""
    try:
        settings = settings_from(sys.argv[1:], os.environ)
    except ValueError as error:
        return _refused(error, EXIT_USAGE)
    handler = logging.StreamHandler()
    text = logging.Formatter(f"%(asctime)s %(levelname)s agent {settings.node}: %(message)s")
    is_json = settings.log_format == "json"
    handler.setFormatter(JsonFormatter(settings.node) if is_json else text)
    logging.basicConfig(
        level=logging.DEBUG if settings.verbose else logging.INFO, handlers=[handler]
    )
    # At INFO the HTTP libraries would log every long-poll.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return run(settings)


def run(settings: AgentSettings) -> int:
    """Run an agent in this process until it is stopped; returns its exit status."""
    try:
        accelerators = accelerators_found(settings)
        host = settings.host or local_address(settings.server)
        state = StateDirectory(settings.state_dir)
        subreaper_set()
        isolation_check(settings, state)
    except StateDirectoryBusyError as error:
        return _refused(error, EXIT_BUSY)
    except (ValueError, OSError) as error:
        return _refused(_with_fix(error, settings), EXIT_USAGE)
    try:
        names = ", ".join(f"{item.index}: {item.kind} ({item.name})" for item in accelerators)
        log.info("offering %s at %s", names, host)
        if settings.insecure:
            log.warning("%s is not encrypted: whoever listens can read tokens", settings.server)
        if warning := port_range_warning(settings.first_port, settings.last_port):
            log.warning("%s", warning)
        with _stop_signal() as stop:
            try:
                agent = Agent(settings, state, accelerators, host)
            except OSError as error:
                return _refused(_with_fix(error, settings), EXIT_USAGE)
            return _drive(agent, settings, stop)
    except ConnectionSettingsError as error:
        return _refused(error, EXIT_USAGE)
    finally:
        state.close()


def local_address(server: str) -> str:
    """Return this machine's local address on the route to `server`; no packet is sent.

    Raises:
        ValueError: there is no route, or the name has no address.
    """
    parts = urlsplit(server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(
            f"no way to {server} is found: {error}; correct --server or this machine's network, or "
            "give this machine's address with --host"
        ) from error


def _drive(agent: Agent, settings: AgentSettings, stop: StopSignal) -> int:
    """Run the loop until there is a reason to end, then end the trainers unless kept."""
    once_until = time.monotonic() + ONCE_S if settings.once else None
    while not stop.is_set and agent.fatal is None:
        more = _round(agent)
        if once_until and (agent.has_settled or time.monotonic() > once_until):
            break
        if not more:
            agent.wake.wait(agent.tick_s)
            agent.wake.clear()
    keep = (settings.keep_trainers or settings.once) and agent.fatal is None
    if agent.fatal is not None:
        _refused(agent.fatal.message, agent.fatal.exit_code)
    num_left = 0 if keep else _end_all(agent, settings)
    has_settled = agent.has_settled
    agent.close(keep_trainers=keep)
    if agent.fatal is not None:
        return agent.fatal.exit_code
    if settings.once and not has_settled:
        return _refused(f"nothing was settled within {ONCE_S:g} s", EXIT_REFUSED)
    return 1 if num_left else 0


def _end_all(agent: Agent, settings: AgentSettings) -> int:
    """End all trainers and report that; returns how many could not be ended."""
    started_at = time.monotonic()
    agent.end(started_at)
    _run_until(agent, lambda: not agent.running, started_at + settings.grace_s + KILL_S)
    if agent.fatal is None:
        _run_until(agent, lambda: agent.is_all_acknowledged, time.monotonic() + FAREWELL_S)
    left = ", ".join(str(path) for path in agent.running)
    log.info("stopped; %s", f"could not end {left}" if left else "no trainer is left")
    return len(agent.running)


def _run_until(agent: Agent, is_reached: Callable[[], bool], deadline: float) -> None:
    while not is_reached() and time.monotonic() < deadline:
        _round(agent)
        agent.wake.wait(BUSY_TICK_S)
        agent.wake.clear()


def _round(agent: Agent) -> bool:
    """Run one round; an OSError, such as a full disk, must not end the agent."""
    orphans_reap(agent.pids)
    try:
        return agent.run_once(time.monotonic())
    except OSError:
        log.exception("this round failed, trying again in %g s", FAILED_ROUND_S)
        time.sleep(FAILED_ROUND_S)
        return False


def _with_fix(error: Exception, settings: AgentSettings) -> str:
    """Return the text of an error, with the fix if the system's own text is all it has."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    return (
        f"{error}; see whether {settings.state_dir} can be read and written, and its disk is "
        "neither full nor broken, or give another --state-dir"
    )


@contextmanager
def _stop_signal() -> Iterator[StopSignal]:
    """Handle SIGTERM and SIGINT while the block runs."""
    stop = StopSignal()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _refused(reason: object, exit_code: int) -> int:
    """Write the reason why the agent ends to standard error; returns `exit_code`."""
    sys.stderr.write(f"agent: {reason}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
