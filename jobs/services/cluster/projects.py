"""Projects, their members and the prices of accelerators: changes by admins."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError, StaleVersionError
from jobs.models import AcceleratorPrice, AuditAction, Project, ProjectMembership, ProjectRole
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import user_actor

#: Columns of a project that site admins change.
PROJECT_COLUMNS = (
    *("description", "guaranteed", "limit", "user_limit"),
    *("live_jobs_limit", "user_live_jobs_limit", "is_closed"),
)
#: Most projects, members of a project, and kinds with a price.
PROJECTS_LIMIT, MEMBERS_LIMIT, PRICES_LIMIT = 1000, 1000, 100


def project_version(project: Project) -> str:
    """Return a digest of all that `project_change` changes."""
    text = json.dumps([getattr(project, column) for column in PROJECT_COLUMNS])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def project_make(
    name: str, values: Mapping[str, Any], now: datetime.datetime, *, by: User
) -> Project:
    """Make a project without members.

    Raises:
        InvalidInputError: the guarantee is above the limit.
        ConflictError: there is a project of this name, or there are too many.
    """
    project = Project(name=name, created_at=now, **values)
    _quota_check(project)
    if Project.objects.count() >= PROJECTS_LIMIT:
        raise ConflictError(f"At most {PROJECTS_LIMIT} projects.", code="too_many_projects")
    try:
        with transaction.atomic():
            project.save(force_insert=True)
            audit_add(
                AuditAction.PROJECT_MADE, f"project:{name}", actor=user_actor(by), **dict(values)
            )
    except IntegrityError:
        raise ConflictError(
            f"There is a project {name} already; choose another name.", code="project_exists"
        ) from None
    return project


@transaction.atomic
def project_change(
    project_id: int, changes: Mapping[str, Any], *, by: User, seen_version: str | None = None
) -> Project:
    """Change columns of `PROJECT_COLUMNS`; the audit log has the values.

    Raises:
        NotFoundError: there is no such project.
        StaleVersionError: the project was changed since `seen_version`.
        InvalidInputError: the guarantee would be above the limit.
    """
    project = Project.objects.select_for_update().filter(pk=project_id).first()
    if project is None:
        raise NotFoundError("There is no such project.")
    if seen_version is not None and seen_version != project_version(project):
        raise StaleVersionError("The project was changed in the meantime; read it again.")
    changed = {name: value for name, value in changes.items() if value != getattr(project, name)}
    for name, value in changed.items():
        setattr(project, name, value)
    _quota_check(project)
    if changed:
        project.save(update_fields=[*changed])
        audit_add(
            AuditAction.PROJECT_CHANGED, f"project:{project.name}", actor=user_actor(by), **changed
        )
    return project


def _quota_check(project: Project) -> None:
    if project.limit is not None and project.guaranteed > project.limit:
        raise InvalidInputError.of(
            guaranteed=f"Give at most {project.limit}, the limit, or raise the limit."
        )


@transaction.atomic
def member_set(
    project: Project, name: str, role: ProjectRole, now: datetime.datetime, *, by: User
) -> tuple[ProjectMembership, bool]:
    """Give a person a role in a project; return the membership, and whether it is new.

    Raises:
        NotFoundError: no user has this name.
        ConflictError: the project has too many members.
    """
    Project.objects.select_for_update().get(pk=project.pk)
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


@transaction.atomic
def prices_set(prices: Mapping[str, float], *, by: User) -> None:
    """Replace the prices of all kinds of accelerators."""
    before = dict(AcceleratorPrice.objects.values_list("kind", "per_hour"))
    if before == dict(prices):
        return
    AcceleratorPrice.objects.all().delete()
    AcceleratorPrice.objects.bulk_create(
        AcceleratorPrice(kind=kind, per_hour=per_hour) for kind, per_hour in prices.items()
    )
    audit_add(
        AuditAction.PRICE_CHANGED, "prices", actor=user_actor(by), before=before, after=dict(prices)
    )
