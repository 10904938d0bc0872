"""Every page in a real browser: drawn, live, accessible, quiet on the console."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.page_site import FITTING, VALIDATION_ANSWER, Site
from tests.browser.visitor import AUDIT, OVERLAPS, WAIT_MS, Visitor, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: Names of seeded jobs are looked up by the order in which they were made.
JOB = {
    "finished": 1,
    "running": 2,
    "urgent": 3,
    "script": 4,
    "pending": 5,
    "paused": 7,
    "failed": 8,
}
PAGES = [
    "/", "/jobs/", "/jobs/2/", "/jobs/4/", "/jobs/5/", "/jobs/8/", "/jobs/new/",
    "/jobs/new/?from=1", "/nodes/", "/queue/", "/account/", "/nowhere/",
    "/account/password/", "/account/notifications/", "/account/notifications/1/", "/audit/",
    "/jobs/compare/?job=1&job=2&job=3&smooth=0.9", "/jobs/?metric=accuracy&order=-metric",
    "/jobs/2/copy/", "/what-if/?policy-2=fifo", "/what-if/1/?price-1:t4=2", "/what-if/2/",
    "/nodes/1/?change=drain", "/nodes/maintenance/?nodes=1", "/timeline/", "/sweeps/1/", "/sweeps/",
    "/projects/", "/projects/1/", "/usage/?by=user",
]  # fmt: skip
#: Script that returns whether markup in a job's name or log has become part of the page.
HURT = """window.hurt !== undefined
    || document.querySelectorAll("main b, .legend b, svg b").length > 0"""
NEWCOMERS_PAGES = ["/", "/jobs/", "/jobs/new/", "/nodes/", "/projects/", "/usage/"]
#: Width, scheme and which of the pages: each of them once, where room is scarce; all of them in
#: every look in `make nightly`.
LOOKS = [
    (390, "light", slice(0, None, 2)),
    (390, "dark", slice(1, None, 2)),
    *(
        pytest.param(width, scheme, slice(None), marks=pytest.mark.nightly)
        for width in (390, 1920)
        for scheme in ("light", "dark")
    ),
]

#: Code for `Site.run`: new text in the log of a job's first trainer.
LOG_ADD = """
from django.utils import timezone
from jobs import nudges
from jobs.models import LogChunk
LogChunk.objects.create(
    job_id={job}, slot=0, offset=LogChunk.objects.filter(job={job}).count(), size_bytes=1,
    text={text!r}, at=timezone.now(),
)
nudges.jobs_changed([{job}])
"""
_HEAR_SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize(("width", "scheme", "pages"), LOOKS)
def test_every_page_is_drawn_accessible_and_fits(
    width: int, scheme: str, pages: slice, browser: Browser, site: Site
) -> None:
    size = {"width": width, "height": 844 if width < 500 else 1080}
    for person in ("admin", "newcomer"):
        visitor = visit(browser, site, person, viewport=size, color_scheme=scheme)
        faults = {}
        for address in (PAGES if person == "admin" else NEWCOMERS_PAGES)[pages]:
            visitor.open(address)
            found = visitor.page.evaluate(AUDIT) + visitor.page.evaluate(OVERLAPS)
            if visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append("it is wider than the window")
            if visitor.page.evaluate(HURT):
                found.append("a name or a log is read as HTML")
            if found:
                faults[address] = found
        visitor.page.context.close()
        assert not faults
        # The browser itself notes that a page was not there.
        assert [c for c in visitor.complaints if "404 (Not Found)" not in c] == []


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


def test_charts_show_what_the_tables_beside_them_say(admin: Visitor) -> None:
    admin.open("/")
    allocation = admin.page.locator("[data-figure=allocation]")
    expect(allocation.locator(".scatterlayer .trace")).to_have_count(4)  # three jobs, capacity
    allocation.get_by_text("as a table").click()
    rows = allocation.locator("tbody tr")
    expect(rows.last).to_contain_text("3")
    admin.open(f"/jobs/{JOB['running']}/")
    for name, num_traces in (("loss", 2), ("throughput", 1), ("allocation", 2)):
        figure = admin.page.locator(f"[data-figure={name}]")
        expect(figure.locator(".scatterlayer .trace")).to_have_count(num_traces)
        figure.get_by_text("as a table").click()
        expect(figure.locator("tbody tr").nth(3)).to_be_visible()
    admin.page.get_by_label("smoothing").select_option("strong")
    admin.page.wait_for_url("**smoothing=0.9**")
    loss = admin.page.locator("[data-figure=loss]")
    expect(loss.locator(".scatterlayer .trace")).to_have_count(4)  # pale ones below smooth ones


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


def _hover_text(visitor: Visitor) -> str:
    """Text at the pointer over the newest part of the accelerators' chart.

    The pointer moves until the text shows, since a chart that is drawn anew loses it.
    """
    chart = visitor.page.locator("[data-figure=allocation]")
    labels = chart.locator(".hoverlayer text")
    for num_moves in range(WAIT_MS // 1_000):
        box = chart.locator(".draglayer .nsewdrag").first.bounding_box()
        if box:
            x = box["x"] + box["width"] - 3 - num_moves % 2
            visitor.page.mouse.move(x, box["y"] + box["height"] / 2)
        try:
            expect(labels.first).to_be_visible(timeout=1_000)
        except AssertionError:
            continue
        if text := " ".join(labels.all_text_contents()):
            return text
    raise AssertionError("no text at the pointer")


def test_the_pointer_names_holders_of_accelerators_alone_as_text(admin: Visitor) -> None:
    admin.open("/")
    legend = admin.page.locator("[data-figure=allocation] .legend")
    expect(legend).to_contain_text("#4 <script>window.hurt = 1</sc")
    text = _hover_text(admin)
    assert re.search(r"[1-9]\d* · #\d+ ", text)
    assert not re.search(r"\b0 · ", text)
    assert "<script>window.hurt = 1</sc" in text
    assert not admin.page.evaluate(HURT)
    drawing = admin.page.locator("[data-figure=allocation] .main-svg").first
    expect(drawing).to_have_attribute("width", re.compile(r"^[789]\d\d"))
    admin.page.set_viewport_size({"width": 420, "height": 900})
    expect(drawing).to_have_attribute("width", re.compile(r"^3\d\d"))


def test_ticked_jobs_are_compared_and_smoothed(admin: Visitor) -> None:
    admin.open("/jobs/")
    page = admin.page
    first, last = (
        page.get_by_label(f"Choose job #{JOB[name]}", exact=True) for name in ("script", "running")
    )
    page.get_by_label("Choose all on this page").check()
    expect(page.locator('#jobs [name="job"]:not(:checked)')).to_have_count(0)
    expect(page.locator("#bulk")).to_be_in_viewport(ratio=1)
    page.get_by_label("Choose all on this page").uncheck()
    first.click()
    last.click(modifiers=["Shift"])
    expect(page.locator("#bulk-count")).to_have_text("3 jobs ticked")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/jobs/compare/?job=4&job=3&job=2")
    loss = page.locator(".chart").filter(has_text="#2 digits").first
    lines = loss.locator(".scatterlayer .trace")
    expect(lines.first).to_be_attached()
    num_lines = lines.count()
    page.get_by_label("Smoothing").select_option("0.9")
    page.get_by_label("Against").select_option("time")
    page.get_by_role("button", name="Show").click()
    expect(lines).to_have_count(2 * num_lines)  # each pale line has its smoothed one
    expect(loss.locator(".xtitle")).to_have_text(re.compile("time since the start in"))
    assert admin.complaints == []


def test_times_are_in_the_readers_zone(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada", timezone_id="Asia/Tokyo", locale="en-GB")
    visitor.open(f"/jobs/{JOB['running']}/")
    time = visitor.page.locator("#spec time").first
    expected = time.evaluate(
        "(e) => new Date(e.dateTime).toLocaleTimeString('en-GB', {timeZone: 'Asia/Tokyo'})"
    )
    expect(time).to_have_text(re.compile(rf"{expected}$"))
    assert "GMT+9" in (time.get_attribute("title") or "")
    tick = visitor.page.locator("[data-figure=throughput] .xtick text").first.text_content()
    start = visitor.page.locator("#events time").nth(2).inner_text()
    assert _hour(tick) in (_hour(start), (_hour(start) + 1) % 24)
    _choose_utc(visitor.page)
    visitor.open(visitor.page.url)
    expect(visitor.page.locator("#zone-note")).to_have_text("Times are in UTC.")
    expect(time).to_have_text(re.compile(rf"{time.get_attribute('datetime')[11:19]}$"))
    visitor.page.context.close()


def _choose_utc(page: Page) -> None:
    """Choose UTC in the menu: times and charts change at once, by nine hours from Tokyo's."""
    time = page.locator("#spec time").first
    tick = page.locator("[data-figure=throughput] .xtick text").first
    hour = _hour(tick.text_content())
    expect(page.locator("#zone-note")).to_have_text("Times are in your time zone, Asia/Tokyo.")
    page.locator(".top details.menu summary").click()
    with page.expect_response("**/account/zone/"):
        page.get_by_role("button", name="UTC", exact=True).click()
    expect(page.locator("#zone-note")).to_have_text("Times are in UTC.")
    expect(time).to_have_attribute("title", re.compile(r"UTC$"))
    expect(tick).to_have_text(re.compile(rf"{(hour - 9) % 24:02}:"))


def _hour(text: str | None) -> int:
    """Read the hour of a time, which has its date beside it where that is another day's."""
    found = re.search(r"(\d\d):\d\d", text or "")
    assert found, text
    return int(found[1])


def test_a_page_shows_its_changes_alone_and_keeps_its_place(ada: Visitor, site: Site) -> None:
    """A change of another user's job makes the page request nothing."""
    page = ada.page
    page.add_init_script(_HEAR_SHIFTS)
    ada.open(f"/jobs/{JOB['running']}/")
    _hears_the_stream(page)
    page.evaluate("window.isSamePage = true")
    page.locator("#priority-title").scroll_into_view_if_needed()
    page.get_by_label("Reason").fill("half-typed")
    scrolled, shifts = page.evaluate("[scrollY, window.shifts]")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    site.run(_EVENT.format(job_id=JOB["urgent"], message="Not for ada"))
    site.run(_EVENT.format(job_id=JOB["running"], message="Something new"))
    expect(page.locator("#events")).to_contain_text("Something new", timeout=WAIT_MS)
    assert asked.count(page.url) == 1
    expect(page.get_by_label("Reason")).to_have_value("half-typed")
    expect(page.get_by_label("Reason")).to_be_focused()
    assert page.evaluate("window.isSamePage")
    assert page.evaluate("scrollY") == scrolled
    assert page.evaluate("window.shifts") - shifts < 0.05


def _hears_the_stream(page: Page) -> None:
    """Wait until the page is connected and has asked once more since then."""
    expect(page.locator("#live-state")).to_have_text("Live", timeout=WAIT_MS)
    expect(page.locator("body")).to_have_attribute("data-refreshed", "live", timeout=WAIT_MS)


_EVENT = """
from django.utils import timezone
from jobs import nudges
from jobs.models import Event
Event.objects.create(job_id={job_id}, kind="note", message="{message}", at=timezone.now())
nudges.jobs_changed([{job_id}])
"""


_SOON = """
from django.contrib.auth.models import User
from tests.frontend.world import make_job
print(make_job(User.objects.get(username="ada"), "soon").pk)
"""
_BEGUN = """
from jobs import nudges
from jobs.models import Job
from tests.frontend.world import give_history
give_history(Job.objects.get(pk={job_id}), [], [0])
nudges.jobs_changed([{job_id}])
"""
_GONE = """
from jobs.models import Job
Job.objects.get(pk={job_id}).delete()
"""


def test_charts_come_when_a_job_begins(ada: Visitor, site: Site) -> None:
    job_id = int(site.run(_SOON))
    try:
        ada.open(f"/jobs/{job_id}/")
        _hears_the_stream(ada.page)
        expect(ada.page.locator("[data-figure]")).to_have_count(0)
        site.run(_BEGUN.format(job_id=job_id))
        loss = ada.page.locator("[data-figure=loss]")
        expect(loss.locator(".scatterlayer .trace")).not_to_have_count(0)
        expect(ada.page.get_by_label("smoothing")).to_be_visible()
    finally:
        ada.page.goto("/account/")
        site.run(_GONE.format(job_id=job_id))


def test_without_a_stream_the_page_asks_every_few_seconds(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada")
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort("connectionrefused")

    visitor.page.route(f"{site.stream_address}/**", refuse)
    visitor.open(f"/jobs/{JOB['running']}/")
    expect(visitor.page.locator("#live-state")).to_have_text("Every few seconds")
    assert refused
    site.run(_EVENT.format(job_id=JOB["running"], message="Found by asking"))
    expect(visitor.page.locator("#events")).to_contain_text("Found by asking", timeout=WAIT_MS)
    visitor.page.context.close()
    # The browser notes that nobody listens on the stream's port; nothing else is wrong.
    assert [c for c in visitor.complaints if "ERR_CONNECTION_REFUSED" not in c] == []


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
    page.get_by_label("Priority of job 5").fill("650")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("heading", name="Change 1 job?")).to_be_focused()
    assert [*_queue(page)][:2] == ["5", "3"]
    other.page.context.close()


def test_the_log_is_searched_and_read_at_a_match(ada: Visitor) -> None:
    ada.open(f"/jobs/{JOB['running']}/")
    log, note = ada.page.locator("#log"), ada.page.locator("#log-note")
    expect(log).to_contain_text("trainer 1")
    ada.page.get_by_label("Search the log").fill("step 77 ")
    expect(note).to_contain_text("2 matching lines")
    expect(log.locator("mark")).to_have_text(["step 77 ", "step 77 "])
    expect(log.locator(".is-context")).to_have_count(12)
    ada.page.get_by_label("Trainer", exact=True).select_option("1")
    expect(note).to_contain_text("1 matching line ")
    log.get_by_role("link", name="trainer 1").click()
    expect(log.locator(".is-target")).to_contain_text("step 77 ")
    expect(log.locator(".is-target")).to_be_in_viewport()
    expect(log.locator("time").first).to_be_hidden()
    ada.page.get_by_role("button", name="Times").click()
    expect(log.locator("time").first).to_be_visible()
    ada.page.get_by_role("button", name="To the end").click()
    expect(log).to_contain_text("a line with <script>window.hurt = 1</script>")
    with ada.page.expect_download() as download:
        ada.page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == f"job-{JOB['running']}.log"


def test_an_address_leads_to_a_line_of_the_code(ada: Visitor) -> None:
    ada.open(f"/jobs/{JOB['running']}/#L2")
    line = ada.page.locator("#L2")
    expect(line).to_be_in_viewport()
    expect(line.get_by_role("link", name="Line 2")).to_be_visible()
    assert ada.page.evaluate(AUDIT) == []


def test_the_log_follows_pauses_and_counts_new_lines(ada: Visitor, site: Site) -> None:
    def say(*texts: str) -> None:
        site.run(LOG_ADD.format(job=JOB["script"], text="".join(f"{text}\n" for text in texts)))

    say(*(f"line {i}" for i in range(100)))
    ada.open(f"/jobs/{JOB['script']}/")
    log, pause = ada.page.locator("#log"), ada.page.locator("#log-pause")
    expect(ada.page.locator("#live-state")).to_have_text("Live")
    say("heard at once")
    expect(log).to_contain_text("heard at once")
    pause.click()
    say("WARNING: first", "second")
    expect(pause).to_have_text("Resume (2 new)")
    expect(log).not_to_contain_text("second")
    pause.click()
    expect(log).to_contain_text("second")
    expect(log.locator("[data-level='warning'] .log-text")).to_have_text(["WARNING: first"])
    log.evaluate("box => { box.scrollTop = 0; }")
    expect(pause).to_have_text("Resume")
    say("below")
    expect(pause).to_have_text("Resume (1 new)")
    log.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(pause).to_have_text("Pause")
    expect(log).to_contain_text("below")


def test_scenarios_are_compared_under_prices_of_the_address(admin: Visitor) -> None:
    admin.open("/what-if/")
    page = admin.page
    for number, policy in enumerate(("fifo", "srtf"), start=1):
        if number > 1:
            page.get_by_text(f"Scenario {number}").click()
        page.locator(f"[name=policy-{number}]").select_option(policy)
    page.locator("[name=price-2-cpu]").fill("1.5")
    page.get_by_role("button", name="Run simulation").click()
    expect(page.get_by_role("heading", name="What if: 2 scenarios")).to_be_visible()
    expect(page.get_by_text("It starts as soon as the worker is free.")).to_have_count(2)
    page.get_by_role("link", name="Change the scenarios").click()
    expect(page.locator("[name=policy-2]")).to_have_value("srtf")
    expect(page.locator("[name=price-2-cpu]")).to_have_value("1.5")
    admin.open("/what-if/1/")
    cost = page.get_by_role("row").filter(has_text="Cost of all accelerators")
    expect(cost.locator("td").nth(2)).to_have_text("\N{EN DASH}")
    page.get_by_label("Price of t4 an hour in scenario 1").fill("3")
    page.get_by_role("button", name="Recalculate costs").click()
    # 16 at 0.05 and 2 at 3 an hour, for 300 s.
    expect(cost.locator("td").nth(2)).to_contain_text("0.57")
    assert page.evaluate(AUDIT) == []


def test_lines_of_a_level_are_shown_as_they_come(ada: Visitor, site: Site) -> None:
    def say(*texts: str) -> None:
        site.run(LOG_ADD.format(job=JOB["running"], text="".join(f"{text}\n" for text in texts)))

    say("ERROR: before", "INFO: quiet")
    ada.open(f"/jobs/{JOB['running']}/")
    page = ada.page
    log, pause = page.locator("#log"), page.locator("#log-pause")
    expect(page.locator("#live-state")).to_have_text("Live")
    page.get_by_label("Level").select_option("warning")
    shown = log.locator(".log-line:not(.is-context) .log-text")
    expect(shown).to_have_text(["ERROR: before"])
    say("INFO: still quiet", "WARNING: now", "no level")
    expect(shown).to_have_text(["ERROR: before", "WARNING: now"])
    pause.click()
    say("ERROR: later", "INFO: quiet")
    expect(pause).to_have_text("Resume (1 new)")
    pause.click()
    expect(shown).to_have_text(["ERROR: before", "WARNING: now", "ERROR: later"])
    page.get_by_label("Level").select_option("")
    expect(log).to_contain_text("INFO: still quiet")


def test_the_log_of_an_ended_job_has_nothing_to_pause(ada: Visitor, site: Site) -> None:
    ada.open(f"/jobs/{JOB['finished']}/")
    expect(ada.page.locator("#log")).to_contain_text("Nothing has been written yet.")
    expect(ada.page.locator("#log-pause")).to_be_hidden()


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


def test_everything_is_reached_by_keyboard(admin: Visitor) -> None:
    page = admin.page
    admin.open("/jobs/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        outline = page.evaluate(
            "[getComputedStyle(document.activeElement).outlineStyle, "
            "document.activeElement.tagName, document.activeElement.matches(':focus-visible')]"
        )
        if outline[1] == "BODY":
            break
        assert outline[0] != "none", outline
    # A menu opens by Enter and closes by Escape, back where it was.
    summary = page.locator(".top details.menu summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Account and API tokens")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Account and API tokens")).to_be_hidden()
    expect(summary).to_be_focused()


def test_a_theme_is_chosen_by_keyboard_and_charts_follow(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada", color_scheme="light")
    page = visitor.page
    visitor.open(f"/jobs/{JOB['running']}/")
    ground = "getComputedStyle(document.body).backgroundColor"
    tick = page.locator("[data-figure=loss] .xtick text").first
    light, light_tick = page.evaluate(ground), tick.evaluate("(one) => getComputedStyle(one).fill")
    page.locator(".top details.menu summary").focus()
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Dark", exact=True)
    while not button.evaluate("(one) => one === document.activeElement"):
        page.keyboard.press("Tab")
    with page.expect_response("**/account/theme/"):
        page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    dark = page.evaluate(ground)
    assert dark != light
    expect(tick).not_to_have_css("fill", light_tick)
    dark_tick = tick.evaluate("(one) => getComputedStyle(one).fill")
    assert page.evaluate(AUDIT) == []
    visitor.open(page.url)
    assert page.evaluate(ground) == dark
    expect(tick).to_have_css("fill", dark_tick)
    page.emulate_media(color_scheme="dark")
    page.locator(".top details.menu summary").click()
    page.get_by_role("button", name="Light", exact=True).click()
    assert page.evaluate(ground) == light
    assert page.evaluate(AUDIT) == []
    page.context.close()
    assert visitor.complaints == []


def test_the_palette_finds_pages_actions_and_jobs_by_keys(
    browser: Browser, site: Site, admin: Visitor
) -> None:
    page = admin.page
    admin.open("/account/")
    box, options = page.get_by_role("combobox"), page.locator("#palette [role=option]")
    page.keyboard.press("Control+k")
    expect(box).to_be_focused()
    assert page.evaluate(AUDIT) == []
    page.keyboard.type("theme dark")
    with page.expect_response("**/account/theme/"):
        page.keyboard.press("Enter")
    expect(page.locator("#announcer")).to_have_text("Theme: Dark")
    page.get_by_role("button", name="Search").click()
    assert page.evaluate(AUDIT) == []
    page.keyboard.type("bold")
    found = options.filter(has_text=f"#{JOB['script']} <script>")  # its name is no markup
    expect(found).to_have_count(1)
    while found.get_attribute("aria-selected") != "true":
        page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", found.get_attribute("id") or "")
    assert not page.evaluate("window.hurt || document.querySelector('#palette b')")
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type(f"#{JOB['paused']}")
    expect(options.first).to_contain_text("weekend run")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{JOB['paused']}/")
    newcomer = visit(browser, site, "newcomer").page
    newcomer.goto("/account/")
    newcomer.keyboard.press("Control+k")
    pages = newcomer.locator("#palette [role=option]").filter(has_text="page")
    expect(pages.filter(has_text="Jobs")).not_to_have_count(0)
    expect(pages.filter(has_text="Queue")).to_have_count(0)
    newcomer.context.close()


def test_pages_work_without_scripts(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "ada", java_script_enabled=False)
    page = visitor.page
    page.goto(f"/jobs/{JOB['paused']}/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("weekend run")
    expect(page.locator("#spec time").first).to_contain_text("UTC")
    expect(page.locator("#zone-note")).to_have_text("Times are in UTC.")
    expect(page.locator("#palette-open")).to_be_hidden()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#job-head [role=status]")).to_have_text("pending")
    page.goto("/jobs/new/")
    page.get_by_role("button", name="Measure memory").click()
    expect(page.get_by_role("heading", name="Measuring")).to_be_visible()
    site.run(VALIDATION_ANSWER.format(report=FITTING))
    page.get_by_role("link", name="Look again").click()
    expect(page.locator("#check-result")).to_contain_text("Measured: 300.0 MB per example")
    page.goto("/jobs/new/")
    page.get_by_label("Virtual nodes").fill("0")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("[data-error-for=num_virtual_nodes]")).to_contain_text("Give a whole")
    visitor.page.context.close()


def test_a_part_of_the_timeline_has_an_address(admin: Visitor) -> None:
    admin.open("/timeline/?window=900")
    page = admin.page
    figure = page.locator("[data-figure=timeline]")
    expect(figure.locator(".barlayer .point")).not_to_have_count(0)
    area = figure.locator(".nsewdrag").first.bounding_box()
    assert area is not None
    middle = area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + 0.25 * area["width"], middle)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.75 * area["width"], middle, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=**")
    query = parse_qs(urlsplit(page.url).query)
    assert {*query} == {"from", "to"}
    expect(page.locator("[data-figure=timeline][data-drawn]")).to_be_visible()
    page.get_by_role("link", name="Zoom out").click()
    page.wait_for_url("**from=**")
    page.get_by_label("The last").select_option("3600")
    page.wait_for_url("**window=3600**")
    assert page.get_by_label("The last").input_value() == "3600"


def test_a_drain_is_previewed_and_made_without_scripts(browser: Browser, site: Site) -> None:
    visitor = visit(browser, site, "admin", java_script_enabled=False)
    page = visitor.page
    page.goto("/timeline/")
    page.get_by_role("link", name="Show all charts as tables").click()
    expect(page.get_by_text("digits, patient").first).to_be_visible()
    page.goto("/nodes/")
    page.get_by_role("link", name="Drain… node-a", exact=True).click()
    expect(page.get_by_role("heading", name="Drain node-a?")).to_be_visible()
    page.get_by_label("Reason").fill("new fan")
    page.get_by_role("button", name="Drain node-a").click()
    expect(page.get_by_role("heading", name="What the drain did")).to_be_visible()
    expect(page.get_by_text("takes no new work, and its jobs leave: new fan")).to_be_visible()
    page.get_by_role("button", name="Uncordon node-a").click()
    visitor.page.context.close()
