"""Access rules: users see and change their own jobs and validations, admins all of them.

Members of a project see its jobs, too. Its operators and admins change them.

Everybody sees the nodes, but only admins where these are reached. Stored texts may name jobs of
other users, which admins alone read.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.db.models import Q, QuerySet

from controlplane.core.values.explanations import others_jobs_hidden
from jobs.exceptions import ForbiddenError, NotFoundError
from jobs.models import (
    ApiToken,
    Job,
    Node,
    NotificationDelivery,
    Project,
    ProjectMembership,
    ProjectRole,
    Sweep,
    Validation,
)
from jobs.models.notifications import TEST_EVENT
from jobs.models.projects import MANAGING_ROLES, SUBMITTING_ROLES
from jobs.selectors.expressions import IsAnyOf
from jobs.selectors.prepared import PreparedQuery

Person = User | AbstractBaseUser | AnonymousUser

#: Stand for a job's and a person's number in SQL that is translated once.
_JOB, _PERSON = -1, -2

#: Most projects of a person that are read one by one.
PARTS_LIMIT = 20
#: Job columns that links and status pills show.
SHOWN_COLUMNS = ("name", "colour", "status", "pause_requested")
#: Job columns that lists leave out; some hold many kilobytes.
HEAVY_COLUMNS = ("settings", "facts", "metrics", "error_traceback", "throughput_by_count")


def is_admin(person: Person) -> bool:
    """Return whether a person may see and change all jobs."""
    return bool(getattr(person, "is_staff", False))


def token_user(token: ApiToken) -> User:
    """Return the user as whom a token acts: without the scope `admin` no admin."""
    user: User = token.user
    if "admin" not in token.scopes:
        # On this object alone, which nobody saves.
        user.is_staff = user.is_superuser = False
    return user


def are_users_strangers() -> bool:
    """Return whether there are several active accounts that are not said to trust each other."""
    num_active = User.objects.filter(is_active=True)[:2].count()
    return num_active > 1 and not settings.USERS_TRUST_EACH_OTHER


def projects_seen_by(person: Person) -> frozenset[int]:
    """Return the projects whose jobs a person sees as a member; admins see the jobs of all."""
    if person.pk is None:
        return frozenset()
    rows = ProjectMembership.objects.filter(user=person.pk).order_by()
    return frozenset(rows.values_list("project_id", flat=True))


def is_seen(person: Person, job_field: str = "") -> Q:
    """Return the condition that a person sees a job.

    Args:
        job_field: name of the field with the job, on another table. The jobs are then found by
            their indexes, where a join may read all jobs there are.
    """
    seen = Q()
    for part in seen_parts(person):
        seen |= part
    if job_field and not is_admin(person):
        return Q(**{f"{job_field}__in": Job.objects.filter(seen).order_by().values("pk")})
    return seen


def seen_parts(person: Person) -> list[Q]:
    """Return conditions that together hold for the jobs which a person sees.

    Each is served by an index of jobs in the order of their numbers, their disjunction is not.
    """
    if is_admin(person):
        return [Q()]
    projects = sorted(projects_seen_by(person))
    parts = [Q(owner_id=person.pk), *(Q(project_id=one) for one in projects[:PARTS_LIMIT])]
    if rest := projects[PARTS_LIMIT:]:
        parts.append(Q(project_id__in=rest))
    return parts


def jobs_visible_to(person: Person) -> QuerySet[Job]:
    """Return the jobs that a person may see, with their owners, without the heavy columns."""
    jobs = Job.objects.select_related("owner", "project", "forecast").defer(*HEAVY_COLUMNS)
    return jobs.filter(is_seen(person))


def jobs_seen_among(person: Person, job_ids: Collection[int]) -> set[int]:
    """Return those of some jobs that a person may see."""
    jobs = Job.objects.filter(is_seen(person), IsAnyOf("pk", job_ids)).order_by()
    return set(jobs.values_list("pk", flat=True))


def job_rows_visible_to(person: Person, job_id: int) -> QuerySet[Job]:
    """Return one job, or none, like `jobs_visible_to` but in a single query."""
    jobs = (
        Job.objects.select_related("owner", "project", "forecast")
        .defer(*HEAVY_COLUMNS)
        .filter(pk=job_id)
    )
    return jobs.filter(_is_seen_at_once(person))


def job_version(person: Person, job_id: int) -> tuple[int, int] | None:
    """Return revision and version of a job that a person may see; None if there is no such job."""
    row = _version_query(is_admin(person)).first({_JOB: job_id, _PERSON: person.pk})
    return (row[0], row[1]) if row else None


@functools.cache
def _version_query(is_staff: bool) -> PreparedQuery:
    rows = job_rows_visible_to(User(pk=_PERSON, is_staff=is_staff), _JOB).defer(None).order_by()
    return PreparedQuery(rows.select_related(None).values_list("revision", "version"))


def forks_visible_to(person: Person, job: Job) -> QuerySet[Job]:
    """Return those forks of a job, but for its trials, that a person may see, in one query."""
    return job.forks.filter(_is_seen_at_once(person), trial_of=None)


def _is_seen_at_once(person: Person) -> Q:
    if is_admin(person):
        return Q()
    projects = ProjectMembership.objects.filter(user=person.pk).order_by().values("project_id")
    return Q(owner_id=person.pk) | Q(project_id__in=projects)


def jobs_changeable_by(person: Person) -> QuerySet[Job]:
    """Return the jobs that a person may change: the own ones, and those of projects managed."""
    jobs = jobs_visible_to(person)
    if is_admin(person):
        return jobs
    managed = ProjectMembership.objects.filter(user=person.pk, role__in=MANAGING_ROLES)
    projects = managed.order_by().values("project_id")
    return jobs.filter(Q(owner_id=person.pk) | Q(project_id__in=projects))


def is_changeable(person: Person, *jobs: Job) -> bool:
    """Return whether a person may change one of some jobs that the person sees, in one query."""
    if is_admin(person) or any(job.owner_id == person.pk for job in jobs):
        return True
    projects = {job.project_id for job in jobs} - {None}
    managed = ProjectMembership.objects.filter(user=person.pk, role__in=MANAGING_ROLES)
    return bool(projects) and managed.filter(project__in=projects).exists()


def job_change_check(person: Person, job: Job) -> None:
    """Refuse changes by people who only see a job.

    Raises:
        ForbiddenError: the person is neither its owner nor an operator of its project.
    """
    if not is_changeable(person, job):
        raise ForbiddenError(
            f"You may see job {job.pk}, not change it: ask its owner, or an admin of project "
            f"{job.project} to make you an operator."
        )


def role_in(person: Person, project_id: int) -> ProjectRole | None:
    """Return the role of a person in a project; None: no member."""
    found = ProjectMembership.objects.filter(user=person.pk, project_id=project_id)
    role = found.order_by().values_list("role", flat=True).first()
    return None if role is None else ProjectRole(role)


def projects_visible_to(person: Person) -> QuerySet[Project]:
    """Return the projects of which a person is a member; admins see all."""
    projects = Project.objects.all()
    return projects if is_admin(person) else projects.filter(memberships__user=person.pk)


def projects_open_to(person: Person) -> QuerySet[Project]:
    """Return the projects to which a person may submit jobs."""
    projects = Project.objects.filter(is_closed=False)
    if is_admin(person):
        return projects
    return projects.filter(memberships__user=person.pk, memberships__role__in=SUBMITTING_ROLES)


def project_visible_to(person: Person, project_id: int) -> Project:
    """Find a project.

    Raises:
        NotFoundError: no project has this number, or the person is no member.
    """
    found = projects_visible_to(person).filter(pk=project_id).first()
    if found is None:
        raise NotFoundError("There is no such project, or you are no member.")
    return found


def members_change_check(person: Person, project: Project) -> None:
    """Refuse changes of members by people who are not admins of the project.

    Raises:
        ForbiddenError: the person is no admin of the project, nor of the site.
    """
    if not is_admin(person) and role_in(person, project.pk) is not ProjectRole.ADMIN:
        raise ForbiddenError("Only admins of the project change its members; ask one of them.")


def job_visible_to(person: Person, job_id: int) -> Job:
    """Find one job with all its columns.

    Raises:
        Job.DoesNotExist: no job has this id, or the person may not see it.
    """
    return job_rows_visible_to(person, job_id).defer(None).get()


def sweeps_visible_to(person: Person) -> QuerySet[Sweep]:
    """Return the sweeps that a person may see, with their owners, newest first."""
    sweeps = Sweep.objects.select_related("owner")
    return sweeps if is_admin(person) else sweeps.filter(owner_id=person.pk)


def sweep_visible_to(person: Person, sweep_id: int) -> Sweep:
    """Find one sweep.

    Raises:
        NotFoundError: no sweep has this id, or the person may not see it.
    """
    sweep = sweeps_visible_to(person).filter(pk=sweep_id).first()
    if sweep is None:
        raise NotFoundError("There is no such sweep, or it is not yours.")
    return sweep


def validation_visible_to(person: Person, validation_id: int) -> Validation:
    """Find a validation without a job.

    Raises:
        NotFoundError: no validation has this id, or the person may not see it.
    """
    found = Validation.objects.filter(job=None, id=validation_id).select_related("owner")
    validation = (found if is_admin(person) else found.filter(owner_id=person.pk)).first()
    if validation is None:
        raise NotFoundError("There is no such validation, or it is not yours.")
    return validation


def node_for(person: Person, node: Node) -> Node:
    """Return a node as a person may see it; it must not be saved.

    For others than admins host, ports, boot id and the actor of a cordon are empty, and a proposed
    shape has its accelerators alone.
    """
    if not is_admin(person):
        node.host = node.boot_id = node.cordoned_by = ""
        node.cordon_reason = text_for(person, node.cordon_reason)
        node.first_port = node.last_port = 0
        if node.proposed_shape is not None:
            shown = ("index", "kind", "name", "memory_bytes")
            node.proposed_shape = {
                "accelerators": [
                    {name: row.get(name) for name in shown}
                    for row in node.proposed_shape["accelerators"]
                ]
            }
    return node


def text_for(person: Person, value: Any) -> Any:
    """Return a stored text, or all texts of a JSON value, as a person may read them.

    The numbers of other users' jobs (`others_jobs_named`) are for admins.
    """
    if is_admin(person):
        return value
    if isinstance(value, str):
        return others_jobs_hidden(value)
    if isinstance(value, dict):
        return {name: text_for(person, one) for name, one in value.items()}
    return [text_for(person, one) for one in value] if isinstance(value, list) else value


def deliveries_visible_to(
    person: Person, deliveries: QuerySet[NotificationDelivery]
) -> QuerySet[NotificationDelivery]:
    """Return those messages of channels that are tests, or about jobs that a person may see now."""
    if is_admin(person):
        return deliveries
    return deliveries.filter(Q(kind=TEST_EVENT) | Q(event__job__owner_id=person.pk))
