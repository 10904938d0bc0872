"""The submission form in a real browser: help, checks, measuring, and late answers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.page_site import FAILING, FITTING, VALIDATION_ANSWER, Site
from tests.browser.visitor import AUDIT, WAIT_MS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def _cancel(page: Page) -> None:
    """Take the job of a page out of the queue, which is as it was for the tests of other files."""
    token = page.locator("[name=csrfmiddlewaretoken]").first.input_value()
    answer = page.request.post(f"{page.url}cancel/", form={"csrfmiddlewaretoken": token})
    assert "is cancelled" in answer.text()


def test_the_form_helps_checks_and_submits(ada: Visitor, tmp_path: Path) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    page.get_by_role("radio", name=re.compile("Tabular data")).check()
    expect(page.get_by_label("Name", exact=True)).to_have_value(re.compile("Tabular"))
    page.get_by_label("Global batch size").fill("64")
    page.get_by_label("Virtual nodes").fill("8")
    page.get_by_label("At most", exact=True).fill("3")
    help_line = page.locator("#split-help")
    expect(help_line).to_have_text(
        "Each virtual node takes 8 of 64 examples. "
        "On 3 accelerators, each runs 2 or 3 of the 8 virtual nodes."
    )
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#check-result")).to_contain_text("Would")

    page.get_by_label("At most", exact=True).fill("9")
    page.get_by_role("button", name="Check only").click()
    error = page.locator("[data-error-for=max_accelerators]")
    expect(error).to_contain_text("can use at most as many accelerators")
    expect(page.get_by_label("At most", exact=True)).to_be_focused()
    expect(page.get_by_label("At most", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#check-result")).to_be_empty()

    # A chosen file stays chosen when something else was wrong.
    own = tmp_path / "mine.py"
    own.write_text("def build(settings):\n    return None, None\n")
    page.get_by_role("radio", name=re.compile("My own code")).check()
    page.locator("#id_code").set_input_files(own)
    page.get_by_role("button", name="Submit the job").click()
    expect(error).to_be_visible()
    page.get_by_label("At most", exact=True).fill("2")
    page.get_by_label("Name", exact=True).fill("my own")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("my own")
    expect(page.get_by_role("link", name="mine.py", exact=True)).to_be_visible()
    _cancel(page)


def test_a_late_answer_does_not_interrupt_typing(ada: Visitor) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    page.get_by_label("At most", exact=True).fill("9")
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


def test_another_template_keeps_what_was_typed(ada: Visitor) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    name = page.get_by_label("Name", exact=True)
    settings = page.get_by_label("Settings", exact=True)
    batch, limit = page.get_by_label("Global batch size"), page.locator("[name=stop_limit]")
    digits = {"settings": settings.input_value(), "limit": limit.input_value()}
    name.fill("typed")
    batch.fill("96")
    settings.fill("{}")
    page.get_by_role("radio", name=re.compile("Tabular data")).check()
    expect(name).to_have_value("typed")
    expect(batch).to_have_value("96")
    expect(limit).not_to_have_value(digits["limit"])
    expect(settings).not_to_have_value("{}")
    name.fill("Tabular data, dense network")
    limit.fill("7")
    page.get_by_role("radio", name=re.compile("Digits, convolutional")).check()
    expect(name).to_have_value("Digits, convolutional network")
    expect(limit).to_have_value("7")
    expect(settings).to_have_value(digits["settings"])
    page.get_by_role("radio", name=re.compile("My own code")).check()
    expect(name).to_have_value("")
    name.fill("own")
    page.get_by_role("radio", name=re.compile("Tabular data")).check()
    expect(name).to_have_value("own")


@pytest.mark.nightly
def test_a_text_that_is_no_number_is_not_taken_for_an_empty_field(ada: Visitor) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    numbers = page.locator("#job-form input[type=number]")
    names = numbers.evaluate_all("all => all.map(one => one.name)")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.locator("[name=stop_kind]").select_option("metric")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    for name in names:
        field = page.locator(f"#job-form [name={name}]")
        if not field.is_visible():
            continue
        before = field.input_value()
        field.fill("")
        field.press_sequentially("1-")
        page.get_by_role("button", name="Check only").click()
        expect(page.locator(f"[data-error-for={name}]")).to_have_text("Give a number.")
        expect(field).to_be_focused()
        field.fill(before)
    assert "POST" not in asked
    assert len(names) > 10
    page.locator("[name=stop_kind]").select_option("epochs")
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#check-result")).to_contain_text("Would")


@pytest.mark.nightly
def test_a_file_that_was_saved_again_is_asked_for(ada: Visitor, tmp_path: Path) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    own = tmp_path / "mine.py"
    own.write_text("def build(settings)\n")
    page.get_by_role("radio", name=re.compile("My own code")).check()
    chosen = page.locator("#id_code")
    chosen.set_input_files(own)
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#form-errors")).to_be_visible()
    own.write_text("def build(settings):\n    return None, None\n")
    os.utime(own, (2e9, 2e9))  # the browser compares seconds
    page.get_by_role("button", name="Check only").click()
    error = page.locator("[data-error-for=code]")
    expect(error).to_have_text("mine.py was changed after it was chosen. Choose it again.")
    expect(chosen).to_be_focused()
    expect(page.locator("#form-errors-text")).to_be_empty()
    chosen.set_input_files(own)
    page.get_by_role("button", name="Check only").click()
    expect(error).to_be_hidden()
    expect(page.locator("#check-result")).not_to_be_empty()
    # The browser notes that it did not send the file; nothing else is wrong.
    ada.complaints[:] = [one for one in ada.complaints if "ERR_UPLOAD_FILE" not in one]


def test_back_brings_what_was_typed(ada: Visitor) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    expect(page.locator("#job-form details[open]")).to_have_count(0)
    page.get_by_role("radio", name=re.compile("Tabular data")).check()
    page.locator("[name=stop_kind]").select_option("metric")
    typed = {"name": "typed", "global_batch_size": "96", "tags": "a, b", "note": "why"}
    typed |= {"secrets": "S3_KEY", "stop_metric": "val_loss", "settings": "{}"}
    typed |= {"sweep_space": "dropout: [0.1, 0.2]", "tuning_space": "0.1", "forked_from": "1"}
    page.evaluate(
        "for (const one of document.querySelectorAll('#job-form details')) one.open = true"
    )
    for name, text in typed.items():
        page.locator(f"#job-form [name={name}]").fill(text)
    ada.open("/nodes/")
    page.go_back()
    expect(page.get_by_role("radio", name=re.compile("Tabular data"))).to_be_checked()
    for name, text in typed.items():
        expect(page.locator(f"#job-form [name={name}]")).to_have_value(text)
        expect(page.locator(f"#job-form [name={name}]")).to_be_visible()
    expect(page.locator("#selection-fields")).not_to_have_attribute("open", "")
    page.get_by_role("radio", name=re.compile("Digits, convolutional")).check()
    expect(page.locator("#job-form [name=name]")).to_have_value("typed")
    page.get_by_role("radio", name=re.compile("My own code")).check()
    page.locator("[name=task]").select_option("predict")
    ada.open("/nodes/")
    page.go_back()
    expect(page.locator("#id_code")).to_be_visible()
    expect(page.locator("[name=source_job]")).to_be_visible()
    expect(page.locator("#stop-section")).to_be_hidden()


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
    page.get_by_role("group", name="Accelerator types").get_by_label("cpu", exact=True).check()
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
    _cancel(page)


def test_a_sweep_is_previewed_submitted_and_sorted(ada: Visitor) -> None:
    page = ada.page
    page.goto("/jobs/new/?template=digits_cnn")
    page.get_by_text("Submit a job for each of several values of settings").click()
    space = page.get_by_label("Values of settings")
    space.fill("hidden_units: [16, 32]\nrate: [1]")
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("[data-error-for=sweep_space]")).to_contain_text("has no setting rate")
    expect(space).to_be_focused()
    space.fill("hidden_units: [16, 32]\nlearning_rate: {low: 1e-3, high: 1e-1, scale: log}")
    page.get_by_label("Random draws").fill("5")
    page.locator("#id_sweep_seed").fill("1")  # draws both values
    page.get_by_role("button", name="Check only").click()
    expect(page.get_by_role("heading", name="Would submit 5 jobs")).to_be_visible()
    expect(page.locator("#check-result tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/sweeps/*/")
    expect(page.locator("#sweep-jobs tbody tr")).to_have_count(5)
    page.get_by_role("link", name="hidden_units").click()
    page.wait_for_url("**order=setting.hidden_units")
    first = page.locator("#sweep-jobs tbody tr").first
    expect(first.locator("[data-label=hidden_units]")).to_have_text("16")
    page.get_by_role("link", name="hidden_units").click()
    page.wait_for_url("**order=-setting.hidden_units")
    expect(first.locator("[data-label=hidden_units]")).to_have_text("32")
    page.get_by_text("Cancel sweep", exact=True).click()
    page.get_by_role("button", name="Yes, cancel sweep").click()
    expect(page.locator("#sweep-tiles")).to_contain_text("5 cancelled")
    ada.open("/sweeps/1/")
    lines = page.locator("[data-figure=sweep] .scatterlayer .trace")
    expect(lines).to_have_count(3)
    page.get_by_role("link", name="Compare the best 4").click()
    page.wait_for_url("**/jobs/compare/?job=**")


def test_the_form_is_copied_as_it_is_now(ada: Visitor) -> None:
    page = ada.page
    ada.open("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("typed <b>now</b>")
    page.get_by_role("button", name="Copy as").click()
    expect(page.locator("#copy-yaml")).to_contain_text("name: typed <b>now</b>")
    expect(page.locator("#copy-form")).to_be_focused()
    # A browser with a window grants it to a click.
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("[data-copy=copy-curl]").click()
    expect(page.locator("[data-copy=copy-curl]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl ")
    # Browsers give pages without TLS no clipboard.
    page.evaluate(
        """() => {
            window.board = navigator.clipboard;
            Object.defineProperty(navigator, "clipboard", { value: undefined });
        }"""
    )
    page.locator("[data-copy=copy-yaml]").click()
    expect(page.locator("[data-copy=copy-yaml]")).to_have_text("Copied")
    expect(page.locator("[data-copy=copy-curl]")).to_have_text("Copy")
    assert page.evaluate("window.board.readText()").startswith("name: typed <b>now</b>")
    assert page.evaluate(AUDIT) == []
    page.get_by_label("Global batch size").fill("0")
    page.get_by_role("button", name="Copy as").click()
    expect(page.locator("[data-error-for=global_batch_size]")).to_be_visible()
    expect(page.locator("#copy-result")).to_be_empty()
