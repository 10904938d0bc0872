"""Changes of several jobs at once on the queue's page: previewed, applied, undone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import AuditEntry, Event, Job
from tests.frontend.test_reprioritise import shown
from tests.frontend.world import World, make_job


def fields(page: Any) -> dict[str, Any]:
    """Return the fields of the page's rows, as a browser sends them."""
    text = page.content.decode()
    found: dict[str, Any] = {"do": "preview", "job": re.findall(r'name="job" value="(\d+)"', text)}
    found |= dict(re.findall(r'name="(seen-\d+)" value="([^"]*)"', text))
    found |= dict(re.findall(r'name="(priority-\d+)"[^>]* value="(\d*)"', text))
    for name, options in re.findall(r'name="(tier-\d+)"[^>]*>(.*?)</select>', text):
        found |= {name: re.findall(r"selected>(\w+)<", options)[0]}
    return found


def apply_fields(page: Any) -> dict[str, Any]:
    """Return the hidden fields of the form below a preview."""
    form = page.content.decode().partition('id="changes-preview"')[2].partition("</form>")[0]
    jobs = re.findall(r'name="job" value="(\d+)"', form)
    return {
        "do": "apply",
        "job": jobs,
        **dict(re.findall(r'name="(\w+-\d+)" value="([^"]*)"', form)),
    }


def previewed(admin: Client, changes: dict[str, str]) -> Any:
    page = admin.get("/queue/")
    return admin.post("/queue/?page=1", {**fields(page), **changes})


def standings() -> dict[int, tuple[str, int]]:
    return {row.pk: (row.tier, row.priority) for row in Job.objects.all()}


def test_several_jobs_are_previewed_changed_and_taken_back(world: World, admin: Client) -> None:
    pending, paused, running = (world.jobs[name] for name in ("pending", "paused", "running"))
    before, num_events = standings(), Event.objects.count()
    page = previewed(admin, {
        f"priority-{pending.pk}": "650", f"tier-{paused.pk}": "idle",
        f"tier-{running.pk}": "urgent", f"priority-{running.pk}": "7",
    })  # fmt: skip
    text = shown(page.content)
    assert "Change 3 jobs?" in text
    assert f"#{pending.pk} {pending.name} priority 50 → 650" in text
    assert f"#{paused.pk} {paused.name} tier normal → idle" in text
    assert f"#{running.pk} {running.name} tier normal → urgent, priority 100 → 7" in text
    assert re.search(r"that would change, under the policy goodput_fair: .* accelerators", text)
    assert (standings(), Event.objects.count()) == (before, num_events)
    # The rows keep what was typed, also without scripts.
    assert fields(page)[f"priority-{pending.pk}"] == "650"
    assert fields(page)[f"tier-{paused.pk}"] == "idle"

    apply = apply_fields(page)
    assert set(apply["job"]) == {str(job.pk) for job in (pending, paused, running)}
    done = admin.post("/queue/?page=1", {**apply, "reason": "order"}, follow=True)
    assert done.redirect_chain == [("/queue/?page=1", 302)]
    assert "3 jobs reprioritised." in shown(done.content)
    changed = {pending.pk: ("normal", 650), paused.pk: ("idle", 100), running.pk: ("urgent", 7)}
    assert standings() == before | changed
    for job in (pending, paused, running):
        assert job.events.filter(kind="reprioritised", data__reason="order").exists()
        assert AuditEntry.objects.filter(object=f"job:{job.pk}", details__reason="order").exists()
    assert done.context["rows"][0].job == running

    # Somebody changes one of them: the undo leaves that one, and says so.
    Job.objects.filter(pk=paused.pk).update(tier="urgent")
    undone = admin.post("/queue/", {"undo": done.context["undo"]}, follow=True)
    assert f"#{paused.pk}: Its tier is urgent now, not idle: it stays." in shown(undone.content)
    assert standings() == before | {paused.pk: ("urgent", 100)}
    assert not undone.context["undo"]


def test_a_stale_preview_changes_nothing_and_is_made_again(world: World, admin: Client) -> None:
    pending, paused, running = (world.jobs[name] for name in ("pending", "paused", "running"))
    given = {pending: "650", paused: "40", running: "30"}
    page = previewed(admin, {f"priority-{job.pk}": text for job, text in given.items()})
    Job.objects.filter(pk=pending.pk).update(priority=90)
    Job.objects.filter(pk=paused.pk).update(status="cancelled", ended_at=timezone.now())
    before = standings()
    again = admin.post("/queue/", {**apply_fields(page), "reason": "a <b> paper"})
    assert standings() == before
    text = shown(again.content)
    assert f"Job {pending.pk}: Its priority is 90 now, not 50: it stays." in text
    assert f"Job {paused.pk}: A job that is cancelled cannot be reprioritised." in text
    assert "Change 2 jobs?" in text
    assert f"#{pending.pk} {pending.name} priority 90 → 650" in text
    assert f"#{paused.pk} {paused.name} has ended, and stays" in text
    assert 'value="a &lt;b&gt; paper"' in again.content.decode()
    admin.post("/queue/", {**apply_fields(again), "reason": "paper"})
    assert standings() == before | {pending.pk: ("normal", 650), running.pk: ("normal", 30)}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"priority": "5000"}, "Item 1: priority: Give a whole number from 1 to 1000."),
        ({"priority": "a\0b"}, "Item 1: priority: Give a whole number from 1 to 1000."),
        ({"tier": "<b>"}, "Item 1: tier: Choose one of urgent, normal, idle."),
        ({"priority": "650", "seen": "royal ²"}, "Item 1: expected_priority: Give a whole number"),
        ({"priority": "650", "reason": " "}, "Say why: the owners will read it."),
        ({"priority": "50"}, "There is no change to preview."),
        ({"priority": "650", "job": "9" * 40}, "There is no change to preview."),
    ],
)
def test_nonsense_changes_nothing(
    world: World, admin: Client, typed: dict[str, str], said: str
) -> None:
    job, before = world.jobs["pending"], standings()
    form = {"do": "apply", "reason": "order", f"seen-{job.pk}": "normal 50", "job": str(job.pk)}
    form |= {name if name in form else f"{name}-{job.pk}": text for name, text in typed.items()}
    page = admin.post("/queue/", form)
    assert said in shown(page.content)
    assert standings() == before


def test_changes_are_for_admins(world: World, ada: Client) -> None:
    job, before = world.jobs["pending"], standings()
    form = {"do": "apply", "reason": "x", "job": job.pk, f"priority-{job.pk}": "5"}
    assert ada.post("/queue/", form).status_code == 404
    assert standings() == before


def test_a_job_is_moved_to_another_page(world: World, admin: Client) -> None:
    for number in range(60):
        make_job(world.ada, f"number {number}", priority=900 - 10 * number)
    job, before = Job.objects.latest("pk"), standings()

    def moved(**values: str) -> str:
        return shown(admin.post("/queue/?page=2", values).content)

    assert f"#{job.pk} {job.name} priority 310 → 901" in moved(do="top", move=f"#{job.pk}")
    # Between 890 and 880, of which the Enter key knows as much as the button.
    assert f"#{job.pk} {job.name} priority 310 → 885" in moved(do="move", move=str(job.pk), to="3")
    assert "priority 310 → 885" in moved(do="preview", move=str(job.pk), to="3")
    page = admin.post("/queue/?page=2", {"do": "move", "move": str(job.pk), "to": "3"})
    assert standings() == before
    done = admin.post("/queue/?page=2", {**apply_fields(page), "reason": "order"}, follow=True)
    assert "1 job reprioritised." in shown(done.content)
    assert standings() == before | {job.pk: ("normal", 885)}
    assert admin.get("/queue/").context["rows"][2].job == job


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"do": "move", "move": "1"}, "Give a job's number and a position."),
        ({"do": "top", "move": "first"}, "Give a job's number and a position."),
        ({"do": "top", "move": "999999"}, "There is no job 999999 in the queue."),
    ],
)
def test_a_move_that_cannot_be_is_told(
    values: dict[str, str], text: str, world: World, admin: Client
) -> None:
    before = standings()
    page = admin.post("/queue/", values).content
    assert text in shown(page).replace("&#x27;", "'")
    assert f'maxlength="20" value="{values["move"]}"' in page.decode()
    assert standings() == before
