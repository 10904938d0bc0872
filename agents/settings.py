"""Settings of an agent: command line first, environment second, defaults last."""

from __future__ import annotations

import argparse
import ipaddress
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from controlplane.core.log_format import LOG_FORMATS

ENVIRONMENT_PREFIX = "VIRTUALFLOW_"
Network = IPv4Network | IPv6Network

MEBIBYTE = 1024 * 1024
MIN_PORT, MAX_PORT = 1024, 65535
#: Several times the half second between two pulses of a healthy trainer.
LEAST_PULSE_LIMIT_S = 2.0
#: Below are the accounts of the system and of people; above, ids that no file may have.
MIN_JOB_UID, MAX_JOB_UID = 1000, 2**31 - 1
NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")

#: `-P` keeps the trainer's working directory, which holds user code, off the import path; `-s` the
#: packages in the user's home, where the code of an earlier job may have left some.
TRAINER_COMMAND = (sys.executable, "-P", "-s", "-m", "agents.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """All settings of one agent process.

    Attributes:
        server: base address of the control plane, without the API's path.
        insecure: allow a server beyond this machine without TLS.
        enrolment_token_file: file of the enrolment token, deleted once the node is enrolled.
        state_dir: the agent's own folder; one living agent per folder.
        host: address under which trainers on other nodes reach this node; empty: detected.
        gpus: "all", "none", or NVML indices and UUIDs, separated by commas.
        emulated: number of emulated accelerators, each `threads` CPU threads wide.
        kept_environment: names of further variables that trainers may see.
        peer_filter: trainers drop packets from machines outside their job, or do not start.
        keep_trainers: leave trainers running when the agent is stopped.
        grace_s: time between SIGTERM and SIGKILL.
        pulse_limit_s: longest silence of a running trainer before it is killed.
        boot_pulse_limit_s: the same for a trainer before its first pulse.
        exit_again_s: after which an acknowledged exit of a trainer still wanted is reported again.
        fork_servers: start trainers from processes that have TensorFlow imported.
        job_networks: networks that jobs may reach besides their peers, with `job_uids`. None: they
            may reach what the machine reaches.
        job_uids: users for jobs: the first is the agent's, for ending processes of the others.
            None: jobs run as the agent's own user (isolation `none`).
    """

    server: str
    node: str
    state_dir: Path
    enrolment_token: str = ""
    enrolment_token_file: Path | None = None
    insecure: bool = False
    host: str = ""
    first_port: int = 21000
    last_port: int = 21999
    gpus: str = "all"
    emulated: int = 0
    kind: str = "cpu"
    threads: int = 1
    keep_trainers: bool = False
    once: bool = False
    log_format: str = LOG_FORMATS[0]
    verbose: bool = False
    peer_filter: bool = True
    kept_environment: tuple[str, ...] = ()
    trainer_command: tuple[str, ...] = TRAINER_COMMAND
    grace_s: float = 10.0
    pulse_limit_s: float = 10.0
    boot_pulse_limit_s: float = 300.0
    exit_again_s: float = 30.0
    fork_servers: bool = True
    job_uids: range | None = None
    job_networks: tuple[Network, ...] | None = None
    long_poll_s: float = 25.0
    request_timeout_s: float = 15.0
    backoff_first_s: float = 0.25
    backoff_cap_s: float = 15.0
    refused_for_s: float = 60.0
    max_transfers: int = 2
    max_validations: int = 1
    kept_run_directories: int = 8
    cache_bytes: int = 4096 * MEBIBYTE
    log_beginning_bytes: int = 8 * MEBIBYTE
    log_slack_bytes: int = 8 * MEBIBYTE

    @property
    def isolation(self) -> str:
        """How jobs are kept from the agent and from each other: "uid" or "none"."""
        return "none" if self.job_uids is None else "uid"

    def __post_init__(self) -> None:
        """Check values that would otherwise fail later.

        Raises:
            ValueError: names the option and its valid values.
        """
        parts = urlsplit(self.server)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ValueError(
                f"--server must be an address like http://127.0.0.1:8000, got {self.server!r}"
            )
        if parts.scheme == "http" and not self.insecure and not _is_loopback(parts.hostname or ""):
            raise ValueError(
                f"--server {self.server} is not encrypted: whoever listens on the way can read the "
                "agent's token, code and models. Use https://, or give --insecure if the network "
                "is yours alone"
            )
        if not NODE_NAME.fullmatch(self.node):
            raise ValueError(
                "--node must be 1 to 63 lower-case letters, digits, dots or dashes, with a letter "
                f"or digit at both ends; got {self.node!r}"
            )
        if not MIN_PORT <= self.first_port <= self.last_port <= MAX_PORT:
            raise ValueError(
                f"--ports must be a range within {MIN_PORT}-{MAX_PORT}, "
                f"got {self.first_port}-{self.last_port}"
            )
        if self.emulated < 0:
            raise ValueError(f"--emulate must not be negative, got {self.emulated}")
        if self.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {self.threads}")
        if self.pulse_limit_s < LEAST_PULSE_LIMIT_S:
            raise ValueError(
                f"--pulse-limit must be at least {LEAST_PULSE_LIMIT_S:g} seconds (trainers give a "
                f"sign of life every half second), got {self.pulse_limit_s:g}"
            )


def settings_from(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentSettings:
    """Read the command line, falling back to `VIRTUALFLOW_<OPTION>` variables.

    Raises:
        ValueError: names the missing or wrong option.
        SystemExit: from argparse, for an unknown option or for --help.
    """
    try:
        given = vars(_parser(environment).parse_args(arguments))
    except argparse.ArgumentError as error:
        option = (error.argument_name or "").partition("/")[0]
        raise ValueError(f"{option} {error.message}") from None
    for name in ("server", "node", "state_dir"):
        if not given[name]:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is missing (or set {ENVIRONMENT_PREFIX}{name.upper()})")
    given["gpus"] = given["gpus"] or ("none" if given["emulated"] else "all")
    given["kept_environment"] = tuple(given["kept_environment"])
    given["first_port"], given["last_port"] = given.pop("ports")
    if given.pop("isolation") == "none":
        given["job_uids"] = None
    token_file = environment.get(f"{ENVIRONMENT_PREFIX}ENROLMENT_TOKEN_FILE", "")
    given["enrolment_token_file"] = path = Path(token_file) if token_file else None
    if path is not None and not given["enrolment_token"]:
        given["enrolment_token"] = _file_text(path)
    return AgentSettings(**given)


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Build a parser whose results are fields of `AgentSettings`, but for ports and isolation."""
    parser = argparse.ArgumentParser(
        prog="python -m agents",
        description="Runs this machine's trainers for a VirtualFlow control plane.",
        epilog=f"Options with a value can also be set as {ENVIRONMENT_PREFIX}<OPTION>.",
        exit_on_error=False,
        allow_abbrev=False,
    )

    def add(option: str, text: str, default: str = "", **more: Any) -> None:
        name = option.lstrip("-").replace("-", "_").upper()
        value = environment.get(ENVIRONMENT_PREFIX + name, default)
        parser.add_argument(option, help=text, default=value, metavar=name, **more)

    switch: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "type": _switch}
    add("--server", "address of the control plane", type=lambda text: text.rstrip("/"))
    add("--node", "name of this node")
    add("--state-dir", "folder of this agent alone", type=_folder)
    add("--insecure", "allow http:// beyond this machine (variable: 1 or 0)", "0", **switch)
    add("--enrolment-token", "one-time token, first start only")
    add("--host", "address that other nodes reach trainers under")
    ports = "21000-21999"
    add("--ports", "ports for trainers", ports, type=lambda text: _bounds(text, ports))
    add("--gpus", '"all", "none", or indices and UUIDs')
    add("--emulate", "number of emulated accelerators", "0", type=_whole, dest="emulated")
    add("--kind", "kind of the emulated accelerators", "cpu")
    add("--threads", "CPU threads of each of them", "1", type=_whole)
    add("--grace-s", "seconds from SIGTERM to SIGKILL", "10", type=_seconds)
    add("--pulse-limit", "seconds, then it is killed", "10", type=_seconds, dest="pulse_limit_s")
    text = "keep TensorFlow imported to start trainers fast (variable: 1 or 0)"
    add("--fork-servers", text, "1", **switch)
    text = "uid: each job runs as a user of its own (as root); none: as the agent's user"
    add("--isolation", text, "none", type=_one_of("uid", "none"))
    text = "user ids for jobs, free of accounts; agents on one machine need different ones"
    add("--job-uids", text, "200000-200999", type=_job_uids)
    text = (
        "with uid: what jobs may reach besides their peers, such as 10.0.0.0/8,2001:db8::/32; "
        "any: everything (default: nothing)"
    )
    add("--job-networks", text, type=_job_networks)
    add("--max-validations", "at the same time", "1", type=_whole)
    size: dict[str, Any] = {"type": lambda text: _whole(text) * MEBIBYTE, "dest": "cache_bytes"}
    add("--cache-mib", "bound of the download cache", "4096", **size)
    names = environment.get(f"{ENVIRONMENT_PREFIX}KEEP_ENVIRONMENT", "").replace(",", " ").split()
    parser.add_argument(
        "--keep-environment",
        action="append",
        default=names,
        dest="kept_environment",
        metavar="NAME",
        help="a variable that trainers may see (repeat for more)",
    )
    text = "trainers drop packets from outside their job, or do not start (variable: 1 or 0)"
    add("--peer-filter", text, "1", **switch)
    flag: dict[str, Any] = {"action": "store_true"}
    parser.add_argument("--keep-trainers", help="leave trainers running when stopped", **flag)
    parser.add_argument("--once", help="one round, then exit; trainers are kept", **flag)
    text = "text, or json: a JSON object a line"
    add("--log-format", text, LOG_FORMATS[0], type=_one_of(*LOG_FORMATS))
    parser.add_argument("--verbose", help="log every request and every order", **flag)
    return parser


def _file_text(path: Path) -> str:
    """Read a token from a file (for mounted secrets)."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""  # deleted after the enrolment
    except OSError as error:
        raise ValueError(f"{ENVIRONMENT_PREFIX}ENROLMENT_TOKEN_FILE: {error}") from error


def _folder(text: str) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _job_uids(text: str) -> range:
    first, last = _bounds(text, "200000-200999")
    if not MIN_JOB_UID <= first < last <= MAX_JOB_UID:
        raise ArgumentTypeError(
            f"must be two or more ids within {MIN_JOB_UID}-{MAX_JOB_UID}, got {text!r}"
        )
    return range(first, last + 1)


def _job_networks(text: str) -> tuple[Network, ...] | None:
    if text.strip() == "any":
        return None
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ArgumentTypeError(
            f"must be networks with commas between them, or any: {error}"
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bounds(text: str, example: str) -> tuple[int, int]:
    first, dash, last = (part.strip() for part in text.partition("-"))
    if not dash or not first.isdecimal() or not last.isdecimal():
        raise ArgumentTypeError(f"must look like {example}, got {text!r}")
    return int(first), int(last)


def _switch(text: str) -> bool:
    return _one_of("0", "1")(text) == "1"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ArgumentTypeError(f"must be {' or '.join(words)}, got {text!r}")
        return text

    return read


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number of seconds, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"must be above 0, got {text!r}")
    return value
