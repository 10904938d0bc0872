"""Pause of running jobs before the demo ends, and their resumption at its next start.

A paused job has its state in a checkpoint. Otherwise a job would restart from an older checkpoint,
or from its seed: with the same result, but repeating all steps since.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.demo.demo_jobs import rest_read

#: Seconds to wait; saving, uploading and exiting take one or two for the demo's jobs.
SAVING_DEADLINE_S = 25.0
_LOOK_EVERY_S = 0.2
_FILE = "set-aside.json"


def jobs_pause(directory: Path, rest: httpx.Client, is_hurried: Callable[[], bool]) -> int:
    """Pause all training jobs and wait until their state is saved; return their number.

    Stops waiting at the deadline, or when `is_hurried`: unsaved jobs restart from an older state.
    """
    paused: list[int] = []
    # Without an answer the site is down already; training restarts from the state saved before.
    with contextlib.suppress(httpx.HTTPError):
        query = {"status": [JobStatus.RUNNING.value, JobStatus.STARTING.value]}
        live = [job["id"] for job in rest_read(rest, "jobs/", query)["results"]]
        paused = [job for job in live if rest.post(f"jobs/{job}/pause/", json={}).is_success]
        (directory / _FILE).write_text(json.dumps(paused))
        deadline = time.monotonic() + SAVING_DEADLINE_S
        while not is_hurried() and time.monotonic() < deadline:
            if all(_is_at_rest(rest, job) for job in paused):
                break
            time.sleep(_LOOK_EVERY_S)
    return len(paused)


def jobs_resume(directory: Path, rest: httpx.Client) -> int:
    """Resume the jobs paused at the end of the last demo; return their number."""
    path = directory / _FILE
    if not path.exists():
        return 0
    jobs = json.loads(path.read_text())
    resumed = [job for job in jobs if rest.post(f"jobs/{job}/resume/", json={}).is_success]
    path.unlink()
    return len(resumed)


def _is_at_rest(rest: httpx.Client, job: int) -> bool:
    status = JobStatus(rest_read(rest, f"jobs/{job}/")["status"])
    return status == JobStatus.PAUSED or status in ENDED_JOB_STATUSES
