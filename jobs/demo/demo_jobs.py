"""Template jobs that arrive one after another in a demo, and jobs that rest between two demos.

A paused job has its state in a checkpoint. Otherwise a job would restart from an older checkpoint,
or from its seed: with the same result, but repeating all steps since.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus, NodeStatus

_LOOK_EVERY_S = 1.0
#: Seconds for which a job trains before the next one is submitted.
APART_S = 10.0
#: Code of the answer if a key is known, but of another submission.
_OTHER = "idempotency_key_reused"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A submission: a template, and its differing fields."""

    key: str
    template: str
    name: str
    priority: int
    num_epochs: int


ARRIVALS = (
    Arrival("demo-1", "digits_cnn", "Digits, patient", priority=100, num_epochs=400),
    Arrival("demo-2", "tabular", "Tabular, urgent", priority=300, num_epochs=500),
    Arrival("demo-3", "residual", "Residual, in between", priority=200, num_epochs=100),
)


def rest_read(rest: httpx.Client, path: str, query: Mapping[str, Any] | None = None) -> Any:
    """Read an answer of the site; raises HTTPError without one."""
    response = rest.get(path, params=query)
    response.raise_for_status()
    return response.json()


class Arrivals:
    """Submits the next job when the previous one has trained for a while, or has ended.

    The first job waits for all nodes: a job that starts on one of them may find that more
    accelerators, which share this machine's cores, make it no faster.

    No state is kept between demo runs: the idempotency key of a repeated submission returns the
    existing job.
    """

    def __init__(self, rest: httpx.Client, announce: Callable[[str], None], num_nodes: int) -> None:
        self._rest = rest
        self._announce = announce
        self._num_nodes = num_nodes
        self._num_submitted = 0
        self._latest_id: int | None = None
        self._trains_since: float | None = None
        self._look_at = 0.0

    @property
    def is_over(self) -> bool:
        """True after the last submission."""
        return self._num_submitted == len(ARRIVALS)

    def run_once(self, now: float) -> None:
        """Submit the next job if it is due; `now` is any monotonic clock, in seconds."""
        if self.is_over or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        try:
            if self._may_submit(now):
                self._submit(ARRIVALS[self._num_submitted])
        except httpx.HTTPError as error:
            # The site is restarting; the supervisor announces that.
            self._announce(f"The next job waits for the site: {error}")
            self._look_at = now + APART_S

    def _may_submit(self, now: float) -> bool:
        if self._latest_id is None:
            nodes = rest_read(self._rest, "nodes/")["results"]
            return sum(node["status"] == NodeStatus.ONLINE for node in nodes) >= self._num_nodes
        status = JobStatus(rest_read(self._rest, f"jobs/{self._latest_id}/")["status"])
        if status in ENDED_JOB_STATUSES:
            return True
        if status != JobStatus.RUNNING:
            return False
        if self._trains_since is None:
            self._trains_since = now
        return now - self._trains_since >= APART_S

    def _submit(self, arrival: Arrival) -> None:
        body: dict[str, Any] = {
            "template": arrival.template,
            "name": arrival.name,
            "priority": arrival.priority,
            "stop": {"kind": "epochs", "limit": arrival.num_epochs},
        }
        response = self._rest.post("jobs/", json=body, headers={"Idempotency-Key": arrival.key})
        if response.status_code == httpx.codes.CONFLICT and response.json()["code"] == _OTHER:
            self._num_submitted += 1  # by an earlier version, with another template or default
            return
        response.raise_for_status()
        job = response.json()
        self._num_submitted += 1
        self._latest_id, self._trains_since = job["id"], None
        self._announce(
            f"Job {job['id']} ({arrival.name}, priority {arrival.priority}) is {job['status']}"
        )


#: Seconds to wait; saving, uploading and exiting take one or two for the demo's jobs.
SAVING_DEADLINE_S = 25.0
_SAVED_EVERY_S = 0.2
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
            time.sleep(_SAVED_EVERY_S)
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
