"""Texts name jobs of other users for admins alone, wherever they are stored and shown."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from string import Formatter

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.values.explanations import (
    JOB_FIELDS,
    TEXTS,
    others_jobs_hidden,
    others_jobs_named,
    reason,
)
from frontend.forms import all_template_values
from jobs.models import (
    Event,
    Generation,
    Job,
    NotificationChannel,
    NotificationDelivery,
    Project,
    ProjectMembership,
)
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.notifications import JOB_EVENTS
from tests.core.values.test_explanations import FIELDS
from tests.jobs.world import World
from tests.security.every_answer import answers_of
from tests.support.builders import api_token_make, job_make, logged_in, submission_values, user_make

pytestmark = pytest.mark.django_db

#: Number of somebody else's job; no other number of the tests looks like it.
OTHER = 7_341_907


def fields_of(code: str) -> Iterator[str]:
    return (name for _, name, _, _ in Formatter().parse(TEXTS[code]) if name)


def sentence(code: str) -> str:
    """Render a code with somebody else's job in it, as the reason of job 1."""
    fields = {name: OTHER if name in JOB_FIELDS else FIELDS[name] for name in fields_of(code)}
    if code == "pollux_speed":
        fields["before"] = None
    if "cause" in fields:
        fields["cause"] = reason("for_job", winner=OTHER)
    return others_jobs_named(str(reason(code, **fields)), 1, {1: (10, None), OTHER: (11, None)})


NAMING = [code for code in TEXTS if str(OTHER) in sentence(code)]


def test_the_codes_that_name_jobs_are_known() -> None:
    assert {code for code in TEXTS if {*fields_of(code)} & JOB_FIELDS} <= {*NAMING}
    assert len(NAMING) >= 8
    text, groups = "Waits behind job 7; for job 8.", {1: (10, None), 7: (10, None), 8: (11, None)}
    own = others_jobs_named(text, 1, groups)
    assert own == "Waits behind job 7; for another user's job 8."
    assert others_jobs_hidden(own) == "Waits behind job 7; for another user's job."
    for project, named, hidden in (
        (3, "behind job 7;", "behind job 7;"),
        (None, "behind its owner's other job 7;", "behind its owner's other job;"),
        (4, "behind its owner's other job 7;", "behind its owner's other job;"),
    ):
        shared = others_jobs_named(text, 1, {**groups, 1: (10, 3), 7: (10, project)})
        assert named in shared
        assert hidden in others_jobs_hidden(shared)
    assert others_jobs_named("for job 7.", 1, {**groups, 7: (10, 3)}) == "for job 7."


@pytest.mark.parametrize("code", NAMING)
def test_a_sentence_of_each_code_hides_the_number(code: str) -> None:
    assert f"another user's job {OTHER}" in sentence(code)
    assert str(OTHER) not in others_jobs_hidden(sentence(code))


def test_no_answer_tells_users_the_numbers_of_others_jobs(ada: User, admin: User) -> None:
    world = World(num_nodes=1, num_accelerators=2)
    job = job_make(ada, max_accelerators=1)
    NotificationChannel.objects.create(
        owner=ada, name="n", kind="webhook", address="x", events=[*JOB_EVENTS], created_at=world.now
    )
    world.settle(4)
    world.train(job)
    text = " ".join(sentence(code) for code in NAMING)
    data = {"reason": text, "list": [{"reason": text}]}
    row = Job.objects.get(pk=job.pk)
    for kind in (*JOB_EVENTS, "resize"):
        event_add(kind, text, now=timezone.now(), job=row, data=data)
    Event.objects.filter(job=job).update(message=text, data=data)
    Generation.objects.update(reason=text)
    numbers = {"job_id": job.pk, "other_id": job.pk, "node_id": world.nodes[0].node.pk}
    numbers["channel_id"] = NotificationChannel.objects.get().pk
    assert str(OTHER) not in json.dumps([*NotificationDelivery.objects.values_list("body")])
    here = {f"/jobs/{job.pk}/", f"/api/v1/jobs/{job.pk}/"}
    here |= {f"/api/v1/jobs/{job.pk}/{name}/" for name in ("events", "generations", "allocations")}
    for status, code in (("running", ""), ("running", "below_minimum"), ("failed", "")):
        Job.objects.filter(pk=job.pk).update(
            policy_reason=text, status_reason=text, status=status, status_code=code,
            submitted_at=timezone.now(), ended_at=timezone.now() if status == "failed" else None,
        )  # fmt: skip
        of_job = "jobs/<int:job_id>/"
        is_listed = not code and status == "running"
        shown = here | {"/api/v1/jobs/", "/", "/timeline/figures/"} if is_listed else here
        lists = "|^(api/v1/jobs/|timeline/figures/)?$" if is_listed else ""
        seen = answers_of(ada, of_job if code else "", **numbers)
        told = answers_of(admin, of_job + lists, **numbers)
        telling = [path for path, answer in seen.items() if str(OTHER) in answer]
        assert telling == [], (
            "the number of another user's job: `ReadableText`, or `|readable:user`"
        )
        assert {
            path.partition("?")[0] for path, text in told.items() if str(OTHER) in text
        } >= shown
        assert all("another user" in seen[path].lower() for path in shown)


@pytest.mark.parametrize(
    "policy", ["fifo", pytest.param("goodput_fair", marks=pytest.mark.nightly)]
)
def test_a_dry_run_names_no_job_of_others(policy: str, ada: User, bob: User, admin: User) -> None:
    world = World(num_nodes=1, num_accelerators=2, policy=policy)
    job = job_make(bob, pk=OTHER, min_accelerators=2, max_accelerators=2, tier="urgent")
    job_make(bob, pk=OTHER + 1, min_accelerators=2, max_accelerators=2, tier="urgent")
    world.settle()
    assert job.allocations.filter(released_at=None).count() == 2
    values = submission_values(min_accelerators=2, max_accelerators=2)
    answers = {}
    for person in (ada, admin):
        client = APIClient(headers={"Authorization": f"Bearer {api_token_make(person)}"})
        answers[person] = client.post("/api/v1/jobs/?dry_run=1", values, format="json").content
    assert str(OTHER // 10) not in answers[ada].decode()
    assert f"another user's job {OTHER // 10}" in answers[admin].decode()
    page = logged_in(ada)
    form = {
        name: "on" if value is True else value
        for name, value in all_template_values()["template:tabular"].items()
        if value not in (None, False)
    }
    form |= {"code_from": "template:tabular", "do": "check", "min_accelerators": 2}
    shown = page.post("/jobs/new/", form).content.decode()
    assert "another user&#x27;s job" in shown
    assert str(OTHER // 10) not in shown


def test_forks_of_others_are_listed_for_admins_alone(ada: User, admin: User) -> None:
    parent = job_make(ada)
    own, root = (job_make(user, forked_from=parent) for user in (ada, admin))
    for person, numbers in ((ada, [own.pk]), (admin, [own.pk, root.pk])):
        client = APIClient(headers={"Authorization": f"Bearer {api_token_make(person)}"})
        assert client.get(f"/api/v1/jobs/{parent.pk}/").json()["forks"] == numbers
        rows = client.get("/api/v1/jobs/?fields=id,forks").json()["results"]
        assert {row["id"]: row["forks"] for row in rows}[parent.pk] == numbers


def test_forks_in_a_project_are_listed_for_its_members(ada: User, bob: User, admin: User) -> None:
    project = Project.objects.create(name="vision", created_at=timezone.now())
    for user in (ada, bob):
        ProjectMembership.objects.create(project=project, user=user, since=timezone.now())
    parent = job_make(ada, project=project)
    private = job_make(ada, forked_from=parent)
    shared = job_make(bob, forked_from=parent, project=project)
    foreign = job_make(admin, forked_from=parent)
    seen = {ada: [private, shared], bob: [shared], admin: [private, shared, foreign]}
    for person, forks in seen.items():
        client = APIClient(headers={"Authorization": f"Bearer {api_token_make(person)}"})
        numbers = [fork.pk for fork in forks]
        assert client.get(f"/api/v1/jobs/{parent.pk}/").json()["forks"] == numbers
        only = client.get(f"/api/v1/jobs/{parent.pk}/?fields=id,forks").json()
        assert only == {"id": parent.pk, "forks": numbers}
        rows = client.get("/api/v1/jobs/?fields=id,forks").json()["results"]
        assert {row["id"]: row["forks"] for row in rows}[parent.pk] == numbers
        browser = logged_in(person)
        page = browser.get(f"/jobs/{parent.pk}/").content.decode()
        linked = [one.pk for one in seen[admin] if f'href="/jobs/{one.pk}/"' in page]
        assert linked == numbers


def test_a_private_parent_is_no_link_for_other_members(ada: User, bob: User) -> None:
    project = Project.objects.create(name="vision", created_at=timezone.now())
    for user in (ada, bob):
        ProjectMembership.objects.create(project=project, user=user, since=timezone.now())
    parent = job_make(ada)
    fork = job_make(ada, forked_from=parent, project=project)
    prediction = job_make(
        ada, project=project, task="predict", stop_kind="epochs", stop_limit=1, shuffle=False,
        source_job=parent, source_sha256="0" * 64,
    )  # fmt: skip
    for person, num_links in ((ada, 1), (bob, 0)):
        browser = logged_in(person)
        for job in (fork, prediction):
            page = browser.get(f"/jobs/{job.pk}/").content.decode()
            assert page.count(f'href="/jobs/{parent.pk}/"') == num_links
            assert f"job #{parent.pk}" in page
            compared = re.findall(r'href="(/[a-z/]*compare/[^"]*)">Compare them', page)
            assert len(compared) == (num_links if job is fork else 0)
            for link in compared:
                assert browser.get(html.unescape(link)).status_code == 200


def test_a_former_admin_reads_no_messages_about_others(ada: User, admin: User) -> None:
    world = World(num_nodes=0)
    channel = NotificationChannel.objects.create(
        owner=admin, name="all", kind="webhook", address="x", events=["failed", "node_lost"],
        is_cluster_wide=True, created_at=world.now, paused_reason="",
    )  # fmt: skip
    for owner in (ada, admin):
        job = job_make(owner, name=f"name-of-{owner.username}")
        event_add("failed", "It failed.", now=world.now, job=job)
    event_add("node_lost", "node-x is not heard of any more", now=world.now)
    assert channel.deliveries.count() == 3
    person = User.objects.get(pk=admin.pk)
    User.objects.filter(pk=admin.pk).update(is_staff=False)
    client = logged_in(User.objects.get(pk=person.pk))
    path = f"/api/v1/channels/{channel.pk}/"
    for is_wide in (True, False):
        NotificationChannel.objects.update(is_cluster_wide=is_wide)
        found = client.get(f"{path}deliveries/").json()["results"]
        assert [row["body"]["data"]["job"]["name"] for row in found] == [f"name-of-{admin}"]
        page = client.get(f"/account/notifications/{channel.pk}/").content.decode()
        others = Job.objects.get(owner=ada).pk
        assert f"job {others}" not in page
        assert "node was lost" not in page.partition('id="deliveries-title"')[2]


def test_users_of_one_name_prefix_do_not_count_as_one() -> None:
    one, two = user_make("eve"), user_make("eve2")
    groups = {1: (one.pk, None), 2: (two.pk, None), 3: (None, None)}
    assert others_jobs_named("for job 2", 1, groups) == "for another user's job 2"
    assert others_jobs_named("for job 3", 1, groups) == "for another user's job 3"
    assert others_jobs_named("for job 4", 1, groups) == "for another user's job 4"
