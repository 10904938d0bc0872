"""A person's browser window on a seeded site."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.browser.page_site import Site
from tests.frontend.world import PASSWORD
from tests.support.starts import count_start

#: Script that returns the accessibility faults of a page.
AUDIT = (Path(__file__).parent / "audit.js").read_text().split("\n", 1)[1]
#: Script that returns the texts that are painted over each other or beyond the window's edges.
OVERLAPS = (Path(__file__).parent / "overlaps.js").read_text().split("\n", 1)[1]
#: Script that returns whether markup in a job's name or log has become part of the page.
HURT = """window.hurt !== undefined
    || document.querySelectorAll("main b, .legend b, svg b").length > 0"""
#: Script that returns what does not fit into the width of the window.
SIDEWAYS = (Path(__file__).parent / "sideways.js").read_text().split("\n", 1)[1]
#: Script that returns the colour that labels of charts have once they are drawn.
MUTED = """() => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = "var(--muted)";
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
}"""
WAIT_MS = 60_000


@dataclass
class Visitor:
    """A browser window of one person, and everything the browser complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str) -> None:
        self.page.goto(address)
        figures = self.page.locator("[data-figure]")
        expect(self.page.locator("[data-figure][data-drawn]")).to_have_count(
            figures.count(), timeout=WAIT_MS
        )


def visit(browser: Browser, site: Site, person: str, **options: Any) -> Visitor:
    """Open a window of a person, who types a password the first time only."""
    count_start("windows of a browser")
    login = site.logins.get(person)
    context = browser.new_context(base_url=site.address, storage_state=login, **options)
    visitor = Visitor(context.new_page())
    visitor.page.set_default_timeout(WAIT_MS)
    visitor.page.on(
        "console",
        lambda message: (
            visitor.complaints.append(message.text) if message.type == "error" else None
        ),
    )
    visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
    if login is None:
        _log_in(visitor.page, person)
        site.logins[person] = context.storage_state()
    return visitor


def _log_in(page: Page, person: str) -> None:
    page.goto("/login/")
    page.get_by_label("Username").fill(person)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/")
