"""The seeded site, a browser, and people who visit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.page_site import Site, running_site
from tests.browser.visitor import WAIT_MS, Visitor, visit

expect.set_options(timeout=WAIT_MS)


# Not for the session: while Playwright runs, Django takes its thread for that of an event loop, and
# refuses every query of other folders on the same worker.
@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("pages")) as site:
        yield site


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def window(browser: Browser, site: Site) -> Iterator[Visitor]:
    """Give a window of an admin that tests share, of whatever size; it may complain.

    It has a session of its own: it stays open, and messages are shown once a session.
    """
    login = site.logins.pop("admin", None)
    visitor = visit(browser, site, "admin")
    if login is None:
        del site.logins["admin"]
    else:
        site.logins["admin"] = login
    yield visitor
    visitor.page.context.close()


def _visit_without_complaints(browser: Browser, site: Site, person: str) -> Iterator[Visitor]:
    """Give a window; what the browser complained about until the end fails the test."""
    visitor = visit(browser, site, person, viewport={"width": 1280, "height": 900})
    yield visitor
    visitor.page.context.close()
    assert visitor.complaints == []


@pytest.fixture
def admin(browser: Browser, site: Site) -> Iterator[Visitor]:
    yield from _visit_without_complaints(browser, site, "admin")


@pytest.fixture
def ada(browser: Browser, site: Site) -> Iterator[Visitor]:
    yield from _visit_without_complaints(browser, site, "ada")
