"""Time zone, theme, keys and palette of a reader, in a real browser."""

from __future__ import annotations

import datetime
import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import AUDIT, MUTED, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_times_are_in_the_readers_zone_and_in_english(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada", timezone_id="Asia/Tokyo", locale="de-DE")
    visitor.open(f"/jobs/{JOB['running']}/")
    time = visitor.page.locator("#spec time").first
    expected = time.evaluate(
        "(e) => new Date(e.dateTime).toLocaleTimeString('en-GB', {timeZone: 'Asia/Tokyo'})"
    )
    expect(time).to_have_text(re.compile(rf"{expected}$"))
    assert "GMT+9" in (time.get_attribute("title") or "")
    tick = visitor.page.locator("[data-figure=throughput] .xtick text").first.text_content()
    start = visitor.page.locator("#events time").nth(2).inner_text()
    # The first tick lies before or after the start, in its hour or in one beside it.
    assert (_hour(tick) - _hour(start)) % 24 in (23, 0, 1)
    _choose_utc(visitor.page)
    visitor.open(visitor.page.url)
    expect(visitor.page.locator("#zone-note")).to_have_text("Times are in UTC.")
    expect(time).to_have_text(re.compile(rf"{time.get_attribute('datetime')[11:19]}$"))
    # Outside of the live parts of the page, which would be fetched again.
    visitor.page.evaluate(
        """() => {
            const old = Object.assign(document.createElement("time"), { id: "old" });
            old.dateTime = "2024-02-28T01:46:26+00:00";
            old.dataset.as = "clock";
            document.body.append(old);
        }"""
    )
    expect(visitor.page.locator("#old")).to_have_text("Feb 28, 2024 01:46:26")
    visitor.page.context.close()


@pytest.mark.parametrize("hours", [-26, 0, 26])
def test_ages_are_right_whatever_the_readers_clock_says(
    hours: int, browser: Browser, site: Site
) -> None:
    visitor = visit(browser, site, "admin", locale="ja-JP")
    page = visitor.page
    shown = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    page.clock.install(time=shown)
    site.run(
        "from django.utils import timezone\nfrom jobs.models import Node\n"
        "Node.objects.update(last_seen_at=timezone.now())"
    )
    visitor.open("/nodes/")
    age = page.locator("time[data-as=age]").first
    expect(age).to_have_text(re.compile(r"^(now|-?\d+s|-?\d+s ago|-?\d+ ?min.*)$"))
    page.context.close()


@pytest.mark.nightly
def test_times_typed_in_utc_are_told_in_the_readers_zone(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "admin", timezone_id="Europe/Berlin")
    page = visitor.page
    visitor.open("/nodes/maintenance/")
    starts, ends = page.get_by_label("Starts (UTC)"), page.get_by_label("Ends (UTC)")
    said = page.locator("form output")
    expect(said).to_have_text(["", ""])
    starts.fill("2027-03-28T00:30")
    ends.fill("2027-03-28T01:30")  # the clocks of Berlin go from 2 to 3 in between
    expect(said).to_have_text(["= Mar 28, 2027, 01:30:00 GMT+1", "= Mar 28, 2027, 03:30:00 GMT+2"])
    starts.fill("2026-10-25T00:30")
    ends.fill("2026-10-25T01:30")  # and back from 3 to 2
    expect(said).to_have_text(["= Oct 25, 2026, 02:30:00 GMT+2", "= Oct 25, 2026, 02:30:00 GMT+1"])
    page.context.close()
    assert visitor.complaints == []


def _choose_utc(page: Page) -> None:
    """Choose UTC in the menu: times and charts change at once, by nine hours from Tokyo's."""
    time = page.locator("#spec time").first
    tick = page.locator("[data-figure=throughput] .xtick text").first
    hour = _hour(tick.text_content())
    expect(page.locator("#zone-note")).to_have_text("Times are in your time zone, Asia/Tokyo.")
    page.locator(".top details.menu summary").click()
    with page.expect_response("**/account/zone/"):
        page.get_by_role("button", name="UTC", exact=True).click()
    expect(page.locator("#zone-note")).to_have_text("Times are in UTC.")
    expect(time).to_have_attribute("title", re.compile(r"UTC$"))
    expect(tick).to_have_text(re.compile(rf"{(hour - 9) % 24:02}:"))


def _hour(text: str | None) -> int:
    """Read the hour of a time, which has its date beside it where that is another day's."""
    found = re.search(r"(\d\d):\d\d", text or "")
    assert found, text
    return int(found[1])


def test_everything_is_reached_by_keyboard(admin: Visitor) -> None:
    page = admin.page
    admin.open("/jobs/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        outline = page.evaluate(
            "[getComputedStyle(document.activeElement).outlineStyle, "
            "document.activeElement.tagName, document.activeElement.matches(':focus-visible')]"
        )
        if outline[1] == "BODY":
            break
        assert outline[0] != "none", outline
    # A menu opens by Enter and closes by Escape, back where it was.
    summary = page.locator(".top details.menu summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Account and API tokens")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Account and API tokens")).to_be_hidden()
    expect(summary).to_be_focused()
    # The menu closes when the focus leaves it, so it covers nothing that has the focus.
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Log out").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Log out")).to_be_hidden()


def test_a_theme_is_chosen_by_keyboard_and_charts_follow(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada", color_scheme="light")
    page = visitor.page
    visitor.open(f"/jobs/{JOB['running']}/")
    ground = "getComputedStyle(document.body).backgroundColor"
    tick = page.locator("[data-figure=loss] .xtick text").first
    light, light_label = page.evaluate(ground), page.evaluate(MUTED)
    expect(tick).to_have_css("fill", light_label)
    page.locator(".top details.menu summary").focus()
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Dark", exact=True)
    while not button.evaluate("(one) => one === document.activeElement"):
        page.keyboard.press("Tab")
    with page.expect_response("**/account/theme/"):
        page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    dark = page.evaluate(ground)
    dark_label = page.evaluate(MUTED)
    assert dark != light
    assert dark_label != light_label
    expect(tick).to_have_css("fill", dark_label)
    assert page.evaluate(AUDIT) == []
    visitor.open(page.url)
    assert page.evaluate(ground) == dark
    expect(tick).to_have_css("fill", dark_label)
    page.emulate_media(color_scheme="dark")
    page.locator(".top details.menu summary").click()
    page.get_by_role("button", name="Light", exact=True).click()
    assert page.evaluate(ground) == light
    expect(tick).to_have_css("fill", light_label)
    assert page.evaluate(AUDIT) == []
    page.context.close()
    assert visitor.complaints == []


def test_the_palette_finds_pages_actions_and_jobs_by_keys(
    browser: Browser, site: Site, admin: Visitor
) -> None:
    page = admin.page
    admin.open("/account/")
    box, options = page.get_by_role("combobox"), page.locator("#palette [role=option]")
    page.keyboard.press("Control+k")
    expect(box).to_be_focused()
    assert page.evaluate(AUDIT) == []
    page.keyboard.type("theme dark")
    with page.expect_response("**/account/theme/"):
        page.keyboard.press("Enter")
    expect(page.locator("#announcer")).to_have_text("Theme: Dark")
    page.get_by_role("button", name="Search").click()
    assert page.evaluate(AUDIT) == []
    page.keyboard.type("bold")
    found = options.filter(has_text=f"#{JOB['script']} <script>")  # its name is no markup
    expect(found).to_have_count(1)
    while found.get_attribute("aria-selected") != "true":
        page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", found.get_attribute("id") or "")
    assert not page.evaluate("window.hurt || document.querySelector('#palette b')")
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type(f"#{JOB['paused']}")
    expect(options.first).to_contain_text("weekend run")
    with page.context.expect_page() as opened:
        page.keyboard.press("Control+Enter")
    opened.value.wait_for_url(f"**/jobs/{JOB['paused']}/")
    opened.value.close()
    expect(box).to_be_hidden()
    assert page.url.endswith("/account/")
    page.keyboard.press("Control+k")
    page.keyboard.type(f"#{JOB['paused']}")
    expect(options.first).to_contain_text("weekend run")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{JOB['paused']}/")
    newcomer = visit(browser, site, "newcomer").page
    newcomer.goto("/account/")
    newcomer.keyboard.press("Control+k")
    pages = newcomer.locator("#palette [role=option]").filter(has_text="page")
    expect(pages.filter(has_text="Jobs")).not_to_have_count(0)
    expect(pages.filter(has_text="Queue")).to_have_count(0)
    newcomer.context.close()
