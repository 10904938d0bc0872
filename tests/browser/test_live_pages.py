"""Open pages in a real browser: changes come by the stream, or by asking."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import WAIT_MS, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

_HEAR_SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def test_a_page_shows_its_changes_alone_and_keeps_its_place(ada: Visitor, site: Site) -> None:
    """A change of another user's job makes the page request nothing."""
    page = ada.page
    page.add_init_script(_HEAR_SHIFTS)
    ada.open(f"/jobs/{JOB['running']}/")
    _hears_the_stream(page)
    page.evaluate("window.isSamePage = true")
    page.locator("#priority-title").scroll_into_view_if_needed()
    page.get_by_label("Reason").fill("half-typed")
    scrolled, shifts = page.evaluate("[scrollY, window.shifts]")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    site.run(_EVENT.format(job_id=JOB["urgent"], message="Not for ada"))
    site.run(_EVENT.format(job_id=JOB["running"], message="Something new"))
    expect(page.locator("#events")).to_contain_text("Something new", timeout=WAIT_MS)
    assert asked.count(page.url) == 1
    expect(page.get_by_label("Reason")).to_have_value("half-typed")
    expect(page.get_by_label("Reason")).to_be_focused()
    assert page.evaluate("window.isSamePage")
    assert page.evaluate("scrollY") == scrolled
    assert page.evaluate("window.shifts") - shifts < 0.05
    # Links keep the focus: of a chart that is drawn anew, and of a row that changes its place.
    ada.open("/")
    _hears_the_stream(page)
    chart = page.locator("[data-figure=allocation]")
    chart.get_by_role("link").first.focus()
    chart.evaluate("chart => delete chart.dataset.drawn")
    site.run(_EVENT.format(job_id=JOB["running"], message="Drawn anew"))
    expect(chart).to_have_attribute("data-drawn", "1")
    expect(chart.get_by_role("link").first).to_be_focused()
    rows = page.locator("#reasons li")
    name = rows.first.get_attribute("data-key")
    rows.locator("..").evaluate("list => list.prepend(list.lastElementChild)")
    rows.nth(1).get_by_role("link").focus()
    site.run(_EVENT.format(job_id=JOB["running"], message="Sorted anew"))
    expect(rows.first).to_have_attribute("data-key", str(name))
    expect(rows.first.get_by_role("link")).to_be_focused()


def _hears_the_stream(page: Page) -> None:
    """Wait until the page is connected and has asked once more since then."""
    expect(page.locator("#live-state")).to_have_text("Live", timeout=WAIT_MS)
    expect(page.locator("body")).to_have_attribute("data-refreshed", "live", timeout=WAIT_MS)


_EVENT = """
from django.utils import timezone
from jobs import nudges
from jobs.models import Event
Event.objects.create(job_id={job_id}, kind="note", message="{message}", at=timezone.now())
nudges.jobs_changed([{job_id}])
"""

_SOON = """
from django.contrib.auth.models import User
from tests.frontend.world import make_job
print(make_job(User.objects.get(username="ada"), "soon").pk)
"""

_BEGUN = """
from jobs import nudges
from jobs.models import Job
from tests.frontend.world import give_history
give_history(Job.objects.get(pk={job_id}), [], [0])
nudges.jobs_changed([{job_id}])
"""

_PAUSED = """
from jobs import nudges
from jobs.models import Job
Job.objects.filter(pk={job_id}).update(status="paused", version=99)
nudges.jobs_changed([{job_id}])
"""

#: Returns whether a click on a form's button would send it.
_IS_SENT = "form => form.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }))"

_GONE = """
from jobs.models import Job
Job.objects.get(pk={job_id}).delete()
"""


def test_charts_come_and_forms_stay_apart_when_a_job_changes(ada: Visitor, site: Site) -> None:
    job_id = int(site.run(_SOON))
    pause, resume = (ada.page.locator(f"form[action$='/{name}/']") for name in ("pause", "resume"))
    try:
        ada.open(f"/jobs/{job_id}/")
        _hears_the_stream(ada.page)
        expect(ada.page.locator("[data-figure]")).to_have_count(0)
        assert pause.evaluate(_IS_SENT)
        site.run(_BEGUN.format(job_id=job_id))
        loss = ada.page.locator("[data-figure=loss]")
        expect(loss.locator(".scatterlayer .trace")).not_to_have_count(0)
        expect(ada.page.get_by_label("smoothing")).to_be_visible()
        assert not pause.evaluate(_IS_SENT), "it is sent twice"
        site.run(_PAUSED.format(job_id=job_id))
        expect(resume).to_be_visible()
        assert resume.evaluate(_IS_SENT), "it is the form that paused the job"
    finally:
        ada.page.goto("/account/")
        site.run(_GONE.format(job_id=job_id))


def test_without_a_stream_the_page_asks_every_few_seconds(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada")
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort("connectionrefused")

    visitor.page.route(f"{site.stream_address}/**", refuse)
    visitor.open(f"/jobs/{JOB['running']}/")
    expect(visitor.page.locator("#live-state")).to_have_text("Every few seconds")
    assert refused
    site.run(_EVENT.format(job_id=JOB["running"], message="Found by asking"))
    expect(visitor.page.locator("#events")).to_contain_text("Found by asking", timeout=WAIT_MS)
    # A stream that has been silent for too long is opened again.
    visitor.page.unroute(f"{site.stream_address}/**")
    visitor.page.clock.install()
    visitor.open(f"/jobs/{JOB['running']}/")
    _hears_the_stream(visitor.page)
    with visitor.page.expect_request(lambda request: request.url.startswith(site.stream_address)):
        visitor.page.clock.fast_forward(60_000)
    expect(visitor.page.locator("#live-state")).to_have_text("Live", timeout=WAIT_MS)
    visitor.page.context.close()
    # The browser notes that nobody listens on the stream's port; nothing else is wrong.
    assert [c for c in visitor.complaints if "ERR_CONNECTION_REFUSED" not in c] == []


#: Makes each request take 3 s by the page's clock, and collects the delays of its timers, in ms.
_SLOW = """(() => {
    const { fetch, setTimeout, Date: { now } } = window;
    let late = 0;
    window.delays = [];
    window.Date.now = () => now() + late;
    window.fetch = (...asked) => {
        late += 3000;
        return fetch(...asked);
    };
    window.setTimeout = (act, delay) => {
        window.delays.push(delay);
        return setTimeout(act, 0);
    };
})()"""


def test_slow_refreshes_of_a_page_are_further_apart(window: Visitor, site: Site) -> None:
    page = window.page.context.new_page()
    page.add_init_script(_SLOW)
    page.goto("/nodes/")
    _hears_the_stream(page)
    page.evaluate("window.delays.length = 0")
    with page.expect_response(page.url):
        site.run(_EVENT.format(job_id=JOB["running"], message="After a slow refresh"))
    (delay,) = page.evaluate("window.delays")
    assert 5_000 < delay <= 7_000  # ten seconds after the beginning of one that took three
    page.close()


#: How a page that is open may be answered when it asks for a fresh copy of itself, and what
#: it says then.
REFUSALS = [
    pytest.param(lambda route: route.abort("connectionrefused"), "", id="away"),
    pytest.param(
        lambda route: route.fulfill(status=302, headers={"Location": "/login/"}),
        r"Logged out\. ",
        id="logged out",
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        lambda route: route.fulfill(status=404, body="gone"),
        "",
        id="gone",
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        lambda route: route.fulfill(status=503, body="busy"),
        "",
        id="busy",
        marks=pytest.mark.nightly,
    ),
]


@pytest.mark.parametrize(("refuse", "said"), REFUSALS)
def test_a_page_says_since_when_it_is_stale(
    refuse: Callable[[Route], None], said: str, browser: Browser, site: Site
) -> None:
    visitor = visit(browser, site, "ada")
    page = visitor.page
    parts = re.compile("/figures/|/log/")
    page.route(parts, refuse)
    page.goto(f"/jobs/{JOB['running']}/")
    badge, note, chart = (
        page.locator(one) for one in ("#live-state", "#log-note", "[data-figure='allocation']")
    )
    page.route(page.url, refuse)
    site.run(_EVENT.format(job_id=JOB["running"], message="While it is away"))
    expect(badge).to_have_text(re.compile(rf"^{said}Not refreshed since [\d:]{{8}}$"))
    expect(note).to_have_text("The log cannot be read now.")
    expect(chart).not_to_have_attribute("data-drawn", "1")
    # The page asks again by itself, though nothing changes any more.
    page.unroute(parts)
    page.unroute(page.url)
    expect(badge).to_have_text("Live")
    expect(page.locator("#events")).to_contain_text("While it is away")
    expect(page.locator("#log")).to_contain_text("trainer 1")
    expect(note).to_be_empty()
    expect(chart).to_have_attribute("data-drawn", "1")
    page.context.close()
    assert [c for c in visitor.complaints if "Failed to load resource" not in c] == []
