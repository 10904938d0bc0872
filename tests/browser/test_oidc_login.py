"""A login by OpenID Connect in a real browser: there and back, and the pages about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.page_site import Site, running_site
from tests.browser.visitor import AUDIT, WAIT_MS
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider, start_provider

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = start_provider()
    provider.subject = ""
    provider.people["s-hedy"] = {"preferred_username": "hedy"}
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Site]:
    settings = {
        "VIRTUALFLOW_OIDC_ISSUER": provider.address,
        "VIRTUALFLOW_OIDC_CLIENT_ID": CLIENT_ID,
        "VIRTUALFLOW_OIDC_CLIENT_SECRET": CLIENT_SECRET,
        "VIRTUALFLOW_OIDC_TITLE": "the lab",
        "VIRTUALFLOW_OIDC_USERS": "any",
    }
    directory = tmp_path_factory.mktemp("oidc")
    with running_site(directory, **settings) as site:
        yield site


@pytest.mark.parametrize("width", [390, 1440])
def test_a_person_logs_in_and_is_told_of_a_taken_name(
    width: int, browser: Browser, site: Site, provider: Provider
) -> None:
    size = {"width": width, "height": 900}
    page = browser.new_page(base_url=site.address, viewport=size)
    page.set_default_timeout(WAIT_MS)
    for name in ("hedy", "ada"):
        page.goto("/account/")
        assert page.evaluate(AUDIT) == []
        page.get_by_role("link", name="Log in with the lab").click()
        page.get_by_role("link", name=name, exact=True).click()
        if name == "hedy":
            expect(page.get_by_role("heading", name="hedy")).to_be_visible()
            expect(page.get_by_role("heading", name="Login with the lab")).to_be_visible()
            assert page.url == f"{site.address}/account/"
        else:
            expect(page.get_by_role("heading", name="The name “ada” is taken")).to_be_visible()
        assert page.evaluate(AUDIT) == []
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        page.context.clear_cookies()
    page.close()
