"""Pages with 10,000 jobs, on a telephone and on a desk: all fits, nothing is painted over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.page_site import Site, running_site
from tests.browser.visitor import AUDIT, OVERLAPS, Visitor, visit

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

NUM_JOBS = 10_000
#: Code for `Site.run`: jobs with a past, all of one person, and the newest of them in the queue.
_FILL = f"""
from benchmarks.site_past import past_fill
from django.contrib.auth.models import User
from jobs.models import Job
past_fill({NUM_JOBS}, 15)
waiting = Job.objects.order_by("-pk").values_list("pk", flat=True)[:300]
Job.objects.filter(pk__in=list(waiting)).update(
    status="pending", ended_at=None, policy_reason="Waits for 4 accelerators."
)
Job.objects.filter(owner__username__startswith="user").update(
    owner=User.objects.get(username="ada")
)
print(Job.objects.filter(owner__username="ada").count())
"""
LOOKS = [(390, 844, "light"), (1440, 900, "dark")]
PAGES = [
    "/", "/?window=604800", "/jobs/", "/jobs/?order=-duration&status=failed",
    "/jobs/?metric=val_accuracy&order=-metric", "/jobs/?tag=tag3&setting=hidden_units%3D128",
    "/jobs/?q=digits", "/jobs/15/", "/jobs/compare/?job=15&job=16&job=17", "/timeline/",
    "/timeline/?window=604800", "/usage/", "/usage/?by=tag", "/sweeps/", "/sweeps/2/", "/nodes/",
    "/jobs/new/", "/account/",
]  # fmt: skip
ADMIN_PAGES = [
    "/",
    "/jobs/",
    "/queue/",
    "/queue/?page=6",
    "/usage/?by=user",
    "/audit/",
    "/what-if/",
]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("crowd")) as site:
        assert int(site.run(_FILL)) > NUM_JOBS - 100
        yield site


def faults_of(visitor: Visitor, address: str) -> list[str]:
    """Open a page, and return what is wrong with it."""
    answer = visitor.page.request.get(address)
    visitor.open(address)
    found = [] if answer.ok else [f"it answers {answer.status}"]
    found += visitor.page.evaluate(AUDIT) + visitor.page.evaluate(OVERLAPS)
    if visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("it is wider than the window")
    return found


@pytest.mark.parametrize(("width", "height", "scheme"), LOOKS)
@pytest.mark.parametrize(("person", "pages"), [("ada", PAGES), ("admin", ADMIN_PAGES)])
def test_every_page_fits_and_nothing_overlaps(
    person: str, pages: list[str], width: int, height: int, scheme: str, browser: Browser,
    crowd: Site,
) -> None:  # fmt: skip
    size = {"width": width, "height": height}
    visitor = visit(browser, crowd, person, viewport=size, color_scheme=scheme)
    faults = {address: found for address in pages if (found := faults_of(visitor, address))}
    visitor.page.context.close()
    assert faults == {}
    assert visitor.complaints == []


@pytest.mark.parametrize(("width", "height", "scheme"), LOOKS)
def test_jobs_are_found_among_many(
    width: int, height: int, scheme: str, browser: Browser, crowd: Site
) -> None:
    size = {"width": width, "height": height}
    visitor = visit(browser, crowd, "ada", viewport=size, color_scheme=scheme)
    page = visitor.page
    visitor.open("/jobs/")
    rows = page.locator("#jobs tbody tr[data-key]")
    first = rows.first.get_attribute("data-key")
    page.get_by_role("link", name="Next").click()
    expect(rows.first).not_to_have_attribute("data-key", first or "")
    page.get_by_role("link", name="Previous").click()
    expect(rows.first).to_have_attribute("data-key", first or "")
    page.get_by_role("searchbox").first.fill("text 91879")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="text 91879")).to_be_visible()
    assert page.evaluate(OVERLAPS) == []
    page.context.close()
    assert visitor.complaints == []
