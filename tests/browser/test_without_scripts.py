"""Pages in a real browser that runs no scripts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.page_site import FITTING, JOB, VALIDATION_ANSWER, Site
from tests.browser.visitor import visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: Returns what only a script would fill or answer, and columns that are not below each other.
IDLE = """() => {
    const idle = [...document.querySelectorAll("button[type=button], .chart > details:not([open])")]
        .filter(one => one.checkVisibility()).map(one => one.textContent.trim());
    for (const chart of document.querySelectorAll(".chart")) {
        if (!chart.querySelector("noscript a, details[open]")) idle.push("a chart without a table");
    }
    const lefts = [...document.querySelectorAll(".queue-table tbody .cell-text")]
        .map(one => one.getBoundingClientRect().left);
    return [...idle, ...(new Set(lefts).size > 1 ? ["columns are shifted"] : [])];
}"""
IDLE_ADDRESSES = [
    "/queue/", "/account/", f"/jobs/{JOB['running']}/", f"/jobs/{JOB['running']}/copy/",
    "/jobs/compare/?job=1&job=2", "/sweeps/1/", "/sweeps/1/?tables=1", "/what-if/1/",
]  # fmt: skip


@pytest.mark.nightly
def test_nothing_waits_for_a_script(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "admin", java_script_enabled=False)
    faults = {}
    for address in IDLE_ADDRESSES:
        visitor.page.goto(address)
        if found := visitor.page.evaluate(IDLE):
            faults[address] = found
    visitor.page.context.close()
    assert not faults


def test_pages_work_without_scripts(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada", java_script_enabled=False)
    page = visitor.page
    page.goto("/")
    kept, shown = page.locator(".chart").first.evaluate(
        "chart => [chart.offsetHeight, [...chart.children].reduce((h, e) => h + e.offsetHeight, 0)]"
    )
    assert kept < shown + 60, "no room is kept for a chart that is not drawn"
    page.goto(f"/jobs/{JOB['paused']}/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("weekend run")
    expect(page.locator("#spec time").first).to_contain_text("UTC")
    expect(page.locator("#zone-note")).to_have_text("Times are in UTC.")
    for needs_scripts in ("#palette-open", "#log-times", "#log-search", "#log-level"):
        expect(page.locator(needs_scripts)).to_be_hidden()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#job-head [role=status]")).to_have_text("pending")
    page.goto("/jobs/new/")
    page.get_by_role("button", name="Measure memory").click()
    expect(page.get_by_role("heading", name="Measuring")).to_be_visible()
    site.run(VALIDATION_ANSWER.format(report=FITTING))
    page.get_by_role("link", name="Look again").click()
    expect(page.locator("#check-result")).to_contain_text("Measured: 300.0 MB per example")
    page.goto("/jobs/new/")
    page.get_by_label("Virtual nodes").fill("0")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("[data-error-for=num_virtual_nodes]")).to_contain_text("Give a whole")
    visitor.page.context.close()


def test_a_drain_is_previewed_and_made_without_scripts(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "admin", java_script_enabled=False)
    page = visitor.page
    page.goto("/timeline/")
    page.get_by_role("link", name="Show all charts as tables").click()
    expect(page.get_by_text("digits, patient").first).to_be_visible()
    page.goto("/nodes/")
    page.get_by_role("link", name="Drain… node-a", exact=True).click()
    expect(page.get_by_role("heading", name="Drain node-a?")).to_be_focused()
    page.get_by_label("Reason").fill("new fan")
    page.get_by_role("button", name="Drain node-a").click()
    expect(page.get_by_role("heading", name="What the drain did")).to_be_visible()
    expect(page.get_by_text("takes no new work, and its jobs leave: new fan")).to_be_visible()
    page.get_by_role("button", name="Uncordon node-a").click()
    visitor.page.context.close()
