"""The main job as a person lives it: everything by mouse and keyboard in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.stack import ADMIN, PASSWORD, Stack

pytestmark = [pytest.mark.whole_stack, pytest.mark.browser, pytest.mark.timeout(600)]

CODE = Path(__file__).parent / "paced_job.py"
#: Here it takes about 2 s on two idle cores, shrinking the other job included.
FOLLOW_MS = 60_000
START_MS = 150_000
FINISH_MS = 150_000
#: So many that the first job trains until it is cancelled, however slow the machine.
EPOCHS_WITHOUT_END = 20_000


@pytest.fixture
def page(stack: Stack, chromium: str) -> Iterator[Page]:
    """Open a browser window on the site; an error on its console fails the test."""
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(base_url=str(stack.rest.base_url).removesuffix("/api/v1/"))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        browser.close()
    assert not complaints, "\n".join(complaints)


def log_in(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Username").fill(ADMIN)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Cluster", level=1)).to_be_visible()


def status_shows(page: Page, word: str, within_ms: int) -> None:
    expect(page.locator("#job-head [role=status]")).to_contain_text(word, timeout=within_ms)


def fill_in_own_code(page: Page, name: str, go_file: Path) -> None:
    """Fill in what a paced job needs; it trains slowly until its go file is there."""
    page.get_by_role("radio", name=re.compile("My own code")).check()
    page.locator("#id_code").set_input_files(CODE)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Global batch size").fill("16")
    page.get_by_label("Virtual nodes").fill("8")
    page.get_by_role("textbox", name="Settings").fill(
        json.dumps({"go_file": str(go_file), "pause_s": 0.2})
    )


def test_submit_wait_resize_reprioritise_finish_and_cancel(stack: Stack, page: Page) -> None:
    log_in(page)

    # Validated, then on everything there is.
    page.get_by_role("link", name="Submit").first.click()
    fill_in_own_code(page, "first of all", stack.directory / "go-first")
    page.get_by_label("Limit", exact=True).fill(str(EPOCHS_WITHOUT_END))
    page.get_by_label("At most", exact=True).fill("4")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    first = page.url.rstrip("/").rpartition("/")[2]
    expect(page.get_by_text("Code validated").first).to_be_visible(timeout=START_MS)
    status_shows(page, "running", START_MS)

    # Less important: it has to wait, and the page says for what.
    go_file = stack.directory / "go-story"
    page.goto("/jobs/new/")
    fill_in_own_code(page, "second", go_file)
    page.get_by_label("Stops after").select_option("steps")
    page.get_by_label("Limit", exact=True).fill("80")
    page.get_by_label("At most", exact=True).fill("2")
    page.get_by_label("Priority").fill("50")
    # Measured first, so that it is not built again when it is submitted.
    page.get_by_role("button", name="Measure memory").click()
    expect(page.locator("#check-result")).to_contain_text("Measured:", timeout=START_MS)
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_text("before it was submitted").first).to_be_visible()
    second = page.url.rstrip("/").rpartition("/")[2]
    status_shows(page, "pending", START_MS)
    expect(page.locator("#job-why")).to_contain_text(
        "4 of 4 held by 1 job of higher priority", timeout=30_000
    )

    # An admin turns that round; both rows follow without a reload.
    page.goto("/queue/")
    row = page.locator(f"#queue [data-key='job-{second}']")
    row.get_by_label(f"Priority of job {second}").fill("300")
    page.get_by_role("button", name="Preview", exact=True).click()
    page.locator("#changes-preview").get_by_label("Reason").fill("the paper is due")
    page.get_by_role("button", name="Apply").click()
    expect(row).to_contain_text(re.compile(r"\b2\s+of 1 to 2"), timeout=FOLLOW_MS)
    other = page.locator(f"#queue [data-key='job-{first}']")
    expect(other).to_contain_text(re.compile(r"\b2\s+of 1 to 4"), timeout=FOLLOW_MS)

    # The second trains to its end and leaves its results.
    page.goto(f"/jobs/{second}/")
    status_shows(page, "running", START_MS)
    go_file.touch()
    status_shows(page, "finished", FINISH_MS)
    for name in ("model.keras", "history.csv", "metrics.json", "log.txt"):
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    page.screenshot(path=stack.directory / "finished.png", full_page=True)
    with page.expect_download() as download:
        page.get_by_role("link", name="history.csv").click()
    assert "mae" in Path(download.value.path()).read_text().splitlines()[0]

    # The first shrank without a restart and grows again; then it is stopped.
    page.goto(f"/jobs/{first}/")
    expect(page.locator("#resizes")).to_contain_text("4 → 2")
    expect(page.locator("#resizes")).to_contain_text("2 → 4", timeout=FOLLOW_MS)
    expect(page.locator("#resizes")).to_contain_text("= equal")
    for chart in ("allocation", "throughput", "loss"):
        expect(page.locator(f"[data-figure={chart}] .js-line").first).to_be_visible()
    page.get_by_text("Cancel job", exact=True).click()
    page.get_by_role("button", name=f"Yes, cancel job #{first}").click()
    status_shows(page, "cancelled", FINISH_MS)
