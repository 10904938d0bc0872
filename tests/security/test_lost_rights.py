"""Acts that a person began as an admin end with the rights of an admin."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.models import Job, NotificationChannel, NotificationDelivery
from jobs.services.lifecycle.events import event_add
from jobs.services.notifications.deliveries import deliveries_due, delivery_attempt
from jobs.services.submission.forks import forks_advance
from tests.jobs.notifications.channels import channel_make
from tests.jobs.world import World
from tests.support.builders import api_token_make, at, job_make, logged_in

pytestmark = pytest.mark.django_db


def demoted(user: User) -> User:
    User.objects.filter(pk=user.pk).update(is_staff=False)
    return User.objects.get(pk=user.pk)


@pytest.fixture
def wide(admin: User) -> NotificationChannel:
    return channel_make(admin, events=["failed"], is_cluster_wide=True)[0]


@pytest.mark.parametrize("is_wide", [True, False])
def test_a_waiting_message_about_others_is_not_sent(
    is_wide: bool,
    wide: NotificationChannel,
    ada: User,
    admin: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rights end while messages wait; making the channel one's own helps nothing."""
    sent: list[Any] = []
    monkeypatch.setattr("jobs.services.notifications.deliveries.send", lambda *a: sent.append(a))
    event_add("failed", "It failed.", now=at(0), job=job_make(ada))
    (due,) = deliveries_due(at(0))
    demoted(admin)
    NotificationChannel.objects.update(is_cluster_wide=is_wide)
    assert delivery_attempt(due, at(0))
    assert sent == []
    row = NotificationDelivery.objects.get()
    assert (row.status, row.answer) == ("failed", "Its owner is no admin any more.")


def test_a_former_admin_still_has_the_channel(wide: NotificationChannel, admin: User) -> None:
    client = logged_in(demoted(admin))
    path = f"/account/notifications/{wide.pk}/"
    listed = client.post(f"{path}pause/", follow=True).content.decode()
    assert ">Paused<" in listed
    assert ">Paused.<" in client.get(path).content.decode()
    wide.refresh_from_db()
    assert wide.paused_reason == "paused by its owner"
    page = client.post(f"{path}pause/", {"do": "resume"}, follow=True).content.decode()
    assert "Only admins hear" in page
    refused = client.patch(
        f"/api/v1/channels/{wide.pk}/", {"events": ["node_lost"]}, content_type="application/json"
    )
    assert refused.status_code == 400
    assert client.post(f"{path}delete/").status_code == 302
    assert not NotificationChannel.objects.exists()


def test_a_fork_that_waits_gets_no_state_of_others(ada: User, admin: User) -> None:
    world = World(num_nodes=1, num_accelerators=2)
    parent = job_make(ada, max_accelerators=1, stop_limit=10_000)
    world.settle()
    world.train(parent)
    client = Client(headers={"Authorization": f"Bearer {api_token_make(admin)}"})
    body = {"checkpoint": "now", "name": "mine"}
    answer = client.post(f"/api/v1/jobs/{parent.pk}/fork/", body, content_type="application/json")
    fork = Job.objects.get(pk=answer.json()["id"])
    assert fork.status_code == "awaits_state"
    demoted(admin)
    assert forks_advance(world.now) == {fork.pk}
    fork.refresh_from_db()
    assert (fork.status, fork.status_code, fork.artifacts.count()) == ("invalid", "fork_refused", 0)


def test_an_undo_is_checked_like_any_request(ada: User, admin: User) -> None:
    job = job_make(ada, priority=50, tags=["old"])
    client = logged_in(admin)
    form = {"do": "reprioritise", "job": job.pk, "priority": 900, "reason": "soon"}
    client.post("/jobs/actions/", form)
    assert Job.objects.get(pk=job.pk).priority == 900
    undo = client.session["jobs_undo"][0]
    assert json.loads(undo)[0]["changes"][0]["priority"] == 50
    person = logged_in(demoted(admin))
    person.post("/jobs/actions/", {"undo": undo})
    assert Job.objects.get(pk=job.pk).priority == 900
    forged = json.dumps([{"action": "cancel", "jobs": [job.pk]}])
    person.post("/jobs/actions/", {"undo": forged})
    assert Job.objects.get(pk=job.pk).status == "pending"


def test_an_own_undo_stays_below_the_ceiling(ada: User, admin: User, settings: Any) -> None:
    """An owner cannot give back by an undo what only an admin may give."""
    job = job_make(ada, priority=900, tier="urgent")
    client = logged_in(ada)
    client.post("/jobs/actions/", {"do": "reprioritise", "job": job.pk, "priority": 10})
    undo = client.session["jobs_undo"][0]
    client.post("/jobs/actions/", {"undo": undo})
    assert Job.objects.get(pk=job.pk).priority == 10
    row = Job.objects.get(pk=job.pk)
    assert row.tier == "urgent"


#: Ways to a higher tier or priority than the user's ceilings: method, path, body.
BYPASSES: dict[str, tuple[str, str, Any]] = {
    "patch": ("patch", "/api/v1/jobs/{n}/", {"tier": "urgent"}),
    "patch a priority": ("patch", "/api/v1/jobs/{n}/", {"priority": 900}),
    "reprioritise": ("post", "/api/v1/jobs/{n}/reprioritise/", {"tier": "urgent"}),
    "both": ("post", "/api/v1/jobs/{n}/reprioritise/", {"tier": "urgent", "priority": 5}),
    "case": ("post", "/api/v1/jobs/{n}/reprioritise/", {"tier": "URGENT"}),
    "blank": ("post", "/api/v1/jobs/{n}/reprioritise/", {"tier": " urgent"}),
    "a list": ("post", "/api/v1/jobs/{n}/reprioritise/", {"tier": ["urgent"]}),
    "a float": ("post", "/api/v1/jobs/{n}/reprioritise/", {"priority": 900.0}),
    "text": ("post", "/api/v1/jobs/{n}/reprioritise/", {"priority": "900"}),
    "many": (
        "post", "/api/v1/jobs/actions/",
        {"action": "reprioritise", "jobs": ["{n}"], "tier": "urgent"},
    ),
    "many by priority": (
        "post", "/api/v1/jobs/actions/",
        {"action": "reprioritise", "jobs": ["{n}"], "priority": 900},
    ),
    "changes": (
        "post", "/api/v1/jobs/actions/",
        {"action": "reprioritise", "changes": [{"job": "{n}", "priority": 900, "tier": "urgent"}]},
    ),
    "clone": ("post", "/api/v1/jobs/{n}/clone/", {"tier": "urgent"}),
    "clone of a priority": ("post", "/api/v1/jobs/{n}/clone/", {"priority": 900}),
    "fork": ("post", "/api/v1/jobs/{n}/fork/", {"tier": "urgent"}),
    "own user": ("patch", "/api/v1/users/ada/", {"tier_ceiling": "urgent"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BYPASSES)
def test_no_way_leads_above_the_ceilings(what: str, ada: User) -> None:
    job = job_make(ada)
    client = logged_in(ada)
    method, path, body = BYPASSES[what]
    text = json.dumps(body).replace('"{n}"', str(job.pk))
    ask = getattr(client, method)
    answer = ask(path.format(n=job.pk), text, content_type="application/json")
    assert answer.status_code < 500
    rows = {(row.tier, row.priority <= 500) for row in Job.objects.all()}
    assert rows == {("normal", True)}, answer.content


@pytest.mark.parametrize("kind", ["yaml", "json", "form"])
def test_no_submission_is_above_the_ceilings(kind: str, ada: User) -> None:
    client = logged_in(ada)
    values = {"template": "tabular", "name": "x"}
    for more in ({"tier": "urgent"}, {"priority": 900}):
        given = {**values, **more}
        if kind == "form":
            answer = client.post("/api/v1/jobs/", given)
        elif kind == "json":
            answer = client.post("/api/v1/jobs/", given, content_type="application/json")
        else:
            text = "\n".join(f"{name}: {value}" for name, value in given.items())
            answer = client.post("/api/v1/jobs/", text, content_type="application/yaml")
        assert answer.status_code == 400, answer.content
        assert {*answer.json()["errors"]} == {*more}
    assert not Job.objects.exists()


def test_previews_are_counted(ada: User, settings: Any) -> None:
    settings.PREVIEWS_PER_MINUTE = 3
    job = job_make(ada)
    client = logged_in(ada)
    ways: list[tuple[str, Any]] = [
        ("/api/v1/jobs/?dry_run=1", {"template": "tabular", "name": "x"}),
        ("/api/v1/jobs/actions/preview/",
         {"action": "reprioritise", "jobs": [job.pk], "priority": 5}),
    ]  # fmt: skip
    answers = [
        client.post(path, body, content_type="application/json")
        for path, body in (*ways, *ways, *ways, *ways)
    ]
    codes = [answer.status_code for answer in answers]
    # The minute may have turned once in between.
    assert 1 <= codes.count(429) <= 5, codes
    refused = answers[codes.index(429)]
    assert refused.json()["code"] == "throttled"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    other = logged_in(User.objects.create_user("eve"))
    assert other.post(ways[0][0], ways[0][1], content_type="application/json").status_code == 200
