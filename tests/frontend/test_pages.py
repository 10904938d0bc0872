"""All pages: landmarks, refusals, names as text; the account and the queue."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from jobs.models import ClusterSetting, Job, Project, ProjectMembership, UserLimits
from jobs.models.jobs import LIVE_JOB_STATUSES
from tests.frontend.page_text import page_text
from tests.frontend.world import SCRIPT_NAME, World

#: Tables without a name of their own, which screen readers list by name.
NAMELESS_TABLE = re.compile(r"<table(?![^>]* aria-label)[^>]*>(?!\s*<caption)")
TEMPLATES = Path(__file__).parent.parent.parent / "frontend/templates"

PAGES = ["/", "/jobs/", "/jobs/new/", "/nodes/", "/account/"]


def test_script_in_names_stays_text(world: World, ada: Client) -> None:
    for address in ("/", "/jobs/", f"/jobs/{world.jobs['script'].pk}/", "/nodes/"):
        html = ada.get(address).content.decode()
        assert "<script>window" not in html
        assert escape(SCRIPT_NAME) in html


def test_a_refusal_and_a_wrong_address_lead_on(world: World, ben: Client, client: Client) -> None:
    job = world.jobs["running"]
    ProjectMembership.objects.create(
        project=Project.objects.get(jobs=job), user=world.ben, role="viewer", since=timezone.now()
    )
    refused, missing = ben.post(f"/jobs/{job.pk}/pause/"), ben.get("/nowhere/")
    assert (refused.status_code, missing.status_code) == (403, 404)
    assert "You may see this job, not change it." in page_text(refused)
    for response in (refused, missing):
        html = response.content.decode()
        assert html.count("<h1>") == 1
        assert 'href="/">Overview</a>' in html
        assert 'href="/jobs/">All jobs</a>' in html
    assert 'href="/login/">Log in</a>' in client.get("/nowhere/").content.decode()


def test_people_see_their_own_limits_and_use(world: World, ada: Client) -> None:
    UserLimits.objects.create(
        user=world.ada, share_factor=2.5, live_jobs_limit=77, storage_limit_bytes=5 * 10**9
    )
    text = page_text(ada.get("/account/"))
    num_live = Job.objects.filter(owner=world.ada, status__in=LIVE_JOB_STATUSES).count()
    assert f"Live jobs {num_live} of 77" in text
    assert "of 5.0 GB Highest priority 100 normal at most Share factor 2.5" in text


def test_the_queue_page_tells_how_shares_are_made(world: World, admin: Client) -> None:
    for policy, is_told in (("weighted_fair", True), ("fifo", False)):
        ClusterSetting.objects.update_or_create(id=1, defaults={"policy": policy})
        assert ("Shares go to users first" in page_text(admin.get("/queue/"))) == is_told


def test_previews_take_the_focus() -> None:
    preview = re.compile(r'<h2 id="(?:preview|changes)-title"([^>]*)>')
    found = [
        one.split()
        for path in TEMPLATES.rglob("*.html")
        for one in preview.findall(path.read_text())
    ]
    assert found == [['tabindex="-1"', "autofocus"]] * 6


@pytest.mark.parametrize("address", PAGES)
def test_pages_have_landmarks_and_one_heading(address: str, ada: Client) -> None:
    html = ada.get(address).content.decode()
    assert html.count("<h1") == 1
    assert html.count("<main") == 1
    assert 'href="#main"' in html
    assert '<html lang="en" ' in html
    assert " style=" not in html
    assert "onclick" not in html


def test_every_table_has_a_name() -> None:
    pages = [*TEMPLATES.rglob("*.html")]
    assert any("<table" in page.read_text() for page in pages)
    assert [page.name for page in pages if NAMELESS_TABLE.search(page.read_text())] == []
