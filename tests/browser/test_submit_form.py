"""The submission form in a real browser: help, checks, measuring, and late answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.browser.page_site import FAILING, FITTING, VALIDATION_ANSWER, Site
from tests.browser.visitor import AUDIT, WAIT_MS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_form_helps_checks_and_submits(ada: Visitor, tmp_path: Path) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    page.get_by_role("radio", name=re.compile("Tabular data")).check()
    expect(page.get_by_label("Name", exact=True)).to_have_value(re.compile("Tabular"))
    page.get_by_label("Global batch size").fill("64")
    page.get_by_label("Virtual nodes").fill("8")
    page.get_by_label("At most").fill("3")
    help_line = page.locator("#split-help")
    expect(help_line).to_have_text(
        "Each virtual node takes 8 of 64 examples. "
        "On 3 accelerators, each runs 2 or 3 of the 8 virtual nodes."
    )
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#check-result")).to_contain_text("Would")

    page.get_by_label("At most").fill("9")
    page.get_by_role("button", name="Check only").click()
    error = page.locator("[data-error-for=max_accelerators]")
    expect(error).to_contain_text("can use at most as many accelerators")
    expect(page.get_by_label("At most")).to_be_focused()
    expect(page.get_by_label("At most")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#check-result")).to_be_empty()

    # A chosen file stays chosen when something else was wrong.
    own = tmp_path / "mine.py"
    own.write_text("def build(settings):\n    return None, None\n")
    page.get_by_role("radio", name=re.compile("My own code")).check()
    page.locator("#id_code").set_input_files(own)
    page.get_by_role("button", name="Submit the job").click()
    expect(error).to_be_visible()
    page.get_by_label("At most").fill("2")
    page.get_by_label("Name", exact=True).fill("my own")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("my own")
    expect(page.get_by_text("mine.py")).to_be_visible()


def test_a_late_answer_does_not_interrupt_typing(ada: Visitor) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    page.get_by_label("At most").fill("9")
    held: list[Route] = []
    page.route(
        "**/jobs/new/",
        lambda route: held.append(route) if route.request.method == "POST" else route.continue_(),
    )
    with page.expect_request(lambda request: request.method == "POST"):
        page.get_by_role("button", name="Check only").click()
    name = page.get_by_label("Name", exact=True)
    name.fill("typed meanwhile")
    assert held
    held[0].continue_()
    expect(page.locator("[data-error-for=max_accelerators]")).to_contain_text("can use at most")
    expect(name).to_be_focused()


def test_code_is_measured_before_it_is_submitted(ada: Visitor, site: Site, tmp_path: Path) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    own = tmp_path / "measured.py"
    own.write_text("def build(settings):\n    return 'large', None\n")
    page.get_by_role("radio", name=re.compile("My own code")).check()
    name = page.get_by_label("Name", exact=True)
    expect(name).to_have_value("")  # not the template's
    expect(page.get_by_label("Settings", exact=True)).to_have_value("{}")
    page.locator("#id_code").set_input_files(own)
    expect(name).to_have_value("measured")
    name.fill("measured first")
    page.get_by_label("Global batch size").fill("20")
    page.get_by_label("Accelerator types").fill("cpu")
    result = page.locator("#check-result")

    page.get_by_role("button", name="Measure memory").click()
    expect(result).to_contain_text("Measuring")
    expect(result).to_be_in_viewport()
    site.run(VALIDATION_ANSWER.format(report=FAILING))
    expect(result).to_contain_text("line 2, in build", timeout=WAIT_MS)
    expect(page.locator("[data-error-for=code_from]")).to_have_text("ValueError: no data")
    assert page.evaluate(AUDIT) == []

    # The mistake is corrected; the new measurement says what fits, and one click takes it over.
    own.write_text("def build(settings):\n    return 'smaller', None\n")
    page.locator("#id_code").set_input_files(own)
    page.get_by_role("button", name="Measure memory").click()
    expect(page.locator("[data-error-for=code_from]")).to_be_hidden()
    expect(result).to_contain_text("Measuring")
    site.run(VALIDATION_ANSWER.format(report=FITTING))
    expect(result).to_contain_text("10 virtual nodes would fit", timeout=WAIT_MS)
    assert page.evaluate(AUDIT) == []
    page.get_by_role("button", name="Use 10 virtual nodes").click()
    expect(page.get_by_label("Virtual nodes", exact=True)).to_have_value("10")
    expect(page.locator("#split-help")).to_contain_text("Each virtual node takes 2 of 20 examples")

    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("measured first")
    expect(page.locator("#job-head [role=status]")).to_have_text("pending")
