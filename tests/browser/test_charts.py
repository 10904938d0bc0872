"""Charts in a real browser: what they draw, compare, and tell at the pointer."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import HURT, WAIT_MS, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_charts_show_what_the_tables_beside_them_say(admin: Visitor) -> None:
    admin.open("/")
    allocation = admin.page.locator("[data-figure=allocation]")
    expect(allocation.locator(".scatterlayer .trace")).to_have_count(4)  # three jobs, capacity
    allocation.get_by_text("as a table").click()
    rows = allocation.locator("tbody tr")
    expect(rows.last).to_contain_text("3")
    admin.open(f"/jobs/{JOB['running']}/")
    for name, num_traces in (("loss", 2), ("throughput", 1), ("allocation", 2)):
        figure = admin.page.locator(f"[data-figure={name}]")
        expect(figure.locator(".scatterlayer .trace")).to_have_count(num_traces)
        figure.get_by_text("as a table").click()
        expect(figure.locator("tbody tr").nth(3)).to_be_visible()
    admin.page.get_by_label("smoothing").select_option("strong")
    admin.page.wait_for_url("**smoothing=0.9**")
    loss = admin.page.locator("[data-figure=loss]")
    expect(loss.locator(".scatterlayer .trace")).to_have_count(4)  # pale ones below smooth ones


#: Minutes after midnight UTC at which the clocks of Berlin show 2:20, 2:50, and 2:20 again.
_NIGHT_MINUTES = [20, 50, 80]


@pytest.mark.nightly  # a window of its own, for its time zone
def test_an_hour_that_the_clock_repeats_is_drawn_twice(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "admin", timezone_id="Europe/Berlin")

    def at_night(route: Route) -> None:
        response = route.fetch()
        figures = response.json()
        midnight_ms = datetime(2026, 10, 25, tzinfo=UTC).timestamp() * 1000
        times = [midnight_ms + minutes * 60_000 for minutes in _NIGHT_MINUTES]
        figure = figures["throughput"]
        figure["data"] = [{**figure["data"][0], "x": times, "y": [1, 2, 3]}]
        figure["layout"]["xaxis"]["range"] = [times[0], times[-1]]
        route.fulfill(response=response, json=figures)

    visitor.page.route("**/figures/*", at_night)
    visitor.open(f"/jobs/{JOB['running']}/")
    chart = visitor.page.locator("[data-figure=throughput] .chart-plot")
    expect(chart.locator(".scatterlayer .trace")).to_have_count(1)
    drawn = chart.evaluate("(plot) => plot.data[0].x")
    assert [stamp[11:16] for stamp in drawn] == ["01:20", "01:50", "02:20"]
    visitor.page.context.close()


def _hover_text(visitor: Visitor) -> str:
    """Text at the pointer over the newest part of the accelerators' chart.

    The pointer moves until the text shows, since a chart that is drawn anew loses it.
    """
    chart = visitor.page.locator("[data-figure=allocation]")
    labels = chart.locator(".hoverlayer text")
    for num_moves in range(WAIT_MS // 1_000):
        box = chart.locator(".draglayer .nsewdrag").first.bounding_box()
        if box:
            x = box["x"] + box["width"] - 3 - num_moves % 2
            visitor.page.mouse.move(x, box["y"] + box["height"] / 2)
        try:
            expect(labels.first).to_be_visible(timeout=1_000)
        except AssertionError:
            continue
        if text := " ".join(labels.all_text_contents()):
            return text
    raise AssertionError("no text at the pointer")


def test_the_pointer_names_holders_of_accelerators_alone_as_text(admin: Visitor) -> None:
    admin.open("/")
    legend = admin.page.locator("[data-figure=allocation] .legend")
    expect(legend).to_contain_text("#4 <script>window.hurt = 1</sc")
    text = _hover_text(admin)
    assert re.search(r"[1-9]\d* · #\d+ ", text)
    assert not re.search(r"\b0 · ", text)
    assert "<script>window.hurt = 1</sc" in text
    assert not admin.page.evaluate(HURT)
    drawing = admin.page.locator("[data-figure=allocation] .main-svg").first
    expect(drawing).to_have_attribute("width", re.compile(r"^[789]\d\d"))
    admin.page.set_viewport_size({"width": 420, "height": 900})
    expect(drawing).to_have_attribute("width", re.compile(r"^3\d\d"))


def test_ticked_jobs_are_compared_and_smoothed(admin: Visitor) -> None:
    admin.open("/jobs/")
    page = admin.page
    first, last = (
        page.get_by_label(f"Choose job #{JOB[name]}", exact=True) for name in ("script", "running")
    )
    page.get_by_label("Choose all on this page").check()
    expect(page.locator('#jobs [name="job"]:not(:checked)')).to_have_count(0)
    expect(page.locator("#bulk")).to_be_in_viewport(ratio=1)
    page.get_by_label("Choose all on this page").uncheck()
    first.click()
    last.click(modifiers=["Shift"])
    expect(page.locator("#bulk-count")).to_have_text("3 jobs ticked")
    row = page.locator("#jobs tbody tr").filter(has=last)
    row.evaluate("row => { window.gone = row; row.remove(); }")
    expect(page.locator("#bulk-count")).to_have_text("2 jobs ticked")
    page.locator("#jobs tbody").evaluate("body => body.append(window.gone)")
    expect(page.locator("#bulk-count")).to_have_text("3 jobs ticked")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/jobs/compare/?job=4&job=3&job=2")
    loss = page.locator(".chart").filter(has_text="#2 digits").first
    lines = loss.locator(".scatterlayer .trace")
    expect(lines.first).to_be_attached()
    num_lines = lines.count()
    page.get_by_label("Smoothing").select_option("0.9")
    page.get_by_label("Against").select_option("time")
    page.get_by_role("button", name="Show").click()
    expect(lines).to_have_count(2 * num_lines)  # each pale line has its smoothed one
    expect(loss.locator(".xtitle")).to_have_text(re.compile("time since the start in"))
    assert admin.complaints == []


def test_a_part_of_the_timeline_has_an_address(admin: Visitor) -> None:
    admin.open("/timeline/?window=900")
    page = admin.page
    figure = page.locator("[data-figure=timeline]")
    expect(figure.locator(".barlayer .point")).not_to_have_count(0)
    area = figure.locator(".nsewdrag").first.bounding_box()
    assert area is not None
    middle = area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + 0.25 * area["width"], middle)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.75 * area["width"], middle, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=**")
    query = parse_qs(urlsplit(page.url).query)
    assert {*query} == {"from", "to"}
    expect(page.locator("[data-figure=timeline][data-drawn]")).to_be_visible()
    page.get_by_role("link", name="Zoom out").click()
    page.wait_for_url("**from=**")
    page.get_by_label("The last").select_option("3600")
    page.wait_for_url("**window=3600**")
    assert page.get_by_label("The last").input_value() == "3600"
    expect(page.get_by_label("The last")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**window=21600**")
    expect(page.get_by_label("The last")).to_be_focused()


#: Code for `Site.run`: a sweep with long names and values of settings; prints its number.
_LONG_SWEEP = """
from django.contrib.auth.models import User
from tests.frontend.world import make_sweep
names = ["optimizer_of_all_layers", "schedule_of_the_warm_up", "units"]
user, space = User.objects.get(username="ada"), {name: [1] for name in names}
sweep = make_sweep(user, [0.5, 0.7, 0.6], space=space)
words = ("adaptive moments & <b>decay", "stochastic gradient descent", "root mean square of each")
for job, text in zip(sweep.jobs.all(), words):
    job.settings = {names[0]: text, names[1]: text[::-1], "units": job.pk}
    job.save()
print(sweep.pk)
"""
#: Code for `Site.run`: deletes a sweep with its jobs.
_SWEEP_GONE = """
from jobs.models import Sweep
sweep = Sweep.objects.get(pk={pk})
sweep.jobs.all().delete()
sweep.delete()
"""
#: Returns the labels of a drawing that cover each other.
_COVERED = """() => {
    const labels = [...document.querySelectorAll(".annotation-text, .xtick text")]
        .map(one => [one.textContent, one.getBoundingClientRect()]);
    return labels.flatMap(([text, a], place) => labels.slice(place + 1)
        .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom
            && b.top < a.bottom)
        .map(([other]) => `${text} and ${other}`));
}"""


@pytest.mark.parametrize("width", [320, 1280])
def test_labels_of_a_sweep_do_not_cover_each_other(width: int, window: Visitor, site: Site) -> None:
    number = site.run(_LONG_SWEEP)
    try:
        window.page.set_viewport_size({"width": width, "height": 900})
        window.open(f"/sweeps/{number}/")
        labels = window.page.locator(".annotation-text")
        expect(labels.filter(has_text="roo").first).to_be_visible()
        if width > 1000:
            expect(labels.filter(has_text="adaptive moments …")).to_be_visible()
        assert window.page.evaluate(_COVERED) == []
    finally:
        site.run(_SWEEP_GONE.format(pk=number))


def test_a_chart_that_cannot_be_drawn_says_so_and_has_its_table(window: Visitor) -> None:
    page = window.page
    page.route("**/plotly-basic*", lambda route: route.abort())
    window.open("/")
    page.unroute("**/plotly-basic*")
    chart = page.locator("[data-figure=throughput]")
    expect(chart).to_contain_text("The chart cannot be drawn")
    chart.get_by_text("as a table").click()
    expect(chart.locator("tbody tr").first).to_be_visible()
