"""Pages that are brought up to date in place: equal to what a reload would show."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from jobs.models import Generation, Job
from tests.frontend.world import World
from tests.support.rows import generation_make

ROOT = Path(__file__).resolve().parents[2]
_VOID = {"meta", "link", "img", "input", "br"}


class _StaticPart(HTMLParser):
    """Collects a page without the content of its live regions; attributes of the latter count."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._depth:
            # A region's own attributes are brought up to date with its content.
            is_live = ("data-live", None) in attrs
            self.parts.append(f"<{tag} live>" if is_live else f"<{tag} {attrs}>")
            self._depth = int(is_live)
        elif tag not in _VOID:
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        if self._depth and tag not in _VOID:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        if not self._depth and data.strip():
            self.parts.append(data.strip())


def _static_part(client: Client, address: str) -> list[str]:
    html = client.get(address).content.decode()
    parser = _StaticPart()
    parser.feed(re.sub(r'value="\w{64}"| data-now="[^"]*"', "", html))
    assert len(parser.parts) > 50
    return parser.parts


@pytest.mark.parametrize("ended", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELLED])
@pytest.mark.parametrize("name", ["running", "pending", "validating"])
def test_nothing_of_a_job_page_needs_a_reload_at_its_end(
    world: World, admin: Client, name: str, ended: JobStatus
) -> None:
    job = world.jobs[name]
    before = _static_part(admin, f"/jobs/{job.pk}/")
    Job.objects.filter(pk=job.pk).update(status=ended, ended_at=timezone.now())
    assert _static_part(admin, f"/jobs/{job.pk}/") == before


def test_accelerators_of_a_change_under_way(world: World, admin: Client) -> None:
    job = world.jobs["running"]

    def tile() -> str:
        page = admin.get(f"/jobs/{job.pk}/").content.decode()
        return " ".join(re.sub(r"<[^>]+>", " ", page.split("<dt>Accelerators</dt>")[1]).split())

    active = Generation.objects.get(job=job, phase=GenerationPhase.ACTIVE)
    assert tile().startswith(f"{active.num_members} wants")
    num_members = active.num_members + 1
    generation_make(job, active.number + 1, phase="preparing", num_members=num_members)
    assert tile().startswith(f"{active.num_members} going to {active.num_members + 1} wants")
    Generation.objects.filter(pk=active.pk).update(phase=GenerationPhase.CLOSED)
    assert tile().startswith(f"0 going to {active.num_members + 1} wants")


@pytest.mark.parametrize("page", ["/jobs/{}/", "/"])
def test_charts_are_tables_without_javascript(world: World, admin: Client, page: str) -> None:
    address = page.format(world.jobs["running"].pk)
    html = admin.get(address).content.decode()
    found = re.search(r'<noscript><p class="note">Charts are.*?<a href="(\?[^"]+)">', html)
    assert found is not None
    assert "Times are in UTC." in html
    tables = admin.get(address + found[1].replace("&amp;", "&")).content.decode()
    assert html.count("<details open>") == 0
    assert tables.count("<details open>") == tables.count("data-figure=")
    assert re.search(r'<td><time datetime="[^"]+" data-as="clock">[-\d]+ [:\d]+ UTC</time>', tables)
    assert '<th scope="col">Accelerators</th>' in tables or '<th scope="col">From</th>' in tables


def test_modules_are_asked_for_at_once_and_run_before_plotly(admin: Client) -> None:
    """A module that only app.js names would be asked for after app.js has arrived."""
    html = admin.get("/").content.decode()
    source = (ROOT / "frontend/static/frontend/app.js").read_text()
    modules = set(re.findall(r'^import .* from "\./(\w+\.js)";$', source, re.MULTILINE))
    preloaded = re.findall(r'<link rel="modulepreload" href="[^"]*/([^"/]+)">', html)
    assert len(modules) > 5
    assert sorted(preloaded) == sorted(modules)
    assert html.index("/app.js") < html.index("/plotly-basic.min.js")
