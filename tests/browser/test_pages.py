"""Every page in a real browser: drawn, accessible, within the window, quiet on the console."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import AUDIT, HURT, MUTED, OVERLAPS, SIDEWAYS, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PAGES = [
    "/", "/jobs/", "/jobs/2/", "/jobs/4/", "/jobs/5/", "/jobs/8/", "/jobs/new/",
    "/jobs/new/?from=1", "/nodes/", "/queue/", "/account/", "/nowhere/",
    "/account/password/", "/account/notifications/", "/account/notifications/1/", "/audit/",
    "/jobs/compare/?job=1&job=2&job=3&smooth=0.9", "/jobs/?metric=accuracy&order=-metric",
    "/jobs/2/copy/", "/what-if/?policy-2=fifo&resize-cost-2=30",
    "/what-if/1/?price-1:t4=2", "/what-if/2/",
    "/nodes/1/?change=drain", "/nodes/maintenance/?nodes=1", "/timeline/", "/sweeps/1/", "/sweeps/",
    "/projects/", "/projects/1/", "/usage/?by=user",
]  # fmt: skip

NEWCOMERS_PAGES = ["/", "/jobs/", "/jobs/new/", "/nodes/", "/projects/", "/usage/"]

#: Width, scheme and which of the pages: each of them once, where room is scarce; all of them in
#: every look in `make nightly`.
LOOKS = [
    (390, "light", slice(0, None, 2)),
    (320, "dark", slice(1, None, 2)),
    *(
        pytest.param(width, scheme, slice(None), marks=pytest.mark.nightly)
        for width in (320, 390, 1920)
        for scheme in ("light", "dark")
    ),
]


TEXT_SIZES = """() => [...document.querySelectorAll("main *, header *")]
    .filter(one => !one.closest("svg, .js-plotly-plot, .sr-only"))
    .filter(one => [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .filter(one => one.getClientRects().length)
    .map(one => parseFloat(getComputedStyle(one).fontSize))"""
NAVIGATION_SCROLLS = """() => {
    const nav = document.querySelector(".nav");
    return nav.scrollWidth > nav.clientWidth;
}"""
OUTSIDE_THEIR_BADGE = """() => [...document.querySelectorAll(".pill")].some(
    one => one.getClientRects().length
        && one.clientHeight < parseFloat(getComputedStyle(one).fontSize) * 1.2)"""


@pytest.mark.parametrize(("width", "scheme", "pages"), LOOKS)
def test_every_page_is_drawn_accessible_and_fits(
    width: int, scheme: str, pages: slice, browser: Browser, site: Site
) -> None:
    size = {"width": width, "height": 844 if width < 500 else 1080}
    for person in ("admin", "newcomer"):
        visitor = visit(browser, site, person, viewport=size, color_scheme=scheme)
        faults = {}
        addresses = (PAGES if person == "admin" else NEWCOMERS_PAGES)[pages]
        for address in addresses:
            visitor.open(address)
            found = visitor.page.evaluate(AUDIT) + visitor.page.evaluate(OVERLAPS)
            if visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append("it is wider than the window")
            if visitor.page.evaluate(NAVIGATION_SCROLLS):
                found.append("the main navigation is wider than the window")
            if visitor.page.evaluate(HURT):
                found.append("a name or a log is read as HTML")
            if found:
                faults[address] = found
        # The browser itself notes that a page was not there.
        is_found = ["404 (Not Found)" not in complaint for complaint in visitor.complaints]
        assert is_found == [False] * ("/nowhere/" in addresses), visitor.complaints
        if found := _faults_without_stream(visitor, site):
            faults["the head without live updates"] = found
        visitor.page.context.close()
        assert not faults


def _faults_without_stream(visitor: Visitor, site: Site) -> list[str]:
    visitor.page.route(f"{site.stream_address}/**", lambda route: route.abort())
    visitor.open("/jobs/")
    expect(visitor.page.locator("#live-state")).to_have_text("Every few seconds")
    found: list[str] = visitor.page.evaluate(SIDEWAYS) + visitor.page.evaluate(OVERLAPS)
    visitor.page.route(visitor.page.url, lambda route: route.abort())
    expect(visitor.page.locator("#live-state")).to_contain_text("Not refreshed since")
    return found + visitor.page.evaluate(SIDEWAYS) + visitor.page.evaluate(OVERLAPS)


def test_on_a_phone_filters_that_are_not_set_are_folded_away(window: Visitor) -> None:
    page = window.page
    page.set_viewport_size({"width": 390, "height": 844})
    window.open("/jobs/")
    first = page.locator("#jobs tbody tr").first.bounding_box()
    assert first is not None
    assert first["y"] + first["height"] < 844
    status, owner = page.get_by_label("Status"), page.get_by_label("Owner")
    expect(status).to_be_hidden()
    page.get_by_text("More filters").click()
    expect(status).to_be_visible()
    expect(owner).to_be_visible()
    window.open("/jobs/?status=running")
    expect(status).to_be_visible()
    expect(owner).to_be_hidden()
    page.set_viewport_size({"width": 1280, "height": 844})
    expect(owner).to_be_visible()


#: Pages of every layout: tiles and charts, a table with actions, a job, a form.
LAYOUTS = ["/", "/jobs/", "/jobs/2/", "/jobs/new/", "/queue/", "/nodes/", "/account/"]


@pytest.mark.parametrize("size", [100, 200])
def test_text_alone_can_be_enlarged(size: int, window: Visitor) -> None:
    page = window.page
    page.set_viewport_size({"width": 1280, "height": 900})
    faults = {}
    for address in LAYOUTS:
        window.open(address)
        page.evaluate(f"document.documentElement.style.fontSize = '{size}%'")
        heights = page.evaluate(TEXT_SIZES)
        if min(heights) < 11 * size / 100:
            faults[address] = heights
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults[address] = "it is wider than the window"
        if page.evaluate(OUTSIDE_THEIR_BADGE):
            faults[address] = "a badge is smaller than its text"
    assert not faults


def test_forced_colours_leave_marks_and_the_present_page_apart(
    browser: Browser, site: Site
) -> None:
    visitor = visit(
        browser, site, "admin", viewport={"width": 1280, "height": 900}, forced_colors="active"
    )
    visitor.open("/")
    borders = visitor.page.eval_on_selector_all(
        ".nav a",
        "all => all.map(a => [a.ariaCurrent === 'page', getComputedStyle(a).borderBottomColor])",
    )
    (present,) = [colour for is_present, colour in borders if is_present]
    assert present not in [colour for is_present, colour in borders if not is_present]
    marks = visitor.page.eval_on_selector_all(
        ".swatch, .vn", "all => all.map(mark => getComputedStyle(mark).backgroundColor)"
    )
    assert len({*marks}) > 1
    visitor.page.keyboard.press("Control+k")
    expect(visitor.page.locator("#palette [aria-selected=true]")).to_have_count(1)
    option = visitor.page.locator("#palette [role=option]").first
    chosen = option.screenshot()
    visitor.page.keyboard.press("ArrowDown")
    expect(option).not_to_have_attribute("aria-selected", "true")
    assert option.screenshot() != chosen
    visitor.open("/queue/")
    held = visitor.page.eval_on_selector_all(
        ".held-on", "all => all.map(box => getComputedStyle(box).backgroundColor)"
    )
    assert len({*held}) > 1
    visitor.page.context.close()


def test_notes_are_as_clear_as_text_for_readers_who_want_more_contrast(window: Visitor) -> None:
    page = window.page
    page.emulate_media(color_scheme="dark", contrast="more")
    window.open("/account/")
    assert page.evaluate(MUTED) == page.evaluate("getComputedStyle(document.body).color")
    page.emulate_media(color_scheme="null", contrast="null")


def test_texts_that_overlap_are_found(browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.set_content(
        "<p>above</p><p style='margin-top: -2em'>below</p><p style='margin-left: 380px'>beyond</p>"
        "<div style='overflow: hidden; width: 60px'><b style='margin-left: 90px'>cut</b></div>"
    )
    assert page.evaluate(OVERLAPS) == ["“beyond” is beyond the window", "“above” is over “below”"]
    page.close()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_the_login_page_is_accessible_too(scheme: str, browser: Browser, site: Site) -> None:
    page = browser.new_page(base_url=site.address, color_scheme=scheme)
    page.goto("/login/")
    assert page.evaluate(AUDIT) == []
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("guess")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Please enter a correct username")
    assert page.evaluate(AUDIT) == []
    page.close()


def test_an_admin_makes_an_account_and_looks_records_up(admin: Visitor) -> None:
    admin.open("/")
    page = admin.page
    page.get_by_text("admin", exact=True).click()
    page.get_by_role("link", name="Users and records").click()
    page.locator("#jobs-job").get_by_role("link").click()
    page.get_by_role("link", name=str(JOB["running"]), exact=True).click()
    expect(page.get_by_role("heading", name="View job")).to_be_visible()
    page.goto("/admin/auth/user/add/")
    page.get_by_label("Username").fill("grace")
    page.locator("#id_password1").fill("three-words-together")
    page.locator("#id_password2").fill("three-words-together")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was added successfully")).to_be_visible()
