"""Notifications: who hears of which event, how it is sent, and what comes of failures."""

from __future__ import annotations

import base64
import datetime
import hmac
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings
from virtualflow import VirtualFlowError
from virtualflow.webhooks import TOLERANCE_S, webhook_read

from jobs import nudges
from jobs.models import DeliveryStatus, Event, NotificationChannel, NotificationDelivery
from jobs.models.notifications import TEST_EVENT
from jobs.services.lifecycle.events import event_add, jobs_event_add
from jobs.services.lifecycle.notifications import (
    CLUSTER_EVENTS,
    CLUSTER_WAITING_LIMIT,
    JOB_EVENTS,
    WAITING_LIMIT,
)
from jobs.services.notifications.channels import channel_change
from jobs.services.notifications.deliveries import (
    CLAIM_S,
    FAILURES_LIMIT,
    RETRY_S,
    SWEEP_LIMIT,
    UNDER_WAY,
    deliveries_due,
    deliveries_expire,
    deliveries_to_ask,
    delivery_attempt,
    next_attempt,
)
from jobs.services.notifications.senders import Sent
from jobs.tasks import deliver_notification, send_notifications
from tests.jobs.notifications.channels import URL, channel_make
from tests.jobs.notifications.receiver import Receiver, receiver
from tests.support.builders import Clients, at, job_make, node_make, user_make

pytestmark = pytest.mark.django_db


@pytest.fixture
def hook(settings: Settings) -> Iterator[Receiver]:
    settings.WEBHOOK_PRIVATE_HOSTS = ["127.0.0.1"]
    with receiver() as made:
        yield made


def waiting() -> list[tuple[str, str]]:
    rows = NotificationDelivery.objects.order_by("id").select_related("channel__owner")
    return [(row.channel.owner.username, row.kind) for row in rows]


# --- who hears of what -----------------------------------------------------------------------


def test_an_event_reaches_those_who_asked_for_it(ada: User, bob: User) -> None:
    boss = user_make("boss", is_staff=True)
    for user in (ada, bob):
        channel_make(user, events=list(JOB_EVENTS))
    everything = [*JOB_EVENTS, *CLUSTER_EVENTS]
    channel_make(boss, events=everything, is_cluster_wide=True)
    channel_make(boss, events=list(JOB_EVENTS))  # of jobs of their own
    paused, _ = channel_make(ada, events=list(JOB_EVENTS))
    channel_change(ada, paused.pk, {"is_paused": True})
    node, _ = node_make()
    job = job_make(ada)
    for kind in (*JOB_EVENTS, *CLUSTER_EVENTS, "submitted"):
        NotificationDelivery.objects.all().delete()
        event_add(kind, "It happened", now=at(5), job=job, node=node)
        expected = []
        if kind in JOB_EVENTS:
            expected = [("ada", kind), ("boss", kind)]
        elif kind in CLUSTER_EVENTS:
            expected = [("boss", kind)]
        assert sorted(waiting()) == expected


def test_nobody_hears_of_what_is_not_theirs_any_more(ada: User) -> None:
    boss = user_make("boss", is_staff=True)
    channel_make(boss, is_cluster_wide=True)
    channel_make(ada)
    User.objects.filter(id=boss.pk).update(is_staff=False)
    User.objects.filter(id=ada.pk).update(is_active=False)
    event_add("finished", "Done", now=at(5), job=job_make(ada))
    assert waiting() == []


def test_rights_count_when_it_is_sent(ada: User, hook: Receiver) -> None:
    boss = user_make("boss", is_staff=True)
    channel, _ = channel_make(boss, hook.address, is_cluster_wide=True)
    event_add("finished", "Done", now=at(5), job=job_make(ada))
    delivery = NotificationDelivery.objects.get()
    User.objects.filter(id=boss.pk).update(is_active=False)
    assert deliveries_due(at(6)) == []
    assert not delivery_attempt(delivery.pk, at(6))
    User.objects.filter(id=boss.pk).update(is_active=True, is_staff=False)
    assert delivery_attempt(delivery.pk, at(6))
    channel.refresh_from_db()
    assert (hook.received, channel.paused_reason != "") == ([], True)


def test_the_number_of_waiting_messages_is_bounded(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, _ = channel_make(ada)
    body: dict[str, Any] = {}
    NotificationDelivery.objects.bulk_create(
        NotificationDelivery(
            channel=channel, kind="failed", body=body, next_try_at=at(0), created_at=at(0)
        )
        for _ in range(WAITING_LIMIT)
    )
    event_add("failed", "Again", now=at(5), job=job_make(ada))
    channel.refresh_from_db()
    assert (channel.num_dropped, channel.deliveries.count()) == (1, WAITING_LIMIT)
    assert deliveries_to_ask(at(6)) == SWEEP_LIMIT
    enqueued: list[int] = []
    monkeypatch.setattr(nudges, "deliveries_enqueue_now", enqueued.append)
    monkeypatch.setattr(nudges, "queue_lengths", lambda: {nudges.NOTIFICATIONS: 60})
    assert send_notifications() == SWEEP_LIMIT  # of which 60 wait already, with no worker there
    assert enqueued == [SWEEP_LIMIT - 60]


def test_many_messages_about_jobs_leave_room_for_those_about_nodes(ada: User, admin: User) -> None:
    """One job may differ from its earlier results, or many be cancelled, as often as they like."""
    events = ["cancelled", "digest_mismatch", "node_lost"]
    channel, _ = channel_make(admin, events=events, is_cluster_wide=True)
    job = job_make(ada)
    jobs_event_add("cancelled", "Cancelled", [job] * WAITING_LIMIT, now=at(1))
    for kind in ("digest_mismatch", "cancelled"):
        event_add(kind, "Once more", now=at(2), job=job)
    for _ in range(CLUSTER_WAITING_LIMIT + 1):
        event_add("node_lost", "A node is not heard of any more", now=at(3))
    counts = Counter(channel.deliveries.values_list("kind", flat=True))
    assert counts == {"cancelled": WAITING_LIMIT, "node_lost": CLUSTER_WAITING_LIMIT}
    channel.refresh_from_db()
    assert channel.num_dropped == 3


# --- whose turn it is ------------------------------------------------------------------------


def queued(channel: NotificationChannel, count: int) -> list[int]:
    """Queue messages; return their numbers."""
    rows = [
        NotificationDelivery.objects.create(
            channel=channel,
            kind=TEST_EVENT,
            body={"type": TEST_EVENT},
            next_try_at=at(0),
            created_at=at(0),
        )
        for _ in range(count)
    ]
    return [row.pk for row in rows]


class Sender:
    """A sender; `inside` is called while its message is under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, inside: Callable[[], object]) -> None:
        self.begun: list[int] = []
        self._inside = inside
        monkeypatch.setattr("jobs.services.notifications.deliveries.send", self)

    def __call__(self, delivery: NotificationDelivery, _now: datetime.datetime) -> Sent:
        assert delivery.answer == UNDER_WAY
        self.begun.append(delivery.pk)
        self._inside()
        return Sent(is_delivered=True, answer="HTTP 200")


def begun_together(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Begin `count` attempts, each while all those before it are under way."""
    sender = Sender(monkeypatch, lambda: len(sender.begun) < count and next_attempt(at(5)))
    next_attempt(at(5))
    return sender.begun


def test_one_owners_slow_receivers_do_not_delay_anothers_messages(
    ada: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        queued(channel_make(ada)[0], 5)
    (late,) = queued(channel_make(bob)[0], 1)
    assert begun_together(monkeypatch, 4)[1] == late


def test_one_slow_channel_does_not_delay_the_owners_others(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = queued(channel_make(ada)[0], 3)
    other = queued(channel_make(ada)[0], 2)
    begun = begun_together(monkeypatch, 5)
    assert begun == [first[0], other[0], first[1], other[1], first[2]]


def test_all_messages_are_sent_whatever_the_order(
    ada: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = queued(channel_make(ada)[0], 4) + queued(channel_make(bob)[0], 2)
    sender = Sender(monkeypatch, lambda: None)
    assert [next_attempt(at(5)) for _ in range(7)] == [True] * 6 + [False]
    assert sorted(sender.begun) == every
    assert not NotificationDelivery.objects.exclude(answer="HTTP 200").exists()


def test_what_a_killed_worker_began_does_not_count_for_ever(
    ada: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = queued(channel_make(ada)[0], 2)
    NotificationDelivery.objects.filter(id=old[0]).update(
        answer=UNDER_WAY, next_try_at=at(CLAIM_S), num_attempts=1
    )
    (new,) = queued(channel_make(bob)[0], 1)
    assert deliveries_due(at(5)) == [new, old[1]]
    assert deliveries_due(at(CLAIM_S)) == [old[0], new]


def test_the_task_sends_what_is_due(ada: User, hook: Receiver) -> None:
    queued(channel_make(ada, hook.address)[0], 2)
    assert [deliver_notification() for _ in range(3)] == [True, True, False]
    assert len(hook.received) == 2


# --- webhooks --------------------------------------------------------------------------------


def test_a_webhook_is_signed_and_says_what_happened(ada: User, hook: Receiver) -> None:
    _, key = channel_make(ada, hook.address)
    job = job_make(ada, name="mnist")
    event_add("failed", "It ran out of memory", now=at(5), job=job, data={"gib": 3.5, "who": "x"})
    assert [delivery_attempt(pk, at(6)) for pk in deliveries_due(at(6))] == [True]
    ((headers, body),) = hook.received
    now = at(6).timestamp()
    message = webhook_read(headers, body, key, now=now)
    assert (message["type"], message["data"]["figures"]) == ("job.failed", {"gib": 3.5})
    assert message["data"]["job"]["name"] == "mnist"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    of_no_key = base64.b64encode(hmac.digest(b"", signed, "sha256")).decode()
    forged = [
        ({**headers, "webhook-signature": f"v1,{of_no_key}"}, body, "", now),
        (headers, body.replace(b"mnist", b"other"), key, now),
        (headers, body, "whsec_" + "A" * 43 + "=", now),
        ({**headers, "webhook-id": "msg_0"}, body, key, now),
        ({**headers, "webhook-timestamp": str(int(now) + 1)}, body, key, now),
        ({**headers, "webhook-signature": "v1,"}, body, key, now),
        ({**headers, "webhook-signature": "v1,€"}, body, key, now),
        ({}, body, key, now),
        (headers, body, "no key", now),
        (headers, body, key, now + TOLERANCE_S + 1),
        (headers, body, key, now - TOLERANCE_S - 1),
    ]
    for case in forged:
        with pytest.raises(VirtualFlowError):
            webhook_read(case[0], case[1], case[2], now=case[3])


@pytest.mark.parametrize("status", [200, 204, 301, 302, 400, 404, 410, 429, 500, 503])
def test_success_alone_counts_and_redirects_are_not_followed(
    ada: User, hook: Receiver, status: int
) -> None:
    hook.status, hook.headers = status, {"Location": hook.address + "/elsewhere"}
    channel, _ = channel_make(ada, hook.address)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    assert delivery_attempt(deliveries_due(at(0))[0], at(0))
    channel.refresh_from_db()
    delivery = channel.deliveries.get()
    expected = {200: "delivered", 204: "delivered", 410: "failed"}.get(status, "waiting")
    assert (delivery.status, delivery.answer) == (expected, f"HTTP {status}")
    assert (len(hook.received), bool(channel.paused_reason)) == (1, status == 410)


def test_a_message_is_tried_again_and_given_up_in_the_end(ada: User, hook: Receiver) -> None:
    hook.status = 503
    channel, _ = channel_make(ada, hook.address)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    delivery = NotificationDelivery.objects.get()
    now = at(0)
    for wait_s in RETRY_S:
        assert delivery_attempt(delivery.pk, now)
        delivery.refresh_from_db()
        pause_s = (delivery.next_try_at - now).total_seconds()
        assert wait_s <= pause_s <= 1.2 * wait_s
        assert not delivery_attempt(delivery.pk, now)
        now = delivery.next_try_at
    assert delivery_attempt(delivery.pk, now)
    delivery.refresh_from_db()
    channel.refresh_from_db()
    assert (delivery.status, delivery.num_attempts) == ("failed", len(RETRY_S) + 1)
    assert (channel.num_failures, len(hook.received)) == (1, len(RETRY_S) + 1)
    assert not delivery_attempt(delivery.pk, now + datetime.timedelta(days=1))


def test_a_channel_that_always_fails_is_paused_until_its_owner_resumes_it(
    ada: User, client_of: Clients
) -> None:
    channel, _ = channel_make(ada, "http://127.0.0.1:9/nobody")
    NotificationChannel.objects.update(num_failures=FAILURES_LIMIT - 1)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    NotificationDelivery.objects.update(num_attempts=len(RETRY_S))
    assert delivery_attempt(deliveries_due(at(0))[0], at(0))
    client = client_of(ada)
    assert str(FAILURES_LIMIT) in client.get(f"{URL}{channel.pk}/").json()["paused_reason"]
    event_add("failed", "It", now=at(1), job=job_make(ada))
    assert channel.deliveries.count() == 1
    answer = client.patch(f"{URL}{channel.pk}/", {"is_paused": False}).json()
    assert (answer["paused_reason"], answer["num_failures"]) == ("", 0)


def test_a_killed_worker_loses_no_message_and_two_make_one_attempt(
    ada: User, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel_make(ada, hook.address)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    delivery = NotificationDelivery.objects.get()

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr("jobs.services.notifications.deliveries.send", die)
        for attempt in range(len(RETRY_S) + 1):
            with pytest.raises(SystemExit):
                delivery_attempt(delivery.pk, at(attempt * CLAIM_S))
            assert not delivery_attempt(delivery.pk, at(attempt * CLAIM_S + 1))
    delivery_attempt(delivery.pk, at(3600))
    delivery.refresh_from_db()
    assert (delivery.status, hook.received) == (DeliveryStatus.FAILED, [])


def test_a_claim_waits_for_no_other_table_and_its_channel_may_go(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition by way of a subquery is not checked again once another worker has the row."""
    channel, _ = channel_make(ada)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    delivery = NotificationDelivery.objects.get()

    def delete(*_: object) -> Sent:
        channel.delete()
        return Sent(is_delivered=True, answer="HTTP 200")

    monkeypatch.setattr("jobs.services.notifications.deliveries.send", delete)
    with CaptureQueriesContext(connection) as asked:
        assert delivery_attempt(delivery.pk, at(0))
    claim = next(row["sql"] for row in asked if row["sql"].startswith("UPDATE"))
    assert "SELECT" not in claim


def test_old_messages_are_deleted_and_events_may_go_before(ada: User, settings: Settings) -> None:
    channel, _ = channel_make(ada)
    event_add("failed", "It", now=at(0), job=job_make(ada))
    Event.objects.all().delete()
    assert channel.deliveries.get().event is None
    later = at(0) + datetime.timedelta(days=settings.NOTIFICATION_DAYS)
    assert deliveries_expire(later) == 0
    assert deliveries_expire(later + datetime.timedelta(seconds=1)) == 1


# --- chats --------------------------------------------------------------------------


def test_a_chat_message_reaches_the_service(ada: User, hook: Receiver, settings: Settings) -> None:
    settings.CHAT_SERVICES = ["json"]  # a service with a host of its own, as an admin may allow
    channel_make(ada, f"json://127.0.0.1:{hook.port}/x", kind="chat")
    job = job_make(ada, name="mnist")
    event_add("finished", "Done <b> [a](b) @all", now=at(0), job=job)
    assert delivery_attempt(deliveries_due(at(0))[0], at(0))
    ((_, body),) = hook.received
    title = f"Job {job.pk} (mnist): Done \u2039b\u203a [a]\u200b(b) @\u200ball"
    assert json.loads(body)["title"] == title
    assert NotificationDelivery.objects.get().answer == "accepted by the service"
