"""Scenarios of the what-if page in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import AUDIT, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_scenarios_are_compared_under_prices_of_the_address(admin: Visitor) -> None:
    admin.open("/what-if/")
    page = admin.page
    for number, policy in enumerate(("fifo", "srtf"), start=1):
        if number > 1:
            page.get_by_text(f"Scenario {number}").click()
        page.locator(f"[name=policy-{number}]").select_option(policy)
    page.locator("[name=price-2-cpu]").fill("1.5")
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.go_back()
    expect(page.locator("[name=price-2-cpu]")).to_be_visible()
    expect(page.locator("[name=price-2-cpu]")).to_have_value("1.5")
    expect(page.locator("[name=price-3-cpu]")).to_be_hidden()
    page.get_by_role("button", name="Run simulation").click()
    expect(page.get_by_role("heading", name="What if: 2 scenarios")).to_be_visible()
    expect(page.get_by_text("It starts as soon as the worker is free.")).to_have_count(2)
    page.get_by_role("link", name="Change the scenarios").click()
    expect(page.locator("[name=policy-2]")).to_have_value("srtf")
    expect(page.locator("[name=price-2-cpu]")).to_have_value("1.5")
    admin.open("/what-if/1/")
    cost = page.get_by_role("row").filter(has_text="Cost of all accelerators")
    expect(cost.locator("td").nth(2)).to_have_text("\N{EN DASH}")
    page.get_by_label("Price of t4 per hour in scenario 1").fill("3")
    page.get_by_role("button", name="Recalculate costs").click()
    # 16 at 0.05 and 2 at 3 an hour, for 300 s.
    expect(cost.locator("td").nth(2)).to_contain_text("0.57")
    assert page.evaluate(AUDIT) == []
