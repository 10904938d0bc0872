"""Attacks by a submitted job, on its node and by what it reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil

from benchmarks.intrusions.attempts import Attempt, Site, broken

#: As in `hostile_job`, which is not imported: it is code of a job.
MARK = "COULD "
ENDED = ("finished", "failed", "invalid", "cancelled")
_LOG_LIMIT_S = 60.0
_REAP_LIMIT_S = 20.0


def attempts(site: Site, victim: int) -> Iterator[Attempt]:
    """Submit hostile jobs beside the victim's, which trains on both nodes."""
    ports = [httpx.URL(url).port for url in (site.url, site.stream_url)]
    settings: dict[str, object] = {"stack": str(site.stack.directory), "ports": ports}
    yield from _probes(site, settings)
    yield from _left_behind(site, settings, victim)
    for mode, name in (
        ("facts", "H1 stops the scheduler by a validation"),
        ("reports", "H2 holds up reports of others"),
        ("files", "M2 holds up the agent by files"),
    ):
        job = site.submit("mallory", name=mode, settings={**settings, "mode": mode})
        site.wait_until(job, (*ENDED, "running"))
        yield Attempt(name, not site.goes_on(victim))
        yield broken(f"{name}: readiness", httpx.get, f"{site.url}/readyz", trust_env=False)
        yield from _pages(site, mode)
        if mode == "files":
            log = site.clients["mallory"].get(f"jobs/{job}/logs/", params={"download": True})
            tokens = [token for token in agent_tokens(site) if token in log.text]
            yield Attempt("M2 ships the agent's token as a log", bool(tokens))
        site.clients["mallory"].post(f"jobs/{job}/cancel/", json={"reason": "done"})
        site.wait_until(job, ENDED)


def agent_tokens(site: Site) -> list[str]:
    """Read the tokens of all agents, as root may."""
    paths = site.stack.directory.glob("node-*/credentials.json")
    return [str(json.loads(path.read_text())["reply"]["agent_token"]) for path in paths]


def _probes(site: Site, settings: dict[str, object]) -> Iterator[Attempt]:
    job = site.submit("mallory", name="probe", settings={**settings, "mode": "probe"})
    site.wait_until(job, ENDED)

    def line() -> str | None:
        log = site.clients["mallory"].get(f"jobs/{job}/logs/", params={"download": True}).text
        return next((row for row in log.splitlines() if row.startswith(MARK)), None)

    found = site.stack.wait_for("the log of the hostile job", line, _LOG_LIMIT_S)
    for name, could in json.loads(found.removeprefix(MARK)).items():
        yield Attempt(name, bool(could))


def _left_behind(site: Site, settings: dict[str, object], victim: int) -> Iterator[Attempt]:
    job = site.submit("mallory", name="linger", settings={**settings, "mode": "linger"})
    site.wait_until(job, ENDED)
    # The site knows of the end before the agent has seen the trainer exit and ended the rest.
    with suppress(AssertionError):
        site.stack.wait_for("no process of the job", lambda: not _lingering(), _REAP_LIMIT_S)
    left = _lingering()
    yield Attempt("low: outlives its job", bool(left))
    for process in left:
        process.kill()
    yield Attempt("low: keeps the victim's accelerators", not site.goes_on(victim))


def _lingering() -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _lingers(process)]


def _lingers(process: psutil.Process) -> bool:
    try:
        return "lingering" in process.cmdline()
    except psutil.Error:
        return False


def _pages(site: Site, mode: str) -> Iterator[Attempt]:
    for path in ("cluster/", "jobs/", "nodes/"):
        yield broken(f"M3 breaks {path} for others ({mode})", site.clients["ada"].get, path)
