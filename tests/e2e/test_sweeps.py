"""A sweep on real agents: its limit holds and can be raised, and its page has the best job."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.e2e.stack import ADMIN, PASSWORD, Stack
from tests.e2e.submitted import BATCH, CODE, FINISH_DEADLINE_S, PAUSE_S, START_DEADLINE_S

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(900)]

#: Only with the first rate a model learns anything in the few epochs.
RATES = [0.01, 1e-6, 1e-7, 1e-8]
_PACED = 'keras.optimizers.Adam(settings["rate"])'


@pytest.mark.nightly  # `make test` has its parts: submission, limit, page
def test_a_sweep_keeps_to_its_limit_and_shows_the_best(stack: Stack) -> None:
    go_file = stack.directory / "go-sweep"
    assert "keras.optimizers.Adam(0.01)" in CODE
    sweep = stack.post(
        "sweeps/",
        {
            "name": "rates",
            "code": CODE.replace("keras.optimizers.Adam(0.01)", _PACED),
            "settings": {"go_file": str(go_file), "pause_s": PAUSE_S},
            "global_batch_size": BATCH,
            "num_virtual_nodes": 8,
            "max_accelerators": 1,
            "stop": {"kind": "epochs", "limit": 6},
            "seed": 5,
            "sweep": {"space": {"rate": RATES}, "max_running": 1},
        },
        expect=201,
    )
    address = f"sweeps/{sweep['id']}/"
    assert (sweep["num_jobs"], sweep["max_running"]) == (len(RATES), 1)

    def jobs(**query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stack.get("jobs/", sweep=sweep["id"], **query)["results"]
        return found

    def holds(num_jobs: int) -> bool:
        """Return whether so many jobs train and the policy keeps the others for that reason."""
        found = jobs()
        holding = [job for job in found if job["num_accelerators"]]
        assert len(holding) <= num_jobs
        kept = f"at most {num_jobs} at once"
        waiting = [job for job in found if kept in job["policy_reason"]]
        running = [job for job in holding if job["status"] == "running"]
        return (len(running), len(waiting)) == (num_jobs, len(RATES) - num_jobs)

    deadline_s = len(RATES) * START_DEADLINE_S
    stack.wait_for("one job of the sweep", lambda: holds(1), deadline_s)
    assert stack.rest.patch(address, json={"max_running": 2}).status_code == httpx.codes.OK
    stack.wait_for("two jobs of the sweep", lambda: holds(2), deadline_s)

    def is_over() -> bool:
        found = jobs()
        assert sum(bool(job["num_accelerators"]) for job in found) <= 2
        return all(job["status"] == "finished" for job in found)

    go_file.touch()
    stack.wait_for("the end of the sweep", is_over, deadline_s + FINISH_DEADLINE_S)
    assert stack.get(address)["statuses"] == {"finished": len(RATES)}
    best = jobs(metric="loss", order="metric")[0]
    assert stack.get(f"jobs/{best['id']}/")["settings"]["rate"] == RATES[0]
    assert f'<a href="/jobs/{best["id"]}/">job #{best["id"]}</a>' in _page(stack, f"/{address}")


def _page(stack: Stack, path: str) -> str:
    """Log in as a person does, and read a page."""
    base = str(stack.rest.base_url).removesuffix("api/v1/")
    with httpx.Client(base_url=base, follow_redirects=True, timeout=60, trust_env=False) as browser:
        page = browser.get("/")
        fields = {"username": ADMIN, "password": PASSWORD}
        fields["csrfmiddlewaretoken"] = browser.cookies["virtualflow_csrf"]
        browser.post(page.url, data=fields)
        return browser.get(path).text
