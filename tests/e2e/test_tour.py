"""The pictures of docs/tour.md, taken on a running product.

They are written to the folder in TOUR_IMAGES: `TOUR_IMAGES=docs/images python -m pytest -m nightly
tests/e2e/test_tour.py`. Otherwise the test only sees that each can be taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.stack import ADMIN, PASSWORD, Stack

pytestmark = [
    pytest.mark.whole_stack,
    pytest.mark.browser,
    pytest.mark.nightly,
    pytest.mark.timeout(1200),
]

TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour.md"
DEADLINE_MS = 240_000


class Tour:
    """A browser window that takes the pictures which the page names."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.taken: list[str] = []

    def take(self, name: str) -> None:
        """Take what the window shows, once its pointer is out of the way."""
        self.page.mouse.move(0, 0)
        self.page.screenshot(path=self.folder / f"{name}.jpg", type="jpeg", quality=75)
        self.taken.append(f"images/{name}.jpg")


@pytest.fixture
def tour(stack: Stack, chromium: str, tmp_path: Path) -> Iterator[Tour]:
    folder = Path(os.environ.get("TOUR_IMAGES", tmp_path))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(
            base_url=str(stack.rest.base_url).removesuffix("/api/v1/"),
            viewport={"width": 1280, "height": 800},
        )
        page.set_default_timeout(60_000)
        yield Tour(page, folder)
        browser.close()


def submit(stack: Stack, name: str, template: str, epochs: int, **fields: Any) -> int:
    body = {"name": name, "template": template, "stop": {"kind": "epochs", "limit": epochs}}
    return int(stack.post("jobs/", body | fields, expect=201)["id"])


def test_every_picture_can_be_taken(stack: Stack, tour: Tour) -> None:
    page = tour.page
    page.goto("/")
    page.get_by_label("Username").fill(ADMIN)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Cluster", level=1)).to_be_visible()

    rates = [
        submit(stack, f"Digits, rate {rate}", "digits_cnn", 4, settings={"learning_rate": rate})
        for rate in (0.001, 0.01)
    ]
    for job in rates:
        stack.wait_for("its end", lambda job=job: is_finished(stack, job), DEADLINE_MS / 1000)

    page.goto("/jobs/new/?template=residual")
    page.get_by_label("Name").fill("Residual, four accelerators")
    tour.take("submit")

    patient = submit(stack, "Digits, patient", "digits_cnn", 2000, max_accelerators=4, priority=100)
    page.goto(f"/jobs/{patient}/")
    status = page.locator("#job-head [role=status]")
    expect(status).to_contain_text("running", timeout=DEADLINE_MS)
    urgent = submit(stack, "Tabular, urgent", "tabular", 2000, max_accelerators=2, priority=300)
    waiting = submit(stack, "Residual, can wait", "residual", 2000, min_accelerators=4, priority=50)
    expect(page.locator("#resizes")).to_contain_text("4 → ", timeout=DEADLINE_MS)
    expect(page.locator("#resizes")).to_contain_text("= equal", timeout=DEADLINE_MS)
    for chart in ("allocation", "throughput", "loss"):
        expect(page.locator(f"[data-figure={chart}] .js-line").first).to_be_visible()
    tour.take("job")

    page.goto(f"/jobs/{urgent}/")
    expect(status).to_contain_text("running", timeout=DEADLINE_MS)
    page.goto("/")
    expect(page.get_by_text("Tabular, urgent").first).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    tour.take("overview")

    page.goto("/queue/")
    row = page.locator(f"#queue [data-key='job-{waiting}']")
    row.get_by_label(f"Priority of job {waiting}").fill("900")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.locator("#changes-preview")).to_contain_text("900")
    page.evaluate("window.scrollTo(0, 0)")
    tour.take("queue")

    page.goto("/nodes/")
    expect(page.get_by_text("node-a").first).to_be_visible()
    tour.take("nodes")

    page.goto(f"/jobs/compare/?job={rates[0]}&job={rates[1]}")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    tour.take("compare")

    shown = re.findall(r"\]\((images/[a-z_]+\.jpg)\)", TOUR.read_text())
    assert sorted(tour.taken) == sorted(shown)


def is_finished(stack: Stack, job: int) -> bool:
    status = stack.get(f"jobs/{job}/")["status"]
    assert status not in ("failed", "invalid", "cancelled")
    return status == "finished"
