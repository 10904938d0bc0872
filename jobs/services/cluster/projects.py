"""Projects, their members and the prices of accelerators: changes by admins."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Collection, Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError, StaleVersionError
from jobs.models import (
    AcceleratorPrice,
    AuditAction,
    ClusterSetting,
    Project,
    ProjectMembership,
    ProjectRole,
    UsageSum,
)
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.projects import accelerators_by_kind
from jobs.services.cluster.tokens import values_digest
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import user_actor

#: Columns of a project that site admins change.
PROJECT_COLUMNS = (
    *("description", "guaranteed", "limit", "user_limit", "guaranteed_by_kind", "limit_by_kind"),
    *("live_jobs_limit", "user_live_jobs_limit", "is_closed"),
)
#: Columns that share out accelerators, with what they are in a project that has no share.
_NO_SHARE: dict[str, Any] = {
    "guaranteed": 0,
    "limit": None,
    "user_limit": None,
    "guaranteed_by_kind": {},
    "limit_by_kind": {},
}
#: Most projects, members of a project, and kinds with a price.
PROJECTS_LIMIT, MEMBERS_LIMIT, PRICES_LIMIT = 1000, 1000, 100
#: Most projects that a refusal names.
_NAMED_PROJECTS = 5


def project_version(project: Project) -> str:
    """Return a digest of all that `project_change` changes."""
    return values_digest([getattr(project, column) for column in PROJECT_COLUMNS])


def project_make(
    name: str, values: Mapping[str, Any], now: datetime.datetime, *, by: User
) -> Project:
    """Make a project without members.

    Raises:
        InvalidInputError: a guarantee is above a limit, or above what is left of a kind, or a kind
            is unknown.
        ConflictError: there is a project of this name, or there are too many.
    """
    project = Project(name=name, created_at=now, **values)
    try:
        with transaction.atomic():
            _projects_lock()
            others = list(Project.objects.select_for_update(no_key=True).order_by("pk"))
            if len(others) >= PROJECTS_LIMIT:
                raise ConflictError(f"At most {PROJECTS_LIMIT} projects.", code="too_many_projects")
            _quota_check(project)
            _kinds_check(project, Project(), others)
            project.save(force_insert=True)
            audit_add(
                AuditAction.PROJECT_MADE, f"project:{name}", actor=user_actor(by), **dict(values)
            )
    except IntegrityError:
        is_gone = Project.with_deleted.filter(name=name).exclude(deleted_at=None).exists()
        text = f"There is a project {name} already; choose another name."
        if is_gone:
            text = f"The deleted project {name} keeps its name in past usage; choose another one."
        raise ConflictError(text, code="project_exists") from None
    return project


@transaction.atomic
def project_change(
    project_id: int, changes: Mapping[str, Any], *, by: User, seen_version: str | None = None
) -> Project:
    """Change columns of `PROJECT_COLUMNS`; the audit log has the values.

    Raises:
        NotFoundError: there is no such project.
        StaleVersionError: the project was changed since `seen_version`.
        InvalidInputError: a guarantee would be above a limit, or above what is left of a kind, or a
            kind is unknown.
    """
    _projects_lock()
    rows = {row.pk: row for row in Project.objects.select_for_update(no_key=True).order_by("pk")}
    project = rows.pop(project_id, None)
    if project is None:
        raise NotFoundError("There is no such project.")
    before = copy.copy(project)
    if seen_version is not None and seen_version != project_version(project):
        raise StaleVersionError("The project was changed in the meantime; read it again.")
    changed = {name: value for name, value in changes.items() if value != getattr(project, name)}
    for name, value in changed.items():
        setattr(project, name, value)
    _quota_check(project)
    _kinds_check(project, before, rows.values())
    if changed:
        project.save(update_fields=[*changed])
        audit_add(
            AuditAction.PROJECT_CHANGED, f"project:{project.name}", actor=user_actor(by), **changed
        )
    return project


@transaction.atomic
def project_delete(
    project_id: int, now: datetime.datetime, *, by: User, seen_version: str | None = None
) -> None:
    """Delete a project that has no live jobs; one that never had a job leaves no trace.

    Ended jobs keep its name, in the list of jobs and in usage; their owners and admins see them,
    members do not any more.

    Raises:
        NotFoundError: there is no such project.
        StaleVersionError: the project was changed since `seen_version`.
        ConflictError: it has live jobs.
    """
    project = Project.objects.select_for_update().filter(pk=project_id).first()
    if project is None:
        raise NotFoundError("There is no such project.")
    if seen_version is not None and seen_version != project_version(project):
        raise StaleVersionError("The project was changed in the meantime; read it again.")
    if num_live := project.jobs.filter(status__in=LIVE_JOB_STATUSES).count():
        jobs = "1 job that has" if num_live == 1 else f"{num_live} jobs that have"
        raise ConflictError(
            f"{project.name} has {jobs} not ended: close the project, and wait or cancel them.",
            code="project_in_use",
        )
    audit_add(
        AuditAction.PROJECT_DELETED,
        f"project:{project.name}",
        actor=user_actor(by),
        num_members=project.memberships.count(),
    )
    if not project.jobs.exists() and not UsageSum.objects.filter(project=project).exists():
        project.delete()
        return
    project.memberships.all().delete()
    Project.objects.filter(pk=project.pk).update(deleted_at=now, is_closed=True, **_NO_SHARE)


def _projects_lock() -> None:
    """Let nobody else make projects or set prices until commit: new rows cannot be locked."""
    ClusterSetting.objects.select_for_update(no_key=True).filter(id=1).exists()


def _quota_check(project: Project) -> None:
    if project.limit is not None and project.guaranteed > project.limit:
        raise InvalidInputError.of(
            guaranteed=f"Give at most {project.limit}, the limit, or raise the limit."
        )

    for kind, count in project.guaranteed_by_kind.items():
        if count > project.limit_by_kind.get(kind, count):
            limit = project.limit_by_kind[kind]
            raise InvalidInputError.of(
                guaranteed_by_kind=f"{kind}: give at most {limit}, its limit, or raise the limit."
            )
    total = sum(project.guaranteed_by_kind.values())
    if project.limit is not None and total > project.limit:
        raise InvalidInputError.of(
            guaranteed_by_kind=f"These are {total} together: give at most {project.limit}, the "
            "limit, or raise the limit."
        )


def _kinds_check(project: Project, before: Project, others: Collection[Project]) -> None:
    """Refuse unknown kinds, and guarantees of a kind that other projects leave no room for.

    A kind is known while an enrolled node has it, whether or not that takes work now. Counts that
    are not raised stay allowed, so that a project can be changed after the nodes of a kind left.
    """
    capacity = accelerators_by_kind()
    for name in ("guaranteed_by_kind", "limit_by_kind"):
        old = getattr(before, name)
        for kind, count in getattr(project, name).items():
            if kind not in capacity and count != old.get(kind):
                known = ", ".join(capacity) or "none yet"
                raise InvalidInputError.of(
                    **{name: f"{kind:.40}: no enrolled node has this kind; give one of: {known}."}
                )
    for kind, count in project.guaranteed_by_kind.items():
        if count <= before.guaranteed_by_kind.get(kind, 0):
            continue
        theirs = {row.name: row.guaranteed_by_kind.get(kind, 0) for row in others}
        left = max(capacity.get(kind, 0) - sum(theirs.values()), 0)
        if count > left:
            named = [f"{name} {n}" for name, n in sorted(theirs.items()) if n]
            more = ", ..." if len(named) > _NAMED_PROJECTS else ""
            taken = f" ({', '.join(named[:_NAMED_PROJECTS])}{more})" if named else ""
            raise InvalidInputError.of(
                guaranteed_by_kind=f"{kind}: the cluster has {capacity.get(kind, 0)}, "
                f"{sum(theirs.values())} are guaranteed to others{taken}; give at most {left}, or "
                "lower theirs."
            )


@transaction.atomic
def member_set(
    project: Project, name: str, role: ProjectRole, now: datetime.datetime, *, by: User
) -> tuple[ProjectMembership, bool]:
    """Give a person a role in a project; return the membership, and whether it is new.

    Raises:
        NotFoundError: no user has this name, or the project was deleted just now.
        ConflictError: the project has too many members.
    """
    if not Project.objects.select_for_update(no_key=True).filter(pk=project.pk).exists():
        raise NotFoundError("There is no such project.")
    user = User.objects.filter(username=name).first() if name.isprintable() else None
    if user is None:
        raise NotFoundError("There is no user of this name.")
    row = ProjectMembership.objects.filter(project=project, user=user).first()
    if row is not None and row.role == role:
        return row, False
    if row is None and project.memberships.count() >= MEMBERS_LIMIT:
        raise ConflictError(f"At most {MEMBERS_LIMIT} members.", code="too_many_members")
    is_new = row is None
    row = row or ProjectMembership(project=project, user=user, since=now)
    row.role = role.value
    row.save()
    _member_audit(AuditAction.MEMBER_SET, project, name, by, role=role.value)
    return row, is_new


@transaction.atomic
def member_remove(project: Project, name: str, *, by: User) -> None:
    """End a person's membership; the person's jobs in the project stay there.

    Raises:
        NotFoundError: the person is no member.
    """
    rows = ProjectMembership.objects.filter(project=project, user__username=name)
    if not name.isprintable() or not rows.delete()[0]:
        raise NotFoundError("There is no member of this name.")
    _member_audit(AuditAction.MEMBER_REMOVED, project, name, by)


def _member_audit(
    action: AuditAction, project: Project, name: str, by: User, **details: Any
) -> None:
    object_ = f"project:{project.name}/user:{name}"
    audit_add(action, object_, actor=user_actor(by), **details)


def prices_version(prices: Mapping[str, float]) -> str:
    """Return a digest of the prices of all kinds."""
    return values_digest(sorted(prices.items()))


@transaction.atomic
def prices_set(prices: Mapping[str, float], *, by: User, seen_version: str | None = None) -> None:
    """Replace the prices of all kinds of accelerators.

    Raises:
        StaleVersionError: they were changed since `seen_version`.
    """
    _projects_lock()
    before = dict(AcceleratorPrice.objects.values_list("kind", "per_hour"))
    if seen_version is not None and seen_version != prices_version(before):
        raise StaleVersionError("The prices were changed in the meantime; read them again.")
    if before == dict(prices):
        return
    AcceleratorPrice.objects.all().delete()
    AcceleratorPrice.objects.bulk_create(
        AcceleratorPrice(kind=kind, per_hour=per_hour) for kind, per_hour in prices.items()
    )
    audit_add(
        AuditAction.PRICE_CHANGED, "prices", actor=user_actor(by), before=before, after=dict(prices)
    )
