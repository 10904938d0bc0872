"""The queue in a real browser: reordered by keys, buttons and drag."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from tests.browser.page_site import Site
from tests.browser.visitor import AUDIT, WAIT_MS, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


#: Takes a handle, moves to the end of the page and goes, beside what drags already.
_ANOTHER_FINGER = """() => {
    const handle = [...document.querySelectorAll(".move-drag")].at(-1);
    for (const kind of ["pointerdown", "pointermove", "pointerup"]) {
        handle.dispatchEvent(
            new PointerEvent(kind, { pointerId: 99, clientY: innerHeight, bubbles: true })
        );
    }
}"""


def test_controls_of_the_queue_are_in_view_side_by_side(admin: Visitor) -> None:
    admin.open("/queue/")
    for width in (390, 701, 768, 1024, 1360, 1361, 1440):
        admin.page.set_viewport_size({"width": width, "height": 900})
        faults = admin.page.evaluate(
            """() => [...document.querySelectorAll("#queue .cell-move, #queue .cell-change")]
              .filter((cell) => cell.closest("tbody") && (() => {
                const panel = document.getElementById("queue").getBoundingClientRect();
                const parts = cell.querySelectorAll("input:not([type=hidden]), select, button");
                const boxes = [...parts].map((part) => part.getBoundingClientRect());
                return boxes.some((box, place) => box.right > panel.right || box.width < 24
                  || box.top > boxes[0].bottom || boxes[place - 1]?.right > box.left);
              })()).length"""
        )
        assert (width, faults) == (width, 0)
    assert admin.page.locator("#queue .cell-change").count() > 1


def _queue(page: Page) -> dict[str, str]:
    """Read the numbers of the jobs in the order of their rows, each with its pending change."""
    rows = page.locator("#queue tbody tr").all()
    return {
        (row.get_attribute("data-key") or "").removeprefix("job-"):
            row.locator(".change").inner_text() for row in rows
    }  # fmt: skip


def _moved(page: Page, said: str) -> dict[str, str]:
    expect(page.locator("#changes-said")).to_contain_text(said)
    return _queue(page)


def test_the_queue_is_reordered_by_keys_and_drag_and_another_admin_sees_it(
    admin: Visitor, browser: Browser, site: Site
) -> None:
    site.logins.pop("admin", None)  # a session of its own: what was done is shown once a session
    other = visit(browser, site, "admin")
    other.open("/queue/")
    expect(other.page.locator("#live-state")).to_have_text("Live")
    admin.open("/queue/")
    page = admin.page
    before = ["3", "2", "4", "6", "7", "5"]  # 300, four times 100, 50
    assert [*_queue(page)][:6] == before
    handle = page.get_by_role("button", name="Move job 5", exact=True)
    handle.focus()
    for _ in range(4):
        handle.press("ArrowUp")
    # The middle of 300 and 100, and without a trace of the places between.
    found = _moved(page, "Job 5: 50 → 200, place 2 of")
    assert [*found][:6] == ["3", "5", "2", "4", "6", "7"]
    assert {job: text for job, text in found.items() if text} == {"5": "50 → 200"}
    expect(handle).to_be_focused()
    # No number is free between 2 and 4: the jobs above, of which there are fewer, are raised.
    page.get_by_role("button", name="Move job 6 up").click()
    found = _moved(page, "Also changed, since no number is free between its neighbours: #2.")
    assert [*found][:6] == ["3", "5", "2", "6", "4", "7"]
    grip, target = (
        place.bounding_box()
        for place in (
            page.get_by_role("button", name="Move job 7", exact=True),
            page.locator("[data-key=job-3]"),
        )
    )
    assert grip
    assert target
    page.mouse.move(grip["x"] + 9, grip["y"] + 9)
    page.mouse.down()
    page.evaluate(_ANOTHER_FINGER)
    page.mouse.move(grip["x"] + 9, target["y"] + 3, steps=4)
    page.mouse.up()
    found = _moved(page, "Job 7: 100 → 301, place 1 of")
    assert [*found][:6] == ["7", "3", "5", "2", "6", "4"]
    changes = {"7": "100 → 301", "5": "50 → 200", "2": "100 → 101", "6": "100 → 101"}
    assert {job: text for job, text in found.items() if text} == changes
    expect(page.locator("#changes-count")).to_contain_text("4 changes, not applied")
    page.get_by_role("button", name="Move job 7", exact=True).press("Enter")
    heading = page.get_by_role("heading", name="Change 4 jobs?")
    expect(heading).to_be_focused()
    assert _queue(page) == found
    assert page.evaluate(AUDIT) == []
    # A preview is of what it was made for.
    page.get_by_role("button", name="Move job 4 up").click()
    expect(heading).to_be_hidden()
    page.get_by_role("button", name="Move job 4 down").click()
    expect(heading).to_be_visible()
    preview = page.locator("#changes-preview")
    preview.get_by_label("Reason").fill("deadline")
    preview.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("4 jobs reprioritised.")).to_be_visible()
    first = other.page.locator("#queue tbody tr").first
    expect(first).to_contain_text("weekend run", timeout=WAIT_MS)
    expect(other.page.get_by_label("Priority of job 7")).to_have_value("301")
    page.get_by_role("button", name="Undo the last action").click()
    expect(page.get_by_label("Priority of job 5")).to_have_value("50")
    assert [*_queue(page)][:6] == before
    expect(page.locator("#changes-count")).to_have_text("No changes")  # the script has begun
    page.set_viewport_size({"width": 1280, "height": 600})
    page.get_by_label("Priority of job 5").fill("650")
    # At the end of the page the button scrolls with the rows, which are sorted by the click.
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("heading", name="Change 1 job?")).to_be_focused()
    assert [*_queue(page)][:2] == ["5", "3"]
    other.page.context.close()


@pytest.mark.nightly
def test_the_browser_asks_before_changes_of_the_queue_are_lost(admin: Visitor) -> None:
    page = admin.page
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    admin.open("/queue/")
    changed = page.locator("#changes-count")
    expect(changed).to_have_text("No changes")  # the script has begun
    page.get_by_label("Priority of job 5").fill("60")
    expect(changed).to_contain_text("not applied")
    page.get_by_role("link", name="Nodes").click()
    expect(changed).to_contain_text("not applied")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("heading", name="Change 1 job?")).to_be_focused()
    page.get_by_role("link", name="#5").first.click()
    expect(changed).to_contain_text("not applied")
    page.locator("#changes-preview").get_by_role("link", name="Discard").click()
    expect(changed).to_have_text("No changes")
    page.get_by_role("link", name="Nodes").click()
    page.wait_for_url("**/nodes/")
    assert asked == ["beforeunload", "beforeunload"]


def test_the_home_key_moves_a_job_to_the_top_of_the_queue(admin: Visitor) -> None:
    admin.open("/queue/")
    last = admin.page.locator("#queue tbody tr").last
    number = (last.get_attribute("data-key") or "").removeprefix("job-")
    admin.page.get_by_role("button", name=f"Move job {number}", exact=True).press("Home")
    expect(admin.page.get_by_role("heading", name="Change 1 job?")).to_be_focused()
    expect(admin.page.locator("#queue tbody tr").first).to_have_attribute(
        "data-key", f"job-{number}"
    )
    assert admin.page.evaluate(AUDIT) == []
