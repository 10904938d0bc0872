"""What buttons and forms of the pages do."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import ApiToken, EnrolmentToken, Event, Job, Node, NotificationChannel
from jobs.services.cluster.tokens import token_digest
from jobs.services.notifications.senders import confirmation_code
from jobs.services.scheduling.policy import cluster_setting
from jobs.services.submission.job_actions import job_describe
from tests.frontend.world import PASSWORD, World, make_channel


def token_form(**fields: str) -> dict[str, str]:
    """Give the fields of the form for API tokens; an empty one is an unchecked box."""
    usual = {"name": "ci", "days": "30", "may_read": "on", "may_write": "on", "password": PASSWORD}
    return {name: value for name, value in (usual | fields).items() if value or name == "name"}


def _said(response: object) -> str:
    """Give the messages that the page after a redirect shows."""
    return " ".join(str(message) for message in response.context["messages"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "action", "status"),
    [
        ("pending", "cancel", "cancelled"),
        ("pending", "pause", "paused"),
        ("paused", "resume", "pending"),
        ("paused", "cancel", "cancelled"),
    ],
)
def test_actions_of_the_owner(
    name: str, action: str, status: str, world: World, ada: Client
) -> None:
    job = world.jobs[name]
    response = ada.post(f"/jobs/{job.pk}/{action}/", follow=True)
    assert response.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert Job.objects.get(pk=job.pk).status == status
    assert f"#{job.pk}" in _said(response)
    assert job.events.filter(actor="user:ada").count() == 1


def test_an_action_that_comes_too_late_says_why(world: World, ada: Client) -> None:
    response = ada.post(f"/jobs/{world.jobs['finished'].pk}/cancel/", follow=True)
    assert _said(response) == "A job that is finished cannot be cancelled."


def test_an_admin_changes_a_priority_with_a_reason(world: World, admin: Client) -> None:
    job = world.jobs["pending"]
    # PostgreSQL does not store a NUL.
    admin.post(f"/jobs/{job.pk}/priority/", {"priority": "400", "reason": "paper\0 deadline"})
    assert Job.objects.get(pk=job.pk).priority == 400
    event = job.events.get(kind="reprioritised")
    assert (event.actor, event.data["before"], event.data["after"], event.data["reason"]) == (
        "user:admin", 50, 400, "paper deadline",
    )  # fmt: skip
    assert admin.get("/queue/").context["rows"][0].job == job


@pytest.mark.parametrize(
    ("priority", "reason", "expected"),
    [
        ("400", "  ", "Say why: the owner will read it."),
        ("0", "x", "Give a whole number from 1 to 1000."),
        ("-5", "x", "Give a whole number from 1 to 1000."),
        ("much", "x", "Give a whole number from 1 to 1000."),
        ("²", "x", "Give a whole number from 1 to 1000."),
        ("9" * 40, "x", "Give a whole number from 1 to 1000."),
    ],
)
def test_a_bad_priority_changes_nothing(
    priority: str, reason: str, expected: str, world: World, admin: Client
) -> None:
    job = world.jobs["pending"]
    response = admin.post(
        f"/jobs/{job.pk}/priority/", {"priority": priority, "reason": reason}, follow=True
    )
    assert _said(response) == expected
    assert Job.objects.get(pk=job.pk).priority == 50


def test_owners_change_their_own_priority_without_a_reason(world: World, ada: Client) -> None:
    job = world.jobs["pending"]
    ada.post(f"/jobs/{job.pk}/priority/", {"priority": "60"})
    assert Job.objects.get(pk=job.pk).priority == 60


def test_switching_the_policy(world: World, admin: Client) -> None:
    given = {"policy": "fifo", "reason": "to compare"}
    response = admin.post("/queue/policy/", given, follow=True)
    assert _said(response) == "The policy is fifo now."
    event = Event.objects.get(kind="policy")
    assert event.data == {"before": "goodput_fair", "after": "fifo", "reason": "to compare"}
    assert cluster_setting().policy == "fifo"
    wrong = admin.post("/queue/policy/", {"policy": "<b>"}, follow=True)
    assert _said(wrong).startswith("Choose one of fifo")
    assert cluster_setting().policy == "fifo"


def test_the_policy_is_switched_once_by_two_admins(world: World, admin: Client) -> None:
    """A preview made before the other admin's switch is refused, and says so."""
    forms = [admin.get("/queue/?policy=fifo"), admin.get("/queue/?policy=priority")]
    versions = [form.context["policy_version"] for form in forms]
    assert f'name="version" value="{versions[0]}"' in forms[0].content.decode()
    admin.post("/queue/policy/", {"policy": "fifo", "version": versions[0]})
    late = {"policy": "priority", "version": versions[1]}
    assert "in the meantime" in _said(admin.post("/queue/policy/", late, follow=True))
    assert cluster_setting().policy == "fifo"


def test_what_the_form_leaves_alone_may_have_been_changed_by_others(
    world: World, ada: Client
) -> None:
    job = world.jobs["pending"]
    job_describe(job.pk, timezone.now(), actor="user:ada", tags=["old"], note="first")
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert 'name="seen-tags" value="old"' in page
    assert 'name="seen-note" value="first"' in page
    job_describe(job.pk, timezone.now(), actor="user:root", tags=["theirs"])
    given = {"tags": "old", "seen-tags": "old", "note": "mine", "seen-note": "first"}
    ada.post(f"/jobs/{job.pk}/describe/", given)
    job.refresh_from_db()
    assert (job.tags, job.note) == (["theirs"], "mine")
    job_describe(job.pk, timezone.now(), actor="user:ada", note="two\nlines")
    stale = {"tags": "new", "seen-tags": "old", "note": "first", "seen-note": "first"}
    page = ada.post(f"/jobs/{job.pk}/describe/", stale, follow=True)
    assert "Somebody else has changed the tags in the meantime." in _said(page)
    assert b'name="tags" value="new"' in page.content
    given = {"tags": "new", "seen-tags": "theirs", "note": "twolines", "seen-note": "two\r\nlines"}
    ada.post(f"/jobs/{job.pk}/describe/", given)
    job.refresh_from_db()
    assert (job.tags, job.note) == (["new"], "two\nlines")


def test_a_node_that_was_set_aside_says_why_and_is_taken_back(world: World, admin: Client) -> None:
    node = world.nodes[0]
    Node.objects.filter(pk=node.pk).update(
        quarantined_until=timezone.now(),
        quarantine_reason="3 trainers of 2 jobs died there within 10 min",
    )
    page = admin.get("/nodes/").content.decode()
    assert "3 trainers of 2 jobs died there within 10 min" in page
    assert f"/nodes/{node.pk}/unquarantine/" in page
    admin.post(f"/nodes/{node.pk}/unquarantine/")
    assert Node.objects.get(pk=node.pk).quarantined_until is None
    assert Event.objects.filter(node=node, kind="node_taken_back", actor="user:admin").exists()
    assert "Return to service" not in admin.get("/nodes/").content.decode()


def test_the_shape_that_an_admin_saw_is_accepted(world: World, admin: Client) -> None:
    node = world.nodes[0]
    shape = {"host": "10.0.0.9", "first_port": 9000, "last_port": 9009, "accelerators": []}
    Node.objects.filter(pk=node.pk).update(proposed_shape=shape | {"digest": "d1"})
    page = admin.get(f"/nodes/{node.pk}/").content.decode()
    assert f'action="/nodes/{node.pk}/shape/"' in page
    assert 'name="digest" value="d1"' in page
    said = admin.post(f"/nodes/{node.pk}/shape/", {"digest": "d0"}, follow=True).content.decode()
    assert "does not propose this shape" in said
    admin.post(f"/nodes/{node.pk}/shape/", {"digest": "d1"})
    node.refresh_from_db()
    assert (node.host, node.proposed_shape) == ("10.0.0.9", None)


def test_a_job_that_waits_below_its_minimum_says_so(world: World, admin: Client) -> None:
    job = world.jobs["running"]
    text = "Waits with its state in memory: 1 of at least 2 accelerators are left."
    Job.objects.filter(pk=job.pk).update(status_code="below_minimum", status_reason=text)
    page = admin.get(f"/jobs/{job.pk}/").content.decode()
    assert "Waiting: trainers were lost" in page
    assert text in page


def test_cordoning_and_draining_a_node(world: World, admin: Client) -> None:
    node = world.nodes[0]
    steps = {"cordon": NodeStatus.CORDONED, "drain": NodeStatus.DRAINING}
    for change, status in {**steps, "uncordon": NodeStatus.ONLINE}.items():
        admin.post(f"/nodes/{node.pk}/cordon/", {"change": change, "reason": "new memory"})
        assert Node.objects.get(pk=node.pk).shown_status == status
    events = Event.objects.filter(node=node, actor="user:admin", data__reason="new memory")
    kinds = ["node_cordoned", "node_drained", "node_uncordoned"]
    assert list(events.order_by("id").values_list("kind", flat=True)) == kinds
    admin.post(f"/nodes/{node.pk}/cordon/", {"change": "remove"})
    assert Event.objects.filter(node=node, actor="user:admin").count() == 3
    assert admin.post("/nodes/4711/cordon/", {"change": "cordon"}).status_code == 404


def test_an_enrolment_token_is_shown_once(world: World, admin: Client) -> None:
    response = admin.post("/nodes/tokens/", {"hours": "2"})
    assert response.headers["Cache-Control"] == "no-store"
    command = response.context["new_token"]["command"]
    secret = command.split("=")[1].split()[0]
    row = EnrolmentToken.objects.get(digest=token_digest(secret))
    assert row.created_by == world.admin
    assert 1.9 < (row.expires_at - timezone.now()).total_seconds() / 3600 <= 2
    assert "python -m agents --server http://testserver --node" in command
    assert secret in response.content.decode()
    assert secret not in admin.get("/nodes/").content.decode()


def test_a_new_token_of_a_node_is_shown_once(world: World, admin: Client, ada: Client) -> None:
    node = world.nodes[0]
    before = node.agent_token_digest
    page = admin.get("/nodes/").content.decode()
    assert f'action="/nodes/{node.pk}/new-token/"' in page
    assert "new-token" not in ada.get("/nodes/").content.decode()
    response = admin.post(f"/nodes/{node.pk}/new-token/")
    assert response.headers["Cache-Control"] == "no-store"
    command = response.context["new_token"]["command"]
    secret = command.split("=")[1].split()[0]
    row = EnrolmentToken.objects.get(digest=token_digest(secret))
    assert (row.node, row.created_by) == (node, world.admin)
    assert f"--node {node.name}" in command
    assert ("--isolation uid" in command) == (node.isolation == "uid")
    assert f"New token for {node.name} (shown only once)" in response.content.decode()
    assert secret not in admin.get("/nodes/").content.decode()
    node.refresh_from_db()
    assert node.agent_token_digest != before
    assert Event.objects.get(kind="node_token_replaced").actor == "user:admin"
    assert admin.post("/nodes/4711/new-token/").status_code == 404


@pytest.mark.parametrize("hours", ["0", "169", "", "ten", "99999999999999999999"])
def test_an_enrolment_token_does_not_live_for_ever(hours: str, admin: Client) -> None:
    response = admin.post("/nodes/tokens/", {"hours": hours}, follow=True)
    assert _said(response) == "Give whole hours from 1 to 168."
    assert f'max="168" value="{hours}"' in response.content.decode()
    assert not EnrolmentToken.objects.exists()


@pytest.mark.parametrize(
    ("address", "form", "kept"),
    [
        (
            "/queue/policy/",
            {"policy": "weighted_fair", "version": "0", "reason": "it's late"},
            'name="reason" maxlength="200" value="it&#x27;s late"',
        ),
        (
            "/jobs/filters/",
            {"query": "status=live", "name": "a\tb"},
            'name="name" maxlength="60" value="a\tb"',
        ),
    ],
)
def test_a_refused_form_keeps_what_was_typed(
    address: str, form: dict[str, str], kept: str, admin: Client
) -> None:
    response = admin.post(address, form, follow=True)
    assert _said(response)
    assert kept in response.content.decode()


def test_an_api_token_is_shown_once_and_revoked(world: World, ada: Client, ben: Client) -> None:
    response = ada.post("/account/tokens/", token_form(name="nightly", may_write=""))
    assert response.headers["Cache-Control"] == "no-store"
    secret = response.context["new_token"]["secret"]
    row = ApiToken.objects.get(digest=token_digest(secret))
    assert (row.user, row.name, row.scopes) == (world.ada, "nightly", ["jobs:read"])
    assert secret not in ada.get("/account/").content.decode()
    assert ben.post(f"/account/tokens/{row.pk}/revoke/").status_code == 404
    ada.post(f"/account/tokens/{row.pk}/revoke/")
    row.refresh_from_db()
    assert row.revoked_at is not None
    assert "nightly" not in {token.name for token in ada.get("/account/").context["tokens"]}


@pytest.mark.parametrize(
    ("boxes", "scopes"),
    [
        ({}, ["jobs:read", "jobs:write"]),
        ({"may_administer": "on"}, ["admin", "jobs:read", "jobs:write"]),
        ({"may_administer": "on", "may_read": "", "may_write": ""}, ["admin"]),
    ],
)
def test_an_api_token_has_the_chosen_scopes(
    boxes: dict[str, str], scopes: list[str], admin: Client
) -> None:
    admin.post("/account/tokens/", token_form(**boxes))
    assert ApiToken.objects.get().scopes == scopes


@pytest.mark.parametrize(
    ("values", "field"),
    [({"name": ""}, "name"), ({"days": "0"}, "days"), ({"name": "x" * 61}, "name"),
     ({"name": "a\u0007b"}, "name"), ({"password": "guess"}, "password"),
     ({"password": ""}, "password"), ({"may_read": "", "may_write": ""}, "may_read"),
     ({"may_administer": "on"}, "may_read")],
)  # fmt: skip
def test_a_bad_token_form_marks_the_field(values: dict[str, str], field: str, ada: Client) -> None:
    response = ada.post("/account/tokens/", token_form(**values))
    assert list(response.context["form"].errors) == [field]
    assert b'aria-invalid="true"' in response.content
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("do", ["pause", "resume"])
@pytest.mark.parametrize("paused_reason", ["", "5 messages in a row failed"])
def test_a_channel_becomes_what_its_button_said(
    do: str, paused_reason: str, world: World, ada: Client
) -> None:
    """The page may be older than a pause by another tab or after failures."""
    channel = NotificationChannel.objects.create(
        owner=world.ada,
        name="hook",
        kind="webhook",
        events=["finished"],
        paused_reason=paused_reason,
        created_at=timezone.now(),
    )
    page = ada.get("/account/notifications/")
    assert f'value="{"resume" if paused_reason else "pause"}"'.encode() in page.content
    ada.post(f"/account/notifications/{channel.pk}/pause/", {"do": do})
    channel.refresh_from_db()
    assert bool(channel.paused_reason) == (do == "pause")


def test_a_mailbox_is_confirmed_with_the_code_that_was_mailed(
    ada: Client, world: World, settings: Settings
) -> None:
    settings.EMAIL_HOST, settings.EMAIL_DOMAINS = "mail.example", ["lab.example"]
    form = {"name": "mine", "kind": "email", "address": "ada@lab.example", "events": ["failed"]}
    page = ada.post("/account/notifications/", form, follow=True).content.decode()
    channel = NotificationChannel.objects.get()
    assert "Enter the code that is mailed to it." in page
    assert "Not confirmed" in page
    assert "Resume" not in page
    assert "Pause<" not in page
    address = f"/account/notifications/{channel.pk}/confirm/"
    for code, words in {
        "": "Give the code of the mail",
        confirmation_code(channel): "The address of “mine” is confirmed.",
    }.items():
        assert words in ada.post(address, {"code": code}, follow=True).content.decode()
    page = ada.get("/account/notifications/").content.decode()
    assert "Send a test" in page
    assert "Not confirmed" not in page


@pytest.mark.parametrize(("num_messages", "is_said"), [(100, False), (101, True)])
def test_a_channel_says_that_only_its_newest_messages_are_shown(
    num_messages: int, is_said: bool, world: World, admin: Client
) -> None:
    channel = make_channel(world.admin, num_messages=num_messages)
    page = admin.get(f"/account/notifications/{channel.pk}/").content.decode()
    assert page.count('<td data-label="status">failed') == 100
    assert ("The newest 100 are shown." in page) == is_said
