"""First views of two pages in a browser, and the server's time of every page, with 100,000 jobs.

A site runs with real web and stream servers, no agents, and jobs of 20 users, most of them ended,
each with a tag, three settings and two metrics, beside those of the tests' pages: running jobs with
histories, nodes, replays, a sweep of 500 jobs. Each address is asked for by an admin and another
user; lists of jobs by one with a twentieth of them, among them filters that match nothing, and deep
pages by REST.

Figures:

* overview_kb, overview_s: bytes over the wire of the overview, and the time until it has loaded and
  drawn its charts, in a browser without a cache; medians of fresh browser windows;
* timeline_kb, timeline_s: the same of the timeline of a week;
* slowest_page_ms, slowest_figures_ms: of all pages that an admin or another user can open, and of
  the requests for the figures of their charts, the median of its repetitions inside the server's
  process, database included;
* slowest_list_ms, slowest_rest_list_ms: the same of the list of jobs, for each filter and order.

    python -m benchmarks.pages [--jobs 100000] [--repeats 5] [--databases postgresql sqlite]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

from benchmarks.figures import figures_print
from jobs.demo.environment import demo_environment
from tests.browser.page_site import Site, running_site
from tests.support import servers

_GOAL_MS, _LIST_GOAL_MS = 100.0, 200.0
#: The jobs end with the present.
_YESTERDAY = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)).date()
#: Number of the job with a long history; see `benchmarks.site_past`.
LONG_JOB_ID = 15
#: Addresses of a kind that are listed, the slowest first.
_SHOWN = 12
_PAGES = (
    "/", "/jobs/", "/jobs/?status=live", "/jobs/?metric=val_accuracy&order=-metric",
    "/jobs/?setting=hidden_units=128&order=-duration", "/jobs/?tag=tag3&order=name", "/jobs/2/",
    "/jobs/1/", "/jobs/8/", f"/jobs/{LONG_JOB_ID}/", "/jobs/new/", "/jobs/new/?from=1",
    "/jobs/2/copy/", f"/jobs/compare/?job=1&job=2&job={LONG_JOB_ID}", "/sweeps/", "/sweeps/1/",
    "/sweeps/2/", "/nodes/", "/nodes/4/", "/timeline/", "/timeline/?tables=1", "/account/",
    "/account/notifications/", "/projects/", "/projects/1/", "/usage/", "/usage/?by=user",
    "/usage/?by=tag", "/queue/", "/queue/?page=2", "/what-if/", "/what-if/1/", "/audit/",
    "/audit/?actor=user:user7", "/audit/?object=job:9999/log", "/account/password/",
)  # fmt: skip
_FIGURES = (
    "/figures/", "/figures/?window=86400", "/figures/?window=604800", "/jobs/2/figures/",
    f"/jobs/{LONG_JOB_ID}/figures/", f"/jobs/compare/figures/?job=1&job=2&job={LONG_JOB_ID}",
    "/nodes/4/figures/", "/timeline/figures/", "/timeline/figures/?window=86400",
    "/sweeps/2/figures/", "/what-if/1/figures/",
)  # fmt: skip
_REST = (
    "/api/v1/jobs/", "/api/v1/jobs/?order=-priority", "/api/v1/jobs/?order=-duration&tag=tag3",
    "/api/v1/jobs/?metric=val_accuracy&order=-metric&setting=hidden_units=128",
    "/api/v1/jobs/?q=nowhere&order=name", "/api/v1/jobs/2/", f"/api/v1/jobs/{LONG_JOB_ID}/",
    f"/api/v1/jobs/{LONG_JOB_ID}/events/", f"/api/v1/jobs/{LONG_JOB_ID}/metrics/",
    f"/api/v1/jobs/{LONG_JOB_ID}/logs/", "/api/v1/cluster/", "/api/v1/nodes/", "/api/v1/usage/",
    "/api/v1/sweeps/2/", "/api/v1/audit/",
)  # fmt: skip
_LISTS: Sequence[dict[str, str]] = (
    {}, {"q": "digits"}, {"q": "nowhere"}, {"q": "#17"}, {"name": "digits"}, {"name": "nowhere"},
    {"owner": "user7"}, {"owner": "nobody"}, {"template": "tabular"}, {"template": "none"},
    {"status": "failed"}, {"status": "live"}, {"status": "ended"}, {"status": "paused"},
    {"tag": "tag3"}, {"tag": "rare"}, {"tag": "none"},
    {"metric": "val_accuracy"}, {"metric": "val_accuracy>0.99"}, {"metric": "val_accuracy>2"},
    {"setting": "hidden_units=128"}, {"setting": "number=77"}, {"setting": "hidden_units=1"},
    {"submitted_after": f"{_YESTERDAY}", "submitted_before": f"{_YESTERDAY}T01:00Z"},
    {"submitted_before": "2025-01-01"},
    {"order": "submitted"}, {"order": "name"}, {"order": "-name"}, {"order": "status"},
    {"order": "-status"}, {"order": "priority"}, {"order": "-priority"}, {"order": "-duration"},
    {"order": "duration"}, {"order": "-metric", "metric": "val_accuracy"},
    {"order": "metric", "metric": "val_loss"},
    {"order": "-priority", "status": "live", "owner": "user7"},
    {"order": "-metric", "metric": "val_accuracy", "tag": "tag3", "setting": "hidden_units=128"},
    {"order": "name", "status": "failed", "q": "nowhere"},
)  # fmt: skip
_FILL = """
from benchmarks.site_past import past_fill
past_fill({num_jobs}, {long_job_id})
"""
_MEASURE = """
import json
from benchmarks.request_costs import costs_of
print(json.dumps(costs_of({addresses}, {repeats}, {users})))
"""
_LOGIN = """
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.get(username="admin"))
print(settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value)
"""
#: A promise that ends when the charts of a page are drawn.
_DRAWN = """() => new Promise((resolve) => {
  const boxes = () => [...document.querySelectorAll("[data-figure]")];
  const look = () => boxes().every((box) => box.dataset.drawn)
    ? resolve(performance.now()) : requestAnimationFrame(look);
  look();
})"""
_BYTES = """() => [...performance.getEntriesByType("navigation"),
  ...performance.getEntriesByType("resource")].reduce((sum, one) => sum + one.transferSize, 0)"""


class Cost(NamedTuple):
    """Medians of `benchmarks.request_costs`."""

    ms: float
    site_ms: float
    database_ms: float
    num_queries: float

    @property
    def processor_ms(self) -> float:
        """Processor time of the site and the database."""
        return self.site_ms + self.database_ms


def main() -> None:
    """Measure on each database; print what is slow, and the figures of the slower database."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--databases", nargs="+", default=["postgresql", "sqlite"])
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for database in options.databases:
        with contextlib.ExitStack() as stack:
            settings = {}
            if database == "postgresql":
                settings["DATABASE_URL"] = stack.enter_context(servers.postgresql_running())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            site = stack.enter_context(running_site(_prepared(folder), **settings))
            _say(f"{database}: adding {options.jobs} jobs")
            site.run(_FILL.format(num_jobs=options.jobs, long_job_id=LONG_JOB_ID))
            for name, value in _measured(site, options.repeats).items():
                figures[f"{database}_{name}"] = value
    figures_print("pages", figures)


def _prepared(folder: Path) -> Path:
    """Compress the static files, as `manage.py prepare` does, for a site in a folder."""
    command = [sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity", "0"]
    environment = {**os.environ, **demo_environment(folder)}
    subprocess.run(command, env=environment, check=True, timeout=300)
    return folder


def _measured(site: Site, repeats: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for page, address in (("overview", "/"), ("timeline", "/timeline/?window=604800")):
        figures[f"{page}_kb"], figures[f"{page}_s"] = _first_view(site, address, repeats)
    lists = [urlencode(query) for query in _LISTS]
    for kind, addresses, user, goal_ms in (
        ("page", _PAGES, "ada", _GOAL_MS),
        ("figures", _FIGURES, "ada", _GOAL_MS),
        ("rest", _REST, "ada", _GOAL_MS),
        ("list", [f"/jobs/?{query}" for query in lists], "user7", _LIST_GOAL_MS),
        ("rest_list", [f"/api/v1/jobs/?{query}" for query in lists], "user7", _LIST_GOAL_MS),
    ):
        code = _MEASURE.format(addresses=addresses, repeats=repeats, users=("admin", user))
        found = [(label, Cost(*costs)) for label, costs in json.loads(site.run(code))]
        figures[f"slowest_{kind}_ms"] = round(max(cost.ms for _, cost in found), 1)
        figures[f"slowest_{kind}_processor_ms"] = round(
            max(cost.processor_ms for _, cost in found), 1
        )
        _say(f"{kind}: median {statistics.median(cost.ms for _, cost in found):.0f} ms;")
        _say("       clock = site + database, processor time; queries")
        for label, cost in sorted(found, key=lambda one: -one[1].processor_ms)[:_SHOWN]:
            note = " above the goal" if cost.processor_ms > goal_ms else ""
            _say(
                f"  {cost.ms:7.1f} ms  {cost.site_ms:6.1f} + {cost.database_ms:6.1f}"
                f"  {cost.num_queries:3.0f}  {label}{note}"
            )
    return figures


def _first_view(site: Site, address: str, repeats: int) -> tuple[float, float]:
    """Return kilobytes and seconds of a page in windows that have nothing in their cache."""
    kilobytes, seconds = [], []
    program = shutil.which("chromium") or shutil.which("google-chrome")
    name, value = site.run(_LOGIN).split()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(repeats):
            context = browser.new_context(base_url=site.address)
            context.add_cookies([{"name": name, "value": value, "url": site.address}])
            page = context.new_page()
            page.goto(address)
            seconds.append(page.evaluate(_DRAWN) / 1000)
            kilobytes.append(page.evaluate(_BYTES) / 1000)
            context.close()
        browser.close()
    _say(f"{address}: {sorted(round(one, 2) for one in seconds)} s")
    return round(statistics.median(kilobytes), 1), round(statistics.median(seconds), 2)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
