"""Every page in every width of a window, zoomed in, and with the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_site import Site
from tests.browser.test_pages import PAGES
from tests.browser.visitor import OVERLAPS, SIDEWAYS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: A phone, a window of 1280 pixels at 200 % zoom, tablets, a half and a whole screen.
WIDTHS = (390, 640, 768, 1024, 1440, 1920)
#: Tables of ten columns that scroll in a panel of their own, which keys reach.
LONG_TABLES = {("/jobs/2/", 768), ("/jobs/4/", 768)}
#: Remembers what keys have to reach.
MARK = """() => {
    window.reached = new Set();
    window.wanted = [...document.querySelectorAll(
        "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
    )].filter(one => one.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true })
        && !one.disabled && one.tabIndex >= 0 && !one.matches("[type=radio]:not(:checked)"));
    return window.wanted.length;
}"""
#: Returns what is wrong with the element that has the focus; null at the end of the page.
FOCUSED = """() => {
    const one = document.activeElement;
    if (!one || one === document.body) return null;
    window.reached.add(one);
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    const name = `${one.tagName}#${one.id} ${(one.textContent || one.value || "").trim()}`;
    const inside = (at, size, room) => Math.min(Math.max(at + Math.min(size / 2, 20), 1), room - 2);
    const over = document.elementFromPoint(
        inside(box.left, box.width, innerWidth), inside(box.top, box.height, innerHeight));
    const wrong = [];
    // Parts of a date are marked by the browser itself.
    const isMarked = style.outlineStyle !== "none" || style.boxShadow !== "none";
    if (!isMarked && !one.matches("[type=datetime-local]")) wrong.push("has no mark");
    if (box.bottom < 0 || box.top > innerHeight) wrong.push("is out of sight");
    if (over && !one.contains(over) && !over.contains(one)) wrong.push("is covered");
    return wrong.map(text => `${name.slice(0, 50)} ${text}`);
}"""
MISSED = """() => window.wanted.filter(one => one.isConnected && !window.reached.has(one)).map(
    one => `${one.tagName}#${one.id} ${one.textContent.trim().slice(0, 40)} is not reached`)"""


COMPARED = "/jobs/compare/?job=1&job=2"
#: Code for `Site.run`: gives jobs other names, and prints the ones before by number.
_NAMES = """
from jobs.models import Job
names = dict(Job.objects.filter(pk__in=[1, 2, 3]).values_list("pk", "name"))
for pk, name in ({names}).items():
    Job.objects.filter(pk=pk).update(name=name)
print(names)
"""
#: A third of the pages; the others in `make nightly`.
SOME_PAGES = [
    page if place % 3 == 0 else pytest.param(page, marks=pytest.mark.nightly)
    for place, page in enumerate(PAGES)
]


@pytest.mark.parametrize("address", SOME_PAGES)
def test_every_page_fits_into_windows_of_every_width(address: str, window: Visitor) -> None:
    page = window.page
    window.open(address)
    faults = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        if found := _unfit(page, is_long=(address, width) in LONG_TABLES):
            faults[width] = found
    assert not faults


@pytest.mark.parametrize("address", ["/", "/jobs/", "/jobs/2/", "/queue/", "/timeline/", COMPARED])
def test_the_longest_name_fits_onto_a_phone(address: str, window: Visitor, site: Site) -> None:
    names = site.run(_NAMES.format(names="{pk: 'W' * 100 for pk in names}"))
    try:
        window.page.set_viewport_size({"width": 390, "height": 844})
        window.open(address)
        expect(window.page.locator("main")).to_contain_text("W" * 12)
        assert _unfit(window.page, is_long=False) == []
    finally:
        site.run(_NAMES.format(names=names))


def test_stacked_accents_of_a_name_cover_nothing(window: Visitor, site: Site) -> None:
    page = window.page
    page.set_viewport_size({"width": 1280, "height": 900})
    pictures = []
    for name in ("e" + "\u0301" * 60, "e"):
        names = site.run(_NAMES.format(names={1: name}))
        try:
            window.open("/jobs/?order=submitted")
            first = page.locator("[data-key=job-1]")
            row = first.bounding_box()
            assert row
            above = {"x": row["x"], "y": row["y"] - 60, "width": 400, "height": 60}
            pictures.append(page.screenshot(clip=above))
        finally:
            site.run(_NAMES.format(names=names))
    assert pictures[0] == pictures[1]


def _unfit(page: Page, *, is_long: bool) -> list[str]:
    """Return what does not fit once the charts have followed the window, within some seconds."""
    found: list[str] = []
    for _ in range(40):
        found = page.evaluate(SIDEWAYS) + page.evaluate(OVERLAPS)
        found = [one for one in found if not (is_long and one.startswith("scrolls sideways"))]
        if not found:
            break
        page.wait_for_timeout(100)
    return found


@pytest.mark.parametrize("address", SOME_PAGES)
def test_the_tab_key_reaches_everything_and_leaves_again(address: str, window: Visitor) -> None:
    page = window.page
    page.set_viewport_size({"width": 1280, "height": 900})
    window.open(address)
    most = 2 * page.evaluate(MARK) + 30  # fields of a date have several stops
    faults: list[str] = []
    ends = 0
    for _ in range(most):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        ends += found is None
        if ends == 2:  # a page may begin in one of its fields
            break
        faults += found or []
    assert ends, "the keyboard does not leave the page"
    assert faults + page.evaluate(MISSED) == []
