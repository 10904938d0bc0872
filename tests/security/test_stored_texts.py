"""Texts that users and agents give are text on every page, in every figure, and in mail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.utils import timezone

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import (
    Accelerator,
    Allocation,
    ApiToken,
    EpochReport,
    Event,
    Generation,
    Job,
    JobMetric,
    Node,
    NotificationChannel,
    NotificationDelivery,
)
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.notifications import JOB_EVENTS
from jobs.services.notifications.senders import _email_send, message_text
from tests.jobs.world import World
from tests.security.every_answer import answers_of
from tests.support.builders import job_make
from tests.support.rows import log_add

pytestmark = pytest.mark.django_db

#: Begins a tag of its own in HTML, ends an attribute or a script, and is a link for charts.
PAYLOAD = "'\"></script><img src=x onerror=alert(1)><a href='javascript:x'>%{y}"
RAW = ("<img src=x", "<a href='javascript", "onerror=alert(1)>")


def stuffed(ada: User) -> dict[str, int]:
    """Fill every text that somebody gives with the payload; return the numbers of the routes."""
    world = World(num_nodes=1, num_accelerators=2)
    job = job_make(ada, name=PAYLOAD, max_accelerators=1, tags=[PAYLOAD], note=PAYLOAD,
                   settings={PAYLOAD: PAYLOAD}, code_name="job.py")  # fmt: skip
    world.settle(4)
    world.train(job)
    facts = {"summary": PAYLOAD, "warnings": [PAYLOAD], "num_examples": 64, PAYLOAD: PAYLOAD}
    Job.objects.update(
        status_reason=PAYLOAD, policy_reason=PAYLOAD, error_traceback=PAYLOAD, facts=facts,
        error_field=PAYLOAD[:40], metrics={PAYLOAD: 0.5}, submitted_at=timezone.now(),
    )  # fmt: skip
    Generation.objects.update(reason=PAYLOAD, actor=PAYLOAD)
    row = Job.objects.get(pk=job.pk)
    node = world.nodes[0].node
    for kind in (*JOB_EVENTS, "resize"):
        event_add(kind, PAYLOAD, now=timezone.now(), job=row, actor=PAYLOAD, data={"x": PAYLOAD})
    for kind in ("node_quarantined", "policy"):
        event_add(kind, PAYLOAD, now=timezone.now(), node=node, actor=PAYLOAD)
    Event.objects.update(at=timezone.now(), message=PAYLOAD)
    Node.objects.update(quarantine_reason=PAYLOAD, quarantined_until=timezone.now())
    Accelerator.objects.update(kind=PAYLOAD[:40], name=PAYLOAD, uuid=PAYLOAD[:80])
    Allocation.objects.update(granted_at=timezone.now())
    EpochReport.objects.create(
        job=job, epoch=0, generation=1, step=10, at=timezone.now(), logs={PAYLOAD: 0.5, "loss": 0.5}
    )
    JobMetric.objects.create(job=job, name=PAYLOAD, best=0.5, best_epoch=0, last=0.5)
    log_add(job, PAYLOAD, now=timezone.now())
    ApiToken.objects.create(user=ada, name=PAYLOAD[:60], digest="d", scopes=[])
    channel = NotificationChannel.objects.create(
        owner=ada, name=PAYLOAD[:60], kind="webhook", address="x", shown_address=PAYLOAD,
        paused_reason=PAYLOAD, events=[PAYLOAD], created_at=timezone.now(),
    )  # fmt: skip
    return {"job_id": job.pk, "other_id": job.pk, "node_id": node.pk, "channel_id": channel.pk}


def test_no_page_takes_a_text_for_markup(ada: User, admin: User) -> None:
    numbers = stuffed(ada)
    for person in (ada, admin):
        # JSON and text, which browsers are told not to take for a page, are left out.
        answers = answers_of(person, without=("api/", "metrics"), **numbers)
        for path, text in answers.items():
            if "/log" in path:
                continue
            shown = text
            if "figures" in path:  # legends and tables are set as text by the script
                figures = json.loads(text).values()
                traces = [[one["data"], one["layout"]] for one in figures]
                shown = json.dumps(traces).replace('\\"', '"')
            assert [word for word in RAW if word in shown] == [], (person.username, path)
        assert "&lt;img src=x" in answers[f"/jobs/{numbers['job_id']}/"]
        assert "&lt;img src=x" in answers["/nodes/"]


SEPARATORS = ["\r\n", "\n", "\r", "\u2028", "\x85", "\x0b", "\x1e"]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_no_text_adds_a_header_to_a_mail(separator: str, ada: User, settings: Any) -> None:
    job = job_make(ada, name=f"a{separator}Bcc: eve@evil.example", status=JobStatus.FAILED)
    text = f"It{separator}Bcc: eve@evil.example{separator}{separator}<b>body</b>"
    body = {
        "data": {
            "message": text,
            "job": {"id": job.pk, "name": job.name, "status": text, "step": 1, "path": "/"},
            "node": {"name": text, "path": "/"},
        },
        "timestamp": text,
    }
    title, _ = message_text(body)
    assert len(title.splitlines()) == 1

    delivery = NotificationDelivery(channel=NotificationChannel(), body=body)
    _email_send("ada@lab.example", delivery)
    (sent,) = mail.outbox
    assert sent.recipients() == ["ada@lab.example"]
    message = sent.message()
    assert {"Bcc", "bcc", "Cc"} & {*message.keys()} == set()
    assert message.get_content_type() == "text/plain"
