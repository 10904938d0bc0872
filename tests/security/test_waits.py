"""Rights that end while a request waits for a change: it is answered by those of afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from controlplane.turns import Turns
from jobs import nudges
from jobs.models import ApiToken, Job, Project, ProjectMembership, Validation
from jobs.selectors.desired_state.state import wanted_state
from tests.support.builders import (
    api_token_make,
    job_make,
    logged_in,
    node_make,
    user_make,
    validation_make,
)

pytestmark = pytest.mark.django_db


def demote(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=False)


#: Change of a user during a wait, whether the wait is that of a session, and the answer's status.
ENDS: dict[str, tuple[Callable[[User], Any], bool, int]] = {
    "nothing": (lambda _user: None, False, 200),
    "nothing, with a session": (lambda _user: None, True, 200),
    "token revoked": (
        lambda user: ApiToken.objects.filter(user=user).update(revoked_at=timezone.now()),
        False,
        401,
    ),
    "token expired": (
        lambda user: ApiToken.objects.filter(user=user).update(expires_at=timezone.now()),
        False,
        401,
    ),
    "account deactivated": (
        lambda user: User.objects.filter(pk=user.pk).update(is_active=False),
        False,
        401,
    ),
    "account deactivated, with a session": (
        lambda user: User.objects.filter(pk=user.pk).update(is_active=False),
        True,
        401,
    ),
    "logged out": (lambda _user: Session.objects.all().delete(), True, 401),
    "password changed": (
        lambda user: User.objects.filter(pk=user.pk).update(password="x"),
        True,
        401,
    ),
    "no admin any more": (demote, False, 404),
    "no admin any more, with a session": (demote, True, 404),
}


def has_free(turns: Turns) -> bool:
    with turns.taken(0.0) as has_turn:
        return has_turn


def waiting_client(user: User, *, has_session: bool) -> Client:
    if not has_session:
        return Client(headers={"Authorization": f"Bearer {api_token_make(user)}"})
    return logged_in(user)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """Give a list of what happens at the first wait."""
    happening: list[Callable[[], Any]] = []

    class Listener:
        def wait(self, _limit_s: float, _job_id: int | None = None) -> None:
            while happening:
                happening.pop()()

    @contextmanager
    def listening(_channel: str) -> Iterator[Listener]:
        yield Listener()

    monkeypatch.setattr(nudges, "listening", listening)
    return happening


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("of", ["job", "validation"])
def test_who_waited_has_the_rights_of_afterwards(
    of: str, name: str, meanwhile: list[Callable[[], Any]]
) -> None:
    end, has_session, status = ENDS[name]
    admin = user_make("root", is_staff=True)
    client = waiting_client(admin, has_session=has_session)
    job = job_make(user_make("ada"))
    if of == "validation":
        row = validation_make(job)
        running = {"status": "running", "deadline_at": timezone.now()}
        Validation.objects.filter(pk=row.pk).update(**running)
        change = Validation.objects.filter(pk=row.pk)
        address, changed = (
            f"/api/v1/validations/{row.pk}/?wait=30",
            {
                "status": "passed",
                "deadline_at": None,
            },
        )
    else:
        change = Job.objects.filter(pk=job.pk)
        address = f"/api/v1/jobs/{job.pk}/?wait=30&since_version={job.version}"
        changed = {"version": job.version + 1}
    meanwhile.append(lambda: change.update(**changed))
    meanwhile.append(lambda: end(admin))
    turns, others = Turns(1), list[bool]()
    meanwhile.append(lambda: others.append(has_free(turns)))
    with turns.taken(0.0):
        answer = client.get(address)
    assert answer.status_code == status, answer.content
    assert not meanwhile, "it has waited"
    assert others == [True], "its turn was another request's meanwhile"
    assert has_free(turns)


def test_a_member_who_is_removed_meanwhile_learns_nothing(
    meanwhile: list[Callable[[], Any]],
) -> None:
    project = Project.objects.create(name="vision", created_at=timezone.now())
    bob = user_make("bob")
    ProjectMembership.objects.create(project=project, user=bob, role="viewer", since=timezone.now())
    job = job_make(user_make("ada"), project=project)
    client = waiting_client(bob, has_session=False)
    meanwhile.append(lambda: Job.objects.filter(pk=job.pk).update(version=job.version + 1))
    meanwhile.append(ProjectMembership.objects.all().delete)
    answer = client.get(f"/api/v1/jobs/{job.pk}/?wait=30&since_version={job.version}")
    assert answer.status_code == 404


def test_an_agent_that_waits_leaves_its_turn_to_others(
    meanwhile: list[Callable[[], Any]],
) -> None:
    node, token = node_make("node-a", 1)
    turns, others = Turns(1), list[bool]()
    version = wanted_state(node).version
    meanwhile.append(lambda: others.append(has_free(turns)))
    with turns.taken(0.0):
        agent = Client(headers={"Authorization": f"Agent {token}"})
        answer = agent.get("/api/v1/agent/wanted/", {"version": version, "wait": 0.1})
    assert answer.status_code == 304, answer.content
    assert others == [True]
