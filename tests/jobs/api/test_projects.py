"""Projects by REST: roles and what they allow, quotas of submissions, members, the queue's view."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from controlplane.core.values.projects import ProjectQuota
from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.models import (
    Job,
    Node,
    Project,
    ProjectMembership,
    ProjectRole,
)
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.projects import ProjectState, guaranteed_total, project_quotas
from jobs.services.cluster.projects import member_set, project_change, project_delete
from jobs.services.submission.rows import job_clone_values, project_jobs_check
from tests.support.builders import (
    Clients,
    accelerators,
    at,
    audit_acts,
    job_make,
    node_make,
    submission_values,
    user_make,
)
from tests.support.rows import allocation_make

URL = "/api/v1/projects/"


@pytest.fixture
def vision(db: None) -> Project:
    return Project.objects.create(name="vision", guaranteed=2, limit=6, created_at=at(0))


def join(project: Project, user: User, role: ProjectRole = ProjectRole.MEMBER) -> None:
    ProjectMembership.objects.create(project=project, user=user, role=role.value, since=at(0))


def submit(client: APIClient, **values: Any) -> Any:
    return client.post("/api/v1/jobs/", submission_values(**values), format="json")


def test_admins_make_and_change_projects(admin: User, client_of: Clients) -> None:
    client = client_of(admin)
    made = client.post(URL, {"name": "vision", "guaranteed": 2, "limit": 6}, format="json")
    assert made.status_code == 201, made.content
    assert (made.json()["guaranteed"], made.json()["limit"], made.json()["members"]) == (2, 6, [])
    address = made.headers["Location"]
    changed = client.patch(address, {"limit": None, "user_limit": 3}, format="json")
    assert (changed.json()["limit"], changed.json()["user_limit"]) == (None, 3)
    stale = client.patch(address, {"limit": 5}, format="json", headers={"If-Match": made["ETag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_version")
    again = client.post(URL, {"name": "vision"}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "project_exists")
    assert [row["name"] for row in client.get(URL).json()] == ["vision"]
    entries = list(audit_acts().values_list("action", "object"))
    assert entries == [
        ("project_made", "project:vision"),
        ("project_changed", "project:vision"),
    ]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": "Vision!"}, "name"),
        ({}, "name"),
        ({"name": "a", "guaranteed": -1}, "guaranteed"),
        ({"name": "a", "guaranteed": 4, "limit": 3}, "guaranteed"),
        ({"name": "a", "limit": 0}, "limit"),
        ({"name": "a", "user_limit": "many"}, "user_limit"),
        ({"name": "a", "guaranteed_by_kind": 4}, "guaranteed_by_kind"),
        ({"name": "a", "guaranteed_by_kind": {"t4": -1}}, "guaranteed_by_kind"),
        ({"name": "a", "limit_by_kind": {"t4": None}}, "limit_by_kind"),
        ({"name": "a", "limit_by_kind": {"": 1}}, "limit_by_kind"),
        ({"name": "a", "limit_by_kind": {"\0": 1}}, "limit_by_kind"),
        ({"name": "a", "limit_by_kind": {str(n): 1 for n in range(101)}}, "limit_by_kind"),
        ({"name": "a", "owner": "ada"}, "owner"),
        ({"name": "a", "description": "red\x1b[31m"}, "description"),
    ],
)
def test_a_wrong_project_names_the_field(
    values: dict[str, Any], field: str, admin: User, client_of: Clients
) -> None:
    answer = client_of(admin).post(URL, values, format="json")
    assert answer.status_code == 400
    assert [*answer.json()["errors"]] == [field]


@pytest.mark.parametrize("role", [None, *ProjectRole])
def test_roles(role: ProjectRole | None, ada: User, client_of: Clients, vision: Project) -> None:
    """Each role on another member's job, on the own one, and on the members."""
    grace = user_make("grace")
    join(vision, ada)
    if role is not None:
        join(vision, grace, role)
    theirs = job_make(ada, project=vision)
    client = client_of(grace)
    allowed = {
        "see": client.get(f"/api/v1/jobs/{theirs.pk}/").status_code == 200,
        "list": len(client.get("/api/v1/jobs/", {"project": "vision"}).json()["results"]) == 1,
        "log": client.get(f"/api/v1/jobs/{theirs.pk}/logs/").status_code == 200,
        "project": client.get(f"{URL}{vision.pk}/").status_code == 200,
        "submit": submit(client, project="vision").status_code == 201,
        "tag": client.patch(
            f"/api/v1/jobs/{theirs.pk}/", {"tags": ["seen"]}, format="json"
        ).status_code
        == 200,
        "members": client.put(
            f"{URL}{vision.pk}/members/ada/", {"role": "viewer"}, format="json"
        ).status_code
        == 200,
    }
    act = {"action": "tag", "tag": "x", "jobs": [theirs.pk]}
    many = client.post("/api/v1/jobs/actions/", act, format="json").json()["results"][0]
    cancel = client.post(f"/api/v1/jobs/{theirs.pk}/cancel/", {}, format="json")
    allowed |= {"many": many["done"], "cancel": cancel.status_code == 200}
    sees = {"see", "list", "log", "project"}
    expected = {
        None: set(),
        ProjectRole.VIEWER: sees,
        ProjectRole.MEMBER: sees | {"submit"},
        ProjectRole.OPERATOR: sees | {"submit", "tag", "many", "cancel"},
        ProjectRole.ADMIN: sees | {"submit", "tag", "many", "cancel", "members"},
    }[role]
    assert {name for name, is_allowed in allowed.items() if is_allowed} == expected
    if role in (ProjectRole.VIEWER, ProjectRole.MEMBER):
        assert (cancel.status_code, cancel.json()["code"], many["code"]) == (
            *(403, "forbidden"),
            "forbidden",
        )
        assert Job.objects.get(pk=theirs.pk).version == theirs.version
    if role is None:
        assert (cancel.status_code, many["code"]) == (404, "not_found")
        assert client.get(URL).json() == []


def test_a_role_counts_in_its_own_project(ada: User, client_of: Clients, vision: Project) -> None:
    """Neither the role in another project nor that of another member gives rights."""
    grace, speech = user_make("grace"), Project.objects.create(name="speech", created_at=at(0))
    join(speech, grace, ProjectRole.ADMIN)
    join(vision, ada, ProjectRole.ADMIN)
    join(vision, grace, ProjectRole.VIEWER)
    theirs = job_make(ada, project=vision)
    client, path = client_of(grace), f"/api/v1/jobs/{theirs.pk}/"
    assert client.get(path).status_code == 200
    answers = [
        client.post(f"{path}cancel/", {}, format="json"),
        client.patch(path, {"tags": ["x"]}, format="json"),
        client.put(f"{URL}{vision.pk}/members/grace/", {"role": "admin"}, format="json"),
        client.delete(f"{URL}{vision.pk}/members/ada/"),
        client.post(
            "/api/v1/jobs/actions/preview/",
            {"action": "reprioritise", "jobs": [theirs.pk], "priority": 5},
            format="json",
        ),
    ]
    assert {answer.status_code for answer in answers} == {403}
    act = {"action": "cancel", "jobs": [theirs.pk]}
    many = client.post("/api/v1/jobs/actions/", act, format="json").json()["results"]
    assert [one["code"] for one in many] == ["forbidden"]
    assert submit(client, project="vision").json()["errors"]["project"][0].startswith("You cannot")
    clone = client.post(f"{path}clone/", {}, format="json").json()
    assert (clone["owner"], clone["project"]) == ("grace", None)
    said = client.get(f"/api/v1/jobs/{clone['id']}/events/").json()["results"][-1]["message"]
    assert said.startswith(f"Submitted without project vision of job {theirs.pk}: its owner cannot")
    assert Job.objects.get(pk=theirs.pk).version == theirs.version


def test_a_member_of_many_projects_sees_those_alone(
    ada: User, client_of: Clients, vision: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.selectors.access.PARTS_LIMIT", 2)
    grace = user_make("grace")
    made = [Project.objects.create(name=f"p{number}", created_at=at(0)) for number in range(4)]
    for project in made:
        join(project, grace)
    seen = [job_make(ada, project=project) for project in made]
    hidden = [job_make(ada, project=vision), job_make(ada)]
    client = client_of(grace)
    rows = client.get("/api/v1/jobs/").json()["results"]
    assert {row["id"] for row in rows} == {job.pk for job in seen}
    for job in (*seen, *hidden):
        status = 200 if job in seen else 404
        assert client.get(f"/api/v1/jobs/{job.pk}/").status_code == status


def test_strangers_learn_nothing_of_a_project(
    ada: User, client_of: Clients, vision: Project
) -> None:
    """A project that is not theirs reads like one that does not exist."""
    client = client_of(user_make("mallory"))
    answers = [
        (
            client.get(f"{URL}{number}/").content,
            client.put(f"{URL}{number}/members/mallory/", {"role": "admin"}).content,
            client.delete(f"{URL}{number}/members/ada/").content,
        )
        for number in (vision.pk, 999_999)
    ]
    assert answers[0] == answers[1]
    texts = [submit(client, project=name).json()["errors"] for name in ("vision", "absent")]
    assert str(texts[0]).replace("vision", "absent") == str(texts[1])


def test_members_are_set_and_removed(ada: User, client_of: Clients, vision: Project) -> None:
    boss, grace = user_make("grace"), user_make("linus")
    join(vision, boss, ProjectRole.ADMIN)
    client, address = client_of(boss), f"{URL}{vision.pk}/members/linus/"
    assert client.put(address, {"role": "member"}, format="json").status_code == 201
    assert client.put(address, {"role": "operator"}, format="json").status_code == 200
    members = client.get(f"{URL}{vision.pk}/").json()["members"]
    assert [(one["user"], one["role"]) for one in members] == [
        ("grace", "admin"),
        ("linus", "operator"),
    ]
    assert client.delete(address).status_code == 204
    assert client.delete(address).status_code == 404
    absent = client.put(f"{URL}{vision.pk}/members/nobody/", {"role": "member"}, format="json")
    assert absent.status_code == 404
    wrong = client.put(address, {"role": "king"}, format="json")
    assert [*wrong.json()["errors"]] == ["role"]
    shares = client.patch(f"{URL}{vision.pk}/", {"guaranteed": 6}, format="json")
    assert shares.status_code == 403
    assert not ProjectMembership.objects.filter(user=grace).exists()


def test_a_job_has_the_project_of_its_submission(
    ada: User, client_of: Clients, vision: Project
) -> None:
    join(vision, ada)
    client = client_of(ada)
    job = submit(client, project="vision").json()
    assert job["project"] == "vision"
    assert submit(client).json()["project"] is None
    clone = client.post(f"/api/v1/jobs/{job['id']}/clone/", {}, format="json")
    assert clone.json()["project"] == "vision"
    vision.is_closed = True
    vision.save()
    closed = submit(client, project="vision")
    assert closed.json()["errors"]["project"] == [
        "You cannot submit to a project 'vision'. Leave it out."
    ]


@pytest.mark.parametrize(
    ("limits", "values", "field"),
    [
        ({"live_jobs_limit": 1}, {}, "project"),
        ({"user_live_jobs_limit": 1}, {}, "project"),
        ({"limit": 2, "guaranteed": 0}, {"min_accelerators": 3}, "min_accelerators"),
        ({"user_limit": 2}, {"min_accelerators": 3}, "min_accelerators"),
    ],
)
def test_a_quota_names_the_field_and_the_fix(
    limits: dict[str, int],
    values: dict[str, int],
    field: str,
    ada: User,
    client_of: Clients,
    vision: Project,
) -> None:
    join(vision, ada)
    client = client_of(ada)
    sizes = {"num_virtual_nodes": 8, "max_accelerators": 4}
    assert submit(client, project="vision", **sizes, **values).status_code == 201
    Project.objects.update(**limits)
    answer = submit(client, project="vision", **sizes, **values)
    assert answer.status_code == 400
    errors = answer.json()["errors"]
    assert [*errors] == [field]
    assert "choose another project" in errors[field][0]
    assert Job.objects.count() == 1


def _node_of(kind: str, count: int) -> Node:
    return node_make(accelerators=accelerators(count, kind))[0]


def test_guarantees_of_kinds_keep_to_the_cluster(admin: User, client_of: Clients) -> None:
    """Of a kind no more is guaranteed than enrolled nodes have, whether they take work or not."""
    client = client_of(admin)
    nodes = [_node_of(kind, count).pk for kind, count in (("t4", 3), ("a100", 1))]
    Node.objects.filter(pk__in=nodes).update(is_cordoned=True)
    shares = {"guaranteed_by_kind": {"t4": 2}, "limit_by_kind": {"t4": 3, "a100": 0}}
    one = client.post(URL, {"name": "one", **shares}, format="json")
    assert one.status_code == 201, one.content
    assert {name: one.json()[name] for name in shares} == shares
    assert (one.json()["held_by_kind"], one.json()["borrowed_by_kind"]) == ({}, {})

    def refused(answer: Any) -> str:
        assert (answer.status_code, len(answer.json()["errors"])) == (400, 1), answer.content
        ((text,),) = answer.json()["errors"].values()
        return str(text)

    two = client.post(URL, {"name": "two", "guaranteed_by_kind": {"t4": 2}}, format="json")
    assert refused(two) == (
        "t4: the cluster has 3, 2 are guaranteed to others (one 2); give at most 1, or lower "
        "theirs."
    )
    unknown = client.post(URL, {"name": "two", "limit_by_kind": {"v100": 2}}, format="json")
    assert refused(unknown) == "v100: no enrolled node has this kind; give one of: a100, t4."
    address = one.headers["Location"]
    above = client.patch(address, {"limit": 1}, format="json")
    assert "2 together: give at most 1" in refused(above)
    above = client.patch(address, {"limit_by_kind": {"t4": 1}}, format="json")
    assert refused(above) == "t4: give at most 1, its limit, or raise the limit."

    Node.objects.filter(pk__in=nodes).update(removed_at=timezone.now())
    kept = client.patch(address, {"description": "x", **shares}, format="json")
    assert kept.status_code == 200, kept.content
    raised = client.patch(address, {"guaranteed_by_kind": {"t4": 3}}, format="json")
    assert refused(raised) == "t4: no enrolled node has this kind; give one of: none yet."
    lowered = client.patch(address, {"guaranteed_by_kind": {}, "limit_by_kind": {}}, format="json")
    assert lowered.json()["guaranteed_by_kind"] == {}


@pytest.mark.parametrize(
    ("guaranteed", "own", "held", "borrowed"),
    [
        (2, {}, {"t4": 3}, {"t4": 1}),
        (0, {"a100": 4}, {"t4": 4, "a100": 1}, {"t4": 4}),
        (8, {"a100": 4}, {"t4": 9, "a100": 1}, {"t4": 2}),
        (3, {"a100": 1}, {"t4": 3, "a100": 2}, {"t4": 1, "a100": 1}),
        (3, {"a100": 4}, {"a100": 4}, {}),
    ],
)
def test_what_a_project_borrows_by_kind(
    guaranteed: int, own: dict[str, int], held: dict[str, int], borrowed: dict[str, int]
) -> None:
    """The guarantee of all kinds covers what those of kinds leave of it, the largest first."""
    project = Project(guaranteed=guaranteed, guaranteed_by_kind=own)
    state = ProjectState(project, held, 1, 0, 1, "")
    assert state.borrowed_by_kind == borrowed
    assert state.borrowed == sum(borrowed.values())


def test_a_job_above_the_limit_of_its_kinds_is_refused(
    ada: User, client_of: Clients, vision: Project
) -> None:
    for kind in ("t4", "a100"):
        _node_of(kind, 2)
    Project.objects.update(limit_by_kind={"t4": 1})
    join(vision, ada)
    least = {"project": "vision", "min_accelerators": 2, "max_accelerators": 2}
    refused = submit(client_of(ada), **least, accepted_kinds=["t4"])
    assert "Give at most 1, the limit of the project for these kinds" in refused.content.decode()
    assert submit(client_of(ada), **least, accepted_kinds=["t4", "a100"]).status_code == 201


def test_policies_see_quotas(ada: User, vision: Project) -> None:
    Project.objects.create(name="plain", created_at=at(0))
    job = job_make(ada, project=vision)
    snapshot = cluster_snapshot(timezone.now()).snapshot
    assert snapshot.projects == {vision.pk: ProjectQuota(2, 6, None)}
    Project.objects.update(guaranteed=0, limit=None, limit_by_kind={"t4": 0})
    snapshot = cluster_snapshot(timezone.now()).snapshot
    assert snapshot.projects[vision.pk] == ProjectQuota(limit_by_kind={"t4": 0})
    assert {one.id: one.project for one in snapshot.jobs} == {job.pk: vision.pk}


@pytest.mark.parametrize("status", JobStatus)
def test_a_project_is_deleted_when_none_of_its_jobs_is_live(
    status: JobStatus, admin: User, ada: User, client_of: Clients, vision: Project
) -> None:
    """Its ended jobs and their use keep its name; a member sees other people's no more."""
    grace = user_make("grace")
    join(vision, ada)
    join(vision, grace)
    job = job_make(ada, project=vision, status=status)
    used_at = timezone.now()
    times = {
        "granted_at": used_at - timedelta(hours=2),
        "released_at": used_at - timedelta(hours=1),
    }
    allocation_make(job, node_make()[0].accelerators.all()[0], **times)
    client, address = client_of(admin), f"{URL}{vision.pk}/"
    assert client_of(ada).delete(address).status_code == 403
    answer = client.delete(address)
    if status not in ENDED_JOB_STATUSES:
        assert (answer.status_code, answer.json()["code"]) == (409, "project_in_use")
        assert "1 job that has not ended" in answer.json()["detail"]
        assert client.get(address).json()["guaranteed"] == 2
        return
    assert answer.status_code == 204
    assert client.delete(address).status_code == client.get(address).status_code == 404
    assert client.get(URL).json() == client_of(grace).get(URL).json() == []
    assert project_quotas() == {}
    assert guaranteed_total() == 0
    for person, is_seen in ((admin, True), (ada, True), (grace, False)):
        found = client_of(person).get("/api/v1/jobs/", {"project": "vision"}).json()["results"]
        assert [row["project"] for row in found] == ["vision"] * is_seen
    assert [row["name"] for row in client.get("/api/v1/usage/").json()["rows"]] == ["vision"]
    assert submit(client_of(ada), project="vision").status_code == 400
    assert "project" not in job_clone_values(Job.objects.get(), ada)
    again = client.post(URL, {"name": "vision"}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "project_exists")
    assert "past usage" in again.json()["detail"]


def test_a_project_without_jobs_leaves_its_name(
    admin: User, ada: User, client_of: Clients, vision: Project
) -> None:
    join(vision, ada)
    assert client_of(admin).delete(f"{URL}{vision.pk}/").status_code == 204
    assert not Project.with_deleted.exists()
    assert client_of(admin).post(URL, {"name": "vision"}, format="json").status_code == 201


@pytest.mark.parametrize("is_deleted", [False, True])
def test_no_job_comes_into_a_project_that_is_closed_meanwhile(
    is_deleted: bool, admin: User, ada: User, vision: Project
) -> None:
    """The submission has read the project before it was closed or deleted."""
    stale = Project.objects.get()
    if is_deleted:
        project_delete(vision.pk, at(1), by=admin)
    else:
        project_change(vision.pk, {"is_closed": True}, by=admin)
    with pytest.raises(InvalidInputError) as caught, transaction.atomic():
        project_jobs_check(ada, stale)
    assert "closed or deleted just now" in caught.value.fields["project"][0]
    if is_deleted:
        with pytest.raises(NotFoundError):
            member_set(stale, "ada", ProjectRole.VIEWER, at(2), by=admin)
