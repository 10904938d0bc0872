"""Pages on paper: nothing is cut or wider than the sheet, and charts are readable on white."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import MUTED, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PAGES = [
    "/", "/jobs/", f"/jobs/{JOB['running']}/", f"/jobs/{JOB['failed']}/", "/queue/", "/nodes/",
    "/jobs/compare/?job=1&job=2&job=3", "/what-if/1/", "/usage/?by=user", "/audit/", "/sweeps/1/",
    "/projects/1/", "/account/", "/timeline/",
]  # fmt: skip
#: Content of an upright sheet of A4 or letter, in pixels.
SHEET = {"width": 700, "height": 990}
FAULTS = """() => [...document.querySelectorAll("main *")]
    .filter(one => one.getClientRects().length && !one.closest("svg, .visually-hidden"))
    .filter(one => {
        const style = getComputedStyle(one);
        const isEmpty = one.matches(".panel")
            && ![...one.querySelectorAll(":scope > :not(.panel-head)")].some(
                part => part.innerText.trim());
        const isCut = style.overflowY !== "visible" && one.scrollHeight > one.clientHeight + 2
            || style.overflowX !== "visible" && one.scrollWidth > one.clientWidth + 2;
        return isEmpty || isCut || one.getBoundingClientRect().right > innerWidth + 1;
    })
    .slice(0, 5).map(one => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""


def test_nothing_is_cut_on_paper(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "admin", color_scheme="dark", viewport=SHEET)
    page = visitor.page
    faults = {}
    for address in PAGES:
        page.emulate_media(media="screen")
        visitor.open(address)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        expect(page.locator(".top")).to_be_hidden()
        if found := page.evaluate(FAULTS):
            faults[address] = found
    page.context.close()
    assert not faults
    assert visitor.complaints == []


def test_a_chart_that_comes_while_the_page_is_printed_keeps_its_height(window: Visitor) -> None:
    page = window.page.context.new_page()
    page.add_init_script(
        "addEventListener('DOMContentLoaded', () => dispatchEvent(new Event('beforeprint')))"
    )
    page.goto("/")
    drawing = page.locator("[data-figure=throughput] .main-svg").first
    expect(drawing).to_have_attribute("width", "640")
    expect(drawing).to_have_attribute("height", "250")
    page.close()


def test_a_printed_chart_has_light_colours_and_the_page_stays_dark(
    browser: Browser, site: Site
) -> None:
    visitor = visit(browser, site, "admin", color_scheme="light")
    page = visitor.page
    tick = page.locator("[data-figure=loss] .xtick text").first
    visitor.open(f"/jobs/{JOB['running']}/")
    light = page.evaluate(MUTED)
    expect(tick).to_have_css("fill", light)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(MUTED)
    assert dark != light
    expect(tick).to_have_css("fill", dark)
    # After the page's own listener, which has drawn by then.
    page.evaluate(
        """() => addEventListener("beforeprint", () => {
            const tick = document.querySelector("[data-figure=loss] .xtick text");
            window.printed = getComputedStyle(tick).fill;
        })"""
    )
    sheets = page.pdf(format="A4")
    assert page.evaluate("window.printed") == light
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) >= 2
    expect(tick).to_have_css("fill", dark)
    page.context.close()
