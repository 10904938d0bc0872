"""Attacks on a running site: by a submitted job, by a visitor, and by who stole a node's token.

Two people and two nodes: `ada` trains a job on three accelerators and has one that waits, `mallory`
attacks. Every exploit of the security review is tried again; the names are its findings. An attempt
counts once for each thing that it is tried on.

    python -m benchmarks.intrusion [--isolation uid|none] [--starts 5]

With `uid`, the default, it needs root, and an interpreter that other users can reach (not below
/root). With `none` all that needs a user of its own succeeds, which shows that attempts can.

Afterwards small jobs are started on two sites side by side, one with isolation and one without, in
turn. `job_starts_slower` is the ratio of the medians from a job's placement to its first step.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.figures import figures_print
from benchmarks.intrusions import from_agents, from_jobs, from_visitors
from benchmarks.intrusions.attempts import Attempt, Site
from jobs.demo.stack import processes
from tests.support.stack import embedded_stack

#: Each agent of this machine has its own users.
FIRST_UID, UIDS_PER_NODE = 210_000, 100
#: Of an example, so that the victim is no load: half a second a step of 8 on three trainers.
PAUSE_S = 0.2


def main() -> int:
    """Attack, print what succeeded, and measure starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isolation", choices=("uid", "none"), default="uid")
    parser.add_argument("--starts", type=int, default=5, help="jobs started on each site")
    options = parser.parse_args()
    if options.starts < 1:
        parser.error(f"--starts must be at least 1, got {options.starts}")
    if options.isolation == "uid" and os.geteuid() != 0:
        parser.error("jobs get users of their own from root alone; or give --isolation none")
    with site_with(options.isolation) as site:
        made = list(attack(site))
    for attempt in made:
        print("SUCCEEDED" if attempt.succeeded else "failed   ", attempt.name, flush=True)
    succeeded = sum(attempt.succeeded for attempt in made)
    figures: dict[str, float] = {"attempted": len(made), "succeeded": succeeded}
    if options.isolation == "uid":
        figures["job_starts_slower"] = round(starts_slower(options.starts), 3)
    figures_print("intrusion", figures)
    return 1 if succeeded and options.isolation == "uid" else 0


def attack(site: Site) -> Iterator[Attempt]:
    """Try everything while the victim trains."""
    honest = {"mode": "honest", "pause_s": PAUSE_S}
    many_steps = {"kind": "steps", "limit": 100_000}
    victim = site.submit(
        "ada", name="victim", settings=honest, stop=many_steps,
        min_accelerators=3, max_accelerators=3,
    )  # fmt: skip
    site.wait_until(victim, ["running"])
    yield from from_jobs.attempts(site, victim)
    waiting = site.submit(
        "ada", name="waiting", settings=honest, min_accelerators=4, max_accelerators=4
    )
    site.wait_until(waiting, ["pending"])
    yield from from_agents.attempts(site, waiting)
    yield from from_visitors.attempts(site, victim, waiting)
    yield Attempt("the victim is disturbed", not site.goes_on(victim))


@contextmanager
def site_with(isolation: str) -> Iterator[Site]:
    """Run a site whose agents have that isolation."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="intrusion-")))
        folder.chmod(0o711)  # users of jobs pass through
        trust = "0" if isolation == "uid" else "1"

        def options_for(node: str) -> list[str]:
            first = FIRST_UID + UIDS_PER_NODE * processes.NODES.index(node)
            return ["--isolation", isolation, "--job-uids", f"{first}-{first + UIDS_PER_NODE - 1}"]

        stack = opened.enter_context(
            embedded_stack(
                folder, options_for=options_for, VIRTUALFLOW_USERS_TRUST_EACH_OTHER=trust
            )
        )
        yield Site.open(stack)


def starts_slower(count: int) -> float:
    """Return the ratio of the times that starts take with isolation and without."""
    with site_with("uid") as isolated, site_with("none") as shared:
        took: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(count):
            for number, site in enumerate((isolated, shared)):
                took[number].append(_start_s(site))
    return statistics.median(took[0]) / statistics.median(took[1])


def _start_s(site: Site) -> float:
    """Run a small job; return the seconds from its placement until all was ready to train."""
    job = site.submit("ada", name="start", settings={"mode": "honest"})
    site.wait_until(job, from_jobs.ENDED)
    first = site.stack.get(f"jobs/{job}/generations/")["results"][-1]
    asked, ready = (datetime.datetime.fromisoformat(first[k]) for k in ("requested_at", "ready_at"))
    return (ready - asked).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
