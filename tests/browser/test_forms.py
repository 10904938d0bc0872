"""Forms that are sent twice, or after the login has ended, in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Request, expect

from tests.browser.page_site import JOB, Site
from tests.browser.visitor import Visitor, visit
from tests.frontend.world import PASSWORD

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def sessions_end(site: Site, name: str) -> None:
    """Delete the sessions of a person, whose stored login is good no more."""
    site.run(
        "from django.contrib.sessions.models import Session\n"
        "from django.contrib.auth.models import User\n"
        f"number = str(User.objects.get(username={name!r}).pk)\n"
        "for one in Session.objects.all():\n"
        "    if one.get_decoded().get('_auth_user_id') == number: one.delete()"
    )
    site.logins.pop(name, None)


def test_a_second_click_while_the_first_is_answered_counts_nothing(
    browser: Browser, site: Site
) -> None:
    visitor = visit(browser, site, "ada")
    page = visitor.page
    visitor.open("/account/")
    page.locator("#id_name").first.fill("clicked twice")
    page.get_by_label("Your password").first.fill(PASSWORD)
    page.locator("form[action$='/account/tokens/']").evaluate(
        """form => {
            const now = Date.now();
            for (const late_ms of [100, 200]) setTimeout(() => {
                Date.now = () => now + 50 * late_ms; // the site is slow
                form.requestSubmit();
            }, late_ms);
            form.requestSubmit();
        }"""
    )
    expect(page.get_by_text("vfp_").first).to_be_visible()
    number = "ApiToken.objects.filter(name='clicked twice').count()"
    assert site.run(f"from jobs.models import ApiToken\nprint({number})") == "1"
    page.context.close()


#: Address of a page, what is typed by selector, and the button whose answer is a page itself.
ANSWERED_FORMS = [
    ("/queue/", {"[name^=priority-] >> nth=0": "77"}, "#changes [value=preview]"),
    (
        f"/jobs/{JOB['pending']}/",
        {"#priority [name=priority]": "44", "#priority [name=reason]": "x"},
        "#priority button",
    ),
    ("/projects/1/", {"#limit": "1"}, "[action$='/edit/'] [type=submit]"),
    ("/usage/", {"[name^=price_] >> nth=0": "-1"}, "[action$='/prices/'] [type=submit]"),
    ("/nodes/", {"[name=hours]": "2"}, "[action$='/nodes/tokens/'] button"),
    (
        "/account/",
        {"#id_name >> nth=0": "again", "[name=password] >> nth=0": PASSWORD},
        "[action$='/account/tokens/'] [type=submit]",
    ),
    (
        "/account/password/",
        {f"[type=password] >> nth={place}": f"wrong-{place}" for place in range(3)},
        "main [type=submit]",
    ),
]


@pytest.mark.parametrize(("address", "typed", "button"), ANSWERED_FORMS)
def test_back_and_reload_send_no_form_again(
    address: str, typed: dict[str, str], button: str, window: Visitor, site: Site
) -> None:
    """The browser shows a page at once, and asks nobody to confirm that."""
    page = window.page
    sent: list[str] = []

    def note(request: Request) -> None:
        if request.method == "POST":
            sent.append(request.url)

    page.on("request", note)
    window.open(address)
    # The site answers what the browser itself would refuse, too.
    page.evaluate("for (const form of document.forms) form.noValidate = true")
    for selector, text in typed.items():
        page.locator(selector).fill(text)
    with page.expect_navigation():
        page.locator(button).first.click()
    heading = page.locator("h1")
    page.reload()
    expect(heading).to_be_visible()
    window.open("/jobs/")
    page.go_back()
    expect(heading).to_be_visible()
    assert page.url == f"{site.address}{address}"
    assert len(sent) == 1
    page.remove_listener("request", note)


def test_what_was_typed_is_not_lost_with_the_server_or_the_session(
    browser: Browser, site: Site
) -> None:
    visitor = visit(browser, site, "ada")
    page = visitor.page
    address = f"/jobs/{JOB['running']}/"
    visitor.open(address)
    note, save = page.get_by_label("Note"), page.get_by_role("button", name="Save tags and note")
    page.locator(".labels > summary").click()
    note.fill("a thought of many words")
    page.route("**/describe/", lambda route: route.fulfill(status=502, body="no server"))
    save.click()
    expect(page.get_by_text("no server")).to_be_visible()
    page.go_back()
    expect(note).to_be_visible()
    expect(note).to_have_value("a thought of many words")
    page.unroute("**/describe/")
    sessions_end(site, "ada")
    save.click()
    expect(page.get_by_role("heading", name="Not sent")).to_be_visible()
    expect(page.get_by_text("a thought of many words")).to_be_visible()
    page.get_by_role("link", name="Log in").click()
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**{address}")
    page.context.close()


_FULL = "<main><div class='empty'><h1>The disk is full</h1><p>Nothing was stored.</p></div></main>"
#: Answers to a submission that do not come from its page, and what the form says then.
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"status": 413, "body": "<h1>413 Request Entity Too Large</h1>"}, "not take this much"),
    ({"status": 401, "body": "<h1>401 Authorization Required</h1>"}, "you are logged out"),
    ({"status": 502, "body": "<h1>502 Bad Gateway</h1>"}, "The server did not answer"),
    ({"status": 507, "body": _FULL}, "The disk is full. Nothing was stored."),
]


def test_a_submission_is_sent_again_after_a_login_in_another_tab(
    browser: Browser, site: Site
) -> None:
    visitor = visit(browser, site, "ada")
    page = visitor.page
    visitor.open("/jobs/new/")
    page.locator("#id_name").fill("typed before")
    said, button = page.locator("#form-errors-text"), "Submit the job"
    for refusal, text in REFUSALS:
        page.route(page.url, lambda route, _, refusal=refusal: route.fulfill(**refusal))
        page.get_by_role("button", name=button).click()
        expect(said).to_contain_text(text)
        page.unroute(page.url)
    sessions_end(site, "ada")
    # A form so large is refused before the site reads it.
    page.get_by_label("My own code").check()
    code = {"name": "job.py", "mimeType": "text/plain", "buffer": b"#" * 70_000}
    page.locator("[name=code]").set_input_files([code])
    page.get_by_role("button", name=button).click()
    expect(said).to_contain_text("Log in, or send a token")
    page.get_by_label("Digits, convolutional network").check()
    page.locator("[name=code]").set_input_files([])
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("#form-errors-text")).to_contain_text("You are logged out")
    expect(page.locator("#id_name")).to_have_value("typed before")
    other = page.context.new_page()
    other.goto("/login/")
    other.get_by_label("Username").fill("ada")
    other.get_by_label("Password").fill(PASSWORD)
    other.get_by_role("button", name="Log in").click()
    other.wait_for_url("**/")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_role("heading", name="typed before")).to_be_visible()
    page.context.close()
    # Tests of the queue name the jobs in it.
    site.run("from jobs.models import Job\nJob.objects.get(name='typed before').delete()")


#: Address of a page that shows what a form asks for, a control of the form, and another choice.
ASKING_FORMS = [
    ("/", "#window", "3600"),
    ("/timeline/", "#window", "86400"),
    ("/timeline/", "#node", "1"),
    (f"/jobs/{JOB['running']}/", "#scale", "log"),
    (f"/jobs/{JOB['running']}/", "#smoothing", "0.9"),
    ("/nodes/1/", "#window", "86400"),
    ("/jobs/", "#q", "script"),
    ("/jobs/", "#status", "failed"),
    ("/usage/", "#by", "user"),
    ("/audit/", "#actor", "user:ada"),
    (f"/jobs/compare/?job={JOB['finished']}&job={JOB['running']}", "[name=x]", "time"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("address", "control", "choice"), ASKING_FORMS)
def test_back_shows_a_form_as_its_page_was_asked_for(
    address: str, control: str, choice: str, window: Visitor
) -> None:
    page = window.page
    window.open(address)
    one = page.locator(control)
    shown = one.input_value()
    with page.expect_navigation():
        if one.evaluate("one => one.matches('select')"):
            one.select_option(choice)
        else:
            one.fill(choice)
        if not one.evaluate("one => one.form.matches('[data-submit-on-change]')"):
            one.evaluate("one => one.form.requestSubmit()")
    expect(page.locator(control)).to_have_value(choice)
    page.go_back()
    expect(page.locator(control)).to_have_value(shown)


def test_back_ticks_no_other_jobs(browser: Browser, site: Site) -> None:
    """Another job is the first of the list meanwhile."""
    visitor = visit(browser, site, "ada")
    page = visitor.page
    visitor.open("/jobs/")
    boxes = page.locator("[name=job][form=bulk]")
    number = boxes.first.get_attribute("value")
    boxes.first.check()
    visitor.open("/account/")
    site.run(
        "from jobs.models import Job\n"
        f"job = Job.objects.get(pk={number})\n"
        "job.pk, job.name = None, 'newer'\n"
        "job.save()"
    )
    page.go_back()
    expect(boxes.first).not_to_have_attribute("value", str(number))
    expect(page.locator("[name=job][form=bulk]:checked")).to_have_count(0)
    page.context.close()
    site.run("from jobs.models import Job\nJob.objects.get(name='newer').delete()")
