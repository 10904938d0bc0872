"""A new priority or tier on the pages: its effect is shown before it is given."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from jobs.models import Allocation, Event, Job
from tests.frontend.world import World, make_job


def shown(page: bytes) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.decode()).split())


def hidden(page: bytes) -> dict[str, list[str]]:
    """Read the hidden fields of the form that applies the change."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(
        r'type="hidden" name="([\w-]+)" value="([^"]*)"', page.decode().partition("<main")[2]
    ):
        if name != "csrfmiddlewaretoken":
            found.setdefault(name, []).append(value)
    return found


def test_one_job_is_previewed_and_changed(world: World, admin: Client) -> None:
    job = world.jobs["pending"]
    counted = (Allocation.objects.count(), Event.objects.count())
    form = {"tier": "urgent", "priority": str(job.priority), "preview": "1"}
    page = admin.post(f"/jobs/{job.pk}/priority/", {**form, "reason": "a <b> paper"})
    text = shown(page.content)
    assert "Tier urgent for 1 job?" in text
    assert f"has priority {job.priority}, tier normal" in text
    assert re.search(rf"#{job.pk} \S.* 0 → \d accelerators \(starts\)", text), text
    assert 'value="a &lt;b&gt; paper" required' in page.content.decode()
    assert counted == (Allocation.objects.count(), Event.objects.count())
    fields = hidden(page.content)
    assert fields == {"tier": ["urgent"], f"seen-{job.pk}": [f"normal {job.priority}"]}
    done = admin.post(f"/jobs/{job.pk}/priority/", {**fields, "reason": "paper"}, follow=True)
    assert f"Job #{job.pk} has tier urgent now." in shown(done.content)
    job.refresh_from_db()
    assert job.tier == "urgent"
    queue = admin.get("/queue/").content.decode()
    assert '<span class="pill pill-info">urgent</span>' in queue
    assert queue.index(f"job-{job.pk}") < queue.index(f"job-{world.jobs['running'].pk}")


def test_ticked_jobs_are_previewed_changed_and_taken_back(world: World, ada: Client) -> None:
    jobs = [world.jobs["pending"].pk, world.jobs["paused"].pk]
    before = dict(Job.objects.values_list("pk", "tier"))
    form = {"job": jobs, "do": "preview", "tier": "idle", "priority": "", "back": "status=live"}
    page = ada.post("/jobs/actions/", form)
    assert "Tier idle for 2 jobs?" in shown(page.content)
    assert dict(Job.objects.values_list("pk", "tier")) == before
    fields = hidden(page.content)
    response = ada.post("/jobs/actions/", {**fields, "reason": "later"}, follow=True)
    assert response.redirect_chain[0][0] == "/jobs/?status=live"
    assert "2 jobs reprioritised." in shown(response.content)
    assert {*Job.objects.filter(pk__in=jobs).values_list("tier", flat=True)} == {"idle"}
    ada.post("/jobs/actions/", {"undo": response.context["undo"]})
    assert dict(Job.objects.values_list("pk", "tier")) == before


@pytest.mark.parametrize(
    ("address", "form"),
    [("/jobs/{}/priority/", {"preview": "1"}), ("/jobs/actions/", {"do": "preview"})],
)
def test_a_preview_does_not_overwrite_what_somebody_else_gave_meanwhile(
    address: str, form: dict[str, str], world: World, admin: Client
) -> None:
    job = world.jobs["pending"]
    address = address.format(job.pk)
    fields = hidden(admin.post(address, {**form, "job": job.pk, "priority": "60"}).content)
    Job.objects.filter(pk=job.pk).update(priority=900)
    done = admin.post(address, {**fields, "reason": "paper"}, follow=True)
    assert f"Its priority is 900 now, not {job.priority}: it stays." in shown(done.content)
    job.refresh_from_db()
    assert job.priority == 900


def test_what_is_refused_is_said_and_nothing_is_shown(world: World, ada: Client) -> None:
    job = world.jobs["pending"]
    for form in ({"tier": "urgent"}, {"priority": "5000"}, {"tier": "<b>"}):
        done = ada.post(f"/jobs/{job.pk}/priority/", {**form, "preview": "1"}, follow=True)
        assert done.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
        done = ada.post("/jobs/actions/", {**form, "do": "preview", "job": job.pk}, follow=True)
        assert done.redirect_chain == [("/jobs/", 302)]
        text = done.content.decode()
        assert f'name="priority" value="{form.get("priority", "")}"' in text
        assert "<b>" not in text
    theirs = make_job(world.ben, "theirs")
    address = f"/jobs/{theirs.pk}/priority/"
    assert ada.post(address, {"tier": "idle", "preview": "1"}).status_code == 404
    form = {"do": "preview", "priority": "5", "job": [job.pk, theirs.pk]}
    assert f"Job {theirs.pk}: There is no such job" in shown(
        ada.post("/jobs/actions/", form, follow=True).content
    )


def test_members_choose_among_their_tiers(world: World, ada: Client, admin: Client) -> None:
    page = ada.get("/jobs/new/").content.decode()
    assert re.findall(r'<option value="(urgent|normal|idle)"', page) == ["normal", "idle"]
    page = admin.get("/jobs/new/").content.decode()
    assert re.findall(r'<option value="(urgent|normal|idle)"', page) == ["urgent", "normal", "idle"]
    job = world.jobs["pending"]
    Job.objects.filter(pk=job.pk).update(tier="urgent", priority=900)
    ada.post(f"/jobs/{job.pk}/priority/", {"tier": "idle", "priority": "900", "reason": ""})
    job.refresh_from_db()
    assert (job.tier, job.priority) == ("idle", 900)


def test_lists_and_pages_show_the_tier(world: World, ada: Client) -> None:
    job = world.jobs["pending"]
    Job.objects.filter(pk=job.pk).update(tier="idle")
    assert [row[0].pk for row in ada.get("/jobs/?tier=idle").context["rows"]] == [job.pk]
    assert "<small>idle</small>" in ada.get(f"/jobs/{job.pk}/").content.decode()
    text = shown(ada.get(f"/jobs/{job.pk}/").content)
    assert re.search(r"This job is idle: \d+ of higher tiers comes? before it", text)
    assert "tier: idle" in ada.get(f"/jobs/{job.pk}/copy/").content.decode()
