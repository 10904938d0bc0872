"""The log and the code of a job in a real browser: followed, searched, linked by line."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import AUDIT, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: Code for `Site.run`: new parts of the log of a job's first trainer.
LOG_ADD = """
from django.utils import timezone
from jobs import nudges
from jobs.models import LogChunk
for text in {texts!r}:
    LogChunk.objects.create(
        job_id={job}, slot=0, offset=LogChunk.objects.filter(job={job}).count(), size_bytes=1,
        text=text, at=timezone.now(),
    )
nudges.jobs_changed([{job}])
"""


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


@pytest.mark.nightly
def test_back_shows_the_log_as_its_controls_say(admin: Visitor) -> None:
    admin.open(f"/jobs/{JOB['running']}/")
    level = admin.page.locator("#log-level")
    level.select_option("error")
    admin.page.locator("#log-search").fill("nothing has this")
    admin.open("/nodes/")
    admin.page.go_back()
    expect(admin.page.locator("#log .log-line").first).to_be_visible()
    expect(level).to_have_value("")
    expect(admin.page.locator("#log-search")).to_have_value("")


def test_an_address_leads_to_a_line_of_the_code(ada: Visitor) -> None:
    ada.open(f"/jobs/{JOB['running']}/#L2")
    line = ada.page.locator("#L2")
    expect(line).to_be_in_viewport()
    expect(line.get_by_role("link", name="Line 2")).to_be_visible()
    assert ada.page.evaluate(AUDIT) == []


def test_the_log_follows_pauses_and_counts_new_lines(ada: Visitor, site: Site) -> None:
    def say(*texts: str) -> None:
        site.run(LOG_ADD.format(job=JOB["script"], texts=["".join(f"{text}\n" for text in texts)]))

    say(*(f"line {i}" for i in range(100)))
    ada.open(f"/jobs/{JOB['script']}/")
    log, pause = ada.page.locator("#log"), ada.page.locator("#log-pause")
    expect(ada.page.locator("#live-state")).to_have_text("Live")
    expect(ada.page.get_by_role("button", name="Pause", exact=True)).to_have_count(1)  # the job's
    expect(pause).to_have_accessible_name("Pause the log")
    say("heard at once")
    expect(log).to_contain_text("heard at once")
    pause.click()
    say("WARNING: first", "second")
    expect(pause).to_have_text("Resume (2 new)")
    expect(pause).to_have_accessible_name("Resume (2 new) lines of the log")
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
    # Of a line that never ends the page keeps some, and not every part that came.
    numbers = [log.locator(".log-window").count()]
    for last in ("most", "more"):
        parts = ["x" * 1500] * 7 + [last]
        site.run(LOG_ADD.format(job=JOB["script"], texts=parts))
        expect(log).to_contain_text(last)
        numbers.append(log.locator(".log-window").count())
    assert numbers[1] == numbers[2]
    assert len(log.locator(".log-text").last.inner_text()) == 10_000
    say("", "İİ a needle")  # two characters longer in lower case
    ada.page.get_by_label("Search the log").fill("A Needle")
    expect(log.locator("mark")).to_have_text(["a needle"])


def test_lines_of_a_level_are_shown_as_they_come(ada: Visitor, site: Site) -> None:
    def say(*texts: str) -> None:
        site.run(LOG_ADD.format(job=JOB["running"], texts=["".join(f"{text}\n" for text in texts)]))

    say("ERROR: before", "INFO: quiet")
    ada.open(f"/jobs/{JOB['running']}/")
    page = ada.page
    log, pause = page.locator("#log"), page.locator("#log-pause")
    expect(page.locator("#live-state")).to_have_text("Live")
    page.get_by_label("Level").select_option("warning")
    shown = log.locator(".log-line:not(.is-context) .log-text")
    expect(shown).to_have_text(["ERROR: before"])
    expect(page.locator("#log-note")).to_contain_text("1 matching line ")
    say("INFO: still quiet", "WARNING: now", "no level")
    expect(shown).to_have_text(["ERROR: before", "WARNING: now"])
    expect(page.locator("#log-note")).to_be_empty()
    pause.click()
    say("ERROR: later", "INFO: quiet")
    expect(pause).to_have_text("Resume (1 new)")
    pause.click()
    expect(shown).to_have_text(["ERROR: before", "WARNING: now", "ERROR: later"])
    page.get_by_label("Level").select_option("")
    expect(log).to_contain_text("INFO: still quiet")


def test_the_log_of_an_ended_job_has_nothing_to_pause(ada: Visitor, site: Site) -> None:
    ada.open(f"/jobs/{JOB['finished']}/")
    expect(ada.page.locator("#log")).to_contain_text("Nothing was written.")
    expect(ada.page.locator("#log-pause")).to_be_hidden()
