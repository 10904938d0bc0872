"""Mail channels: addresses, their confirmation, and what is mailed."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.utils import timezone
from pytest_django import Settings

from jobs.models import NotificationChannel, NotificationDelivery
from jobs.services.lifecycle.events import event_add
from jobs.services.notifications import channels
from jobs.services.notifications.channels import channel_confirm
from jobs.services.notifications.deliveries import deliveries_due, delivery_attempt, next_attempt
from jobs.services.notifications.senders import confirmation_code
from tests.jobs.notifications.channels import URL, channel_make
from tests.support.builders import Clients, at, job_make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _mail_server(settings: Settings) -> None:
    settings.EMAIL_HOST, settings.EMAIL_DOMAINS = "mail.example", ["lab.example"]


def confirmed(channel: NotificationChannel) -> None:
    """Mail the code of a new channel and enter it."""
    assert delivery_attempt(deliveries_due(at(0))[0], at(0))
    channel_confirm(channel.owner, channel.pk, confirmation_code(channel))


def test_a_mail_has_the_event_and_no_header_of_a_job_name(ada: User, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://site.example"
    channel, _ = channel_make(ada, "ada@LAB.example", kind="email")
    confirmed(channel)
    job = job_make(ada, name="a\nBcc: all@lab.example")
    event_add("finished", "Done\nBcc: all@lab.example", now=at(0), job=job)
    assert delivery_attempt(deliveries_due(at(0))[0], at(0))
    _code, sent = mail.outbox
    assert (sent.to, sent.bcc, "\n" in sent.subject) == (["ada@LAB.example"], [], False)
    assert f"https://site.example/jobs/{job.pk}/" in str(sent.body)
    assert NotificationDelivery.objects.latest("id").status == "delivered"


def test_a_mailbox_gets_a_code_and_nothing_else_until_it_is_entered(
    ada: User, bob: User, client_of: Clients
) -> None:
    client = client_of(ada)
    body = {"name": "bob's", "address": "bob@lab.example", "kind": "email"}
    number = client.post(URL, body).json()["id"]
    one = f"{URL}{number}/"
    event_add("failed", "a secret", now=timezone.now(), job=job_make(ada))
    for is_paused, status in ((False, 400), (True, 200), (False, 400)):  # no way around the code
        assert client.patch(one, {"is_paused": is_paused}).status_code == status
    while next_attempt(timezone.now()):
        pass
    (asked,) = mail.outbox
    assert "user ada asks" in str(asked.body)
    assert "secret" not in str(asked.body)
    code = re.search(r": ([A-Z2-7]{10})\n", str(asked.body) + "\n")[1]  # type: ignore[index]
    shown = [client.get(path).content.decode() for path in (URL, one, f"{one}deliveries/")]
    assert not [text for text in shown if code in text]
    other = client.post(URL, body | {"name": "another"}).json()["id"]
    for path, typed in {one: "AAAAAAAAAA", f"{URL}{other}/": code}.items():
        answer = client.post(f"{path}confirm/", {"code": typed})
        assert (answer.status_code, [*answer.json()["errors"]]) == (400, ["code"])
    assert client_of(bob).post(f"{one}confirm/", {"code": code}).status_code == 404
    typed = f" {code[:5].lower()} {code[5:]}"
    assert client.post(f"{one}confirm/", {"code": typed}).json()["paused_reason"] == ""
    event_add("failed", "is told", now=timezone.now(), job=job_make(ada))
    while next_attempt(timezone.now()):
        pass
    assert [sent.subject.endswith("is told") for sent in mail.outbox] == [False, False, True]


def test_three_codes_are_mailed_to_a_mailbox(ada: User, client_of: Clients) -> None:
    client, (channel, _) = client_of(ada), channel_make(ada, "ada@lab.example", kind="email")
    statuses = []
    while next_attempt(timezone.now()):
        statuses.append(client.post(f"{URL}{channel.pk}/test/").status_code)
    assert (statuses, len(mail.outbox)) == ([202, 202, 409], 3)


def test_deleted_mailboxes_count_for_a_day(
    ada: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_MAIL_CHANNELS_A_DAY", 2)
    client = client_of(ada)
    mailbox = {"name": "a", "address": "bob@lab.example", "kind": "email"}
    webhook = {"name": "b", "address": "https://a.example/"}
    answers = []
    for body in (mailbox, webhook, mailbox, mailbox, webhook):
        made = client.post(URL, body)
        answers.append(made.json().get("code", "made"))
        client.delete(f"{URL}{made.json().get('id', 0)}/")
    assert answers == ["made", "made", "made", "too_many_channels", "made"]


def test_mail_goes_to_the_domains_of_the_site_alone(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    for address, status in {
        "ada@lab.example": 201,
        "ada@other.example": 400,
        "ada@lab.example.org": 400,
        "a@other.example,ada@lab.example": 400,
        "ada": 400,
    }.items():
        body = {"name": address[:20], "address": address, "kind": "email"}
        assert client.post(URL, body).status_code == status, address
