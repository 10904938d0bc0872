"""Settings of an agent: command line first, environment second, defaults last."""

from __future__ import annotations

import argparse
import ipaddress
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
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
    given = _parser(environment).parse_args(arguments)
    for name in ("server", "node", "state_dir"):
        if not getattr(given, name):
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is missing (or set {ENVIRONMENT_PREFIX}{name.upper()})")
    first_port, last_port = _port_range(given.ports)
    emulated = _whole_number("--emulate", given.emulate)
    return AgentSettings(
        server=given.server.rstrip("/"),
        node=given.node,
        state_dir=Path(given.state_dir).expanduser().absolute(),
        enrolment_token=_enrolment_token(given, environment),
        enrolment_token_file=_enrolment_token_file(environment),
        insecure=_switch("--insecure", given.insecure),
        host=given.host,
        first_port=first_port,
        last_port=last_port,
        gpus=given.gpus or ("none" if emulated else "all"),
        emulated=emulated,
        kind=given.kind,
        threads=_whole_number("--threads", given.threads),
        keep_trainers=given.keep_trainers,
        once=given.once,
        log_format=_choice("--log-format", given.log_format, LOG_FORMATS),
        verbose=given.verbose,
        peer_filter=_switch("--peer-filter", given.peer_filter),
        kept_environment=tuple(given.keep_environment),
        grace_s=_positive_number("--grace-s", given.grace_s),
        pulse_limit_s=_positive_number("--pulse-limit", given.pulse_limit),
        fork_servers=_switch("--fork-servers", given.fork_servers),
        job_uids=_job_uids(given.isolation, given.job_uids),
        job_networks=_job_networks(given.job_networks),
        max_validations=_whole_number("--max-validations", given.max_validations),
        cache_bytes=_whole_number("--cache-mib", given.cache_mib) * MEBIBYTE,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    def variable(name: str, default: str = "") -> str:
        return environment.get(ENVIRONMENT_PREFIX + name, default)

    parser = argparse.ArgumentParser(
        prog="python -m agents",
        description="Runs this machine's trainers for a VirtualFlow control plane.",
        epilog=f"Options with a value can also be set as {ENVIRONMENT_PREFIX}<OPTION>.",
    )
    add = parser.add_argument
    add("--server", default=variable("SERVER"), help="address of the control plane")
    add("--node", default=variable("NODE"), help="name of this node")
    add("--state-dir", default=variable("STATE_DIR"), help="folder of this agent alone")
    add(
        "--insecure",
        action=argparse.BooleanOptionalAction,
        default=variable("INSECURE", "0"),
        help="allow http:// beyond this machine (variable: 1 or 0)",
    )
    add("--enrolment-token", default="", help="one-time token, first start only")
    add("--host", default=variable("HOST"), help="address that other nodes reach trainers under")
    add("--ports", default=variable("PORTS", "21000-21999"), help="ports for trainers")
    add("--gpus", default=variable("GPUS"), help='"all", "none", or indices and UUIDs')
    add("--emulate", default=variable("EMULATE", "0"), help="number of emulated accelerators")
    add("--kind", default=variable("KIND", "cpu"), help="kind of the emulated accelerators")
    add("--threads", default=variable("THREADS", "1"), help="CPU threads of each of them")
    add("--grace-s", default=variable("GRACE_S", "10"), help="seconds from SIGTERM to SIGKILL")
    add("--pulse-limit", default=variable("PULSE_LIMIT", "10"), help="seconds, then it is killed")
    add(
        "--fork-servers",
        action=argparse.BooleanOptionalAction,
        default=variable("FORK_SERVERS", "1"),
        help="keep TensorFlow imported to start trainers fast (variable: 1 or 0)",
    )
    add(
        "--isolation",
        default=variable("ISOLATION", "none"),
        help="uid: each job runs as a user of its own (as root); none: as the agent's user",
    )
    add(
        "--job-uids",
        default=variable("JOB_UIDS", "200000-200999"),
        help="user ids for jobs, free of accounts; agents on one machine need different ones",
    )
    add(
        "--job-networks",
        default=variable("JOB_NETWORKS"),
        help="with uid: what jobs may reach besides their peers, such as 10.0.0.0/8,2001:db8::/32; "
        "any: everything (default: nothing)",
    )
    add("--max-validations", default=variable("MAX_VALIDATIONS", "1"), help="at the same time")
    add("--cache-mib", default=variable("CACHE_MIB", "4096"), help="bound of the download cache")
    add(
        "--keep-environment",
        action="append",
        default=variable("KEEP_ENVIRONMENT").replace(",", " ").split(),
        metavar="NAME",
        help="a variable that trainers may see (repeat for more)",
    )
    add(
        "--peer-filter",
        action=argparse.BooleanOptionalAction,
        default=variable("PEER_FILTER", "1"),
        help="trainers drop packets from outside their job, or do not start (variable: 1 or 0)",
    )
    add("--keep-trainers", action="store_true", help="leave trainers running when stopped")
    add("--once", action="store_true", help="one round, then exit; trainers are kept")
    add(
        "--log-format",
        default=variable("LOG_FORMAT", LOG_FORMATS[0]),
        help="text, or json: a JSON object a line",
    )
    add("--verbose", action="store_true", help="log every request and every order")
    return parser


def _enrolment_token(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Read the token from the option, the variable, or a file (for mounted secrets)."""
    direct = given.enrolment_token or environment.get(f"{ENVIRONMENT_PREFIX}ENROLMENT_TOKEN", "")
    path = _enrolment_token_file(environment)
    if direct or path is None:
        return str(direct)
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""  # deleted after the enrolment
    except OSError as error:
        raise ValueError(f"{ENVIRONMENT_PREFIX}ENROLMENT_TOKEN_FILE: {error}") from error


def _job_uids(isolation: str, text: str) -> range | None:
    if isolation not in ("uid", "none"):
        raise ValueError(f"--isolation must be uid or none, got {isolation!r}")
    first, dash, last = (part.strip() for part in text.partition("-"))
    if not dash or not first.isdecimal() or not last.isdecimal():
        raise ValueError(f"--job-uids must look like 200000-200999, got {text!r}")
    if not MIN_JOB_UID <= int(first) < int(last) <= MAX_JOB_UID:
        raise ValueError(
            f"--job-uids must be two or more ids within {MIN_JOB_UID}-{MAX_JOB_UID}, got {text!r}"
        )
    return range(int(first), int(last) + 1) if isolation == "uid" else None


def _job_networks(text: str) -> tuple[Network, ...] | None:
    if text.strip() == "any":
        return None
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ValueError(
            f"--job-networks must be networks with commas between them, or any: {error}"
        ) from None


def _enrolment_token_file(environment: Mapping[str, str]) -> Path | None:
    path = environment.get(f"{ENVIRONMENT_PREFIX}ENROLMENT_TOKEN_FILE", "")
    return Path(path) if path else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port_range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not dash or not first.strip().isdecimal() or not last.strip().isdecimal():
        raise ValueError(f"--ports must look like 21000-21999, got {text!r}")
    return int(first), int(last)


def _switch(option: str, given: bool | str) -> bool:
    """Parse a switch: the value set by argparse, or the text of a variable."""
    if given in (True, False, "0", "1"):
        return bool(int(given))
    raise ValueError(f"the variable of {option} must be 0 or 1, got {given!r}")


def _choice(option: str, given: str, choices: Sequence[str]) -> str:
    if given not in choices:
        raise ValueError(f"{option} must be {' or '.join(choices)}, got {given!r}")
    return given


def _whole_number(option: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{option} must be a whole number, got {text!r}")
    return int(text)


def _positive_number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{option} must be a number of seconds, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{option} must be above 0, got {text!r}")
    return value
