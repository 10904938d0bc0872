"""Forms of the pages with odd values are refused in words, never with an error of the site."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urljoin

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs.models import NotificationChannel
from tests.jobs.test_authorisation import routes
from tests.support.builders import job_make, logged_in, node_make, validation_make

pytestmark = pytest.mark.django_db

#: Fields of the pages' forms.
NAMES = """
priority tier reason job back tag tags note next change hours policy name kind address
events is_cluster_wide password old_password new_password1 new_password2 username scopes
lifetime_days value code_from template settings global_batch_size stop_kind stop_limit
min_accelerators max_accelerators accepted_kinds forked_from checkpoint yaml accelerators
window undo source_job num_virtual_nodes seed secrets axis copies
""".split()  # noqa: SIM905 - one name a line would be fifty lines
VALUES: dict[str, Any] = {
    "nothing": "",
    "NUL": "a\0b",
    "surrogate": b"\xed\xa0\x80",
    "digits": "\u0663\u00b2",
    "long": "9" * 400,
    "below": "-1",
    "part": "1.0",
    "lists": "[" * 2000,
    "markup": "'\"><img src=x>",
    "lines": "a\r\nSet-Cookie: x=1",
    "path": "//evil.example/..",
}
#: Values of `do` that lead to other branches.
DOES = ("", "preview", "compare", "reprioritise", "tag", "check", "measure", "yaml", "submit")
UNDOS = [
    "{}", "[]", "[1]", '[{"action": "cancel"}]', '[{"action": " cancel", "jobs": [1]}]',
    '[{"action": ["cancel"], "jobs": [1]}]', '[{"action": "cancel", "jobs": ["1.0"]}]',
    '[{"action": "tag", "jobs": [1], "tag": {"a": 1}}]', '[{"jobs": 1e400}]', "[" * 2000,
    '[{"action": "cancel", "jobs": [1], "\\u0000": 1}]', '[{"action": "cancel", "jobs": [true]}]',
    '[{"action": "reprioritise", "jobs": [1], "priority": 1e400}]',
]  # fmt: skip


@pytest.fixture
def paths(ada: User, admin: User) -> list[str]:
    job, (node, _) = job_make(ada), node_make()
    validation = validation_make(job)
    channel = NotificationChannel.objects.create(
        owner=ada, name="n", kind="webhook", address="x", events=["failed"],
        created_at=timezone.now(),
    )  # fmt: skip
    numbers = {
        "job_id": job.pk, "node_id": node.pk, "validation_id": validation.pk,
        "channel_id": channel.pk, "token_id": 1, "replay_id": 1,
    }  # fmt: skip
    found = []
    for route, pattern in routes():
        is_page = pattern.callback.__module__.startswith("frontend.")
        if not is_page or route in ("logout/", "stream/") or "delete" in route:
            continue
        for name, number in numbers.items():
            route = route.replace(f"<int:{name}>", str(number))
        found.append("/" + route.replace("<str:name>", "model.keras"))
    return found


def session_of(user: User) -> Client:
    return logged_in(user, raise_request_exception=False)


@pytest.mark.parametrize(
    "what",
    [name if name == "NUL" else pytest.param(name, marks=pytest.mark.nightly) for name in VALUES],
)
def test_no_odd_value_is_an_error_of_the_site(
    what: str, paths: list[str], ada: User, admin: User
) -> None:
    clients = [session_of(one) for one in ((admin,) if what == "NUL" else (ada, admin))]
    form = dict.fromkeys(NAMES, VALUES[what])
    for path in paths:
        does = DOES if path in ("/jobs/actions/", "/jobs/new/") else DOES[:1]
        for client in clients:
            for do in does:
                answer = client.post(path, {**form, "do": do})
                assert answer.status_code < 500, (path, do)
                assert "Set-Cookie: x" not in str(answer.headers)
                location = urljoin("http://testserver/x/", answer.headers.get("Location", ""))
                assert location.startswith("http://testserver/"), location
            query = dict.fromkeys((*NAMES, "from", "fork", "to", "node", "q"), VALUES[what])
            assert client.get(path, query).status_code < 500, path


@pytest.mark.parametrize("undo", UNDOS)
def test_a_forged_undo_is_refused(undo: str, ada: User) -> None:
    job = job_make(ada)
    text = undo.replace("[1]", f"[{job.pk}]") if "cancel" not in undo else undo
    answer = session_of(ada).post("/jobs/actions/", {"undo": text})
    assert answer.status_code == 302, json.dumps(undo)


@pytest.mark.parametrize("method", ["get", "post"])
def test_an_origin_that_is_no_address_is_refused(method: str) -> None:
    """Of a form without its token, by anybody; and of a stream."""
    client = Client(raise_request_exception=False, enforce_csrf_checks=True)
    path = {"get": "/stream/", "post": "/login/"}[method]
    answer = getattr(client, method)(path, headers={"Origin": "http://[::1"})
    assert answer.status_code == 403
