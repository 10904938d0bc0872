"""Pages of projects: the list, one project with its members, and the usage of accelerators."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from frontend.views.admin import admin_or_404
from frontend.views.changes import person, words
from frontend.views.job_list import with_chosen
from jobs import nudges
from jobs.api.projects.serializers import (
    NewProjectSerializer,
    PricesSerializer,
    ProjectChangeSerializer,
    RoleSerializer,
)
from jobs.api.projects.usage_views import usage_csv, usage_of
from jobs.api.requests import checked
from jobs.exceptions import (
    ControlPlaneError,
    ForbiddenError,
    InvalidInputError,
    StaleVersionError,
)
from jobs.models import Project, ProjectRole
from jobs.models.projects import QUOTA_LIMIT
from jobs.selectors import access
from jobs.selectors.filter_fields import UtcDateTimeField
from jobs.selectors.projects import (
    accelerators_by_kind,
    guaranteed_total,
    project_state,
    project_states,
)
from jobs.selectors.series import num_accelerators_present
from jobs.selectors.usage import UsageBy, accelerator_kinds, accelerator_prices
from jobs.services.cluster.projects import (
    member_remove,
    member_set,
    prices_set,
    prices_version,
    project_change,
    project_delete,
    project_make,
    project_version,
)

#: Fields of a project's form: name, label, help.
_QUOTAS = (
    ("guaranteed", "Guaranteed", "Accelerators that its jobs get whenever they can use them."),
    ("limit", "Limit", "The most its jobs may hold together; empty: no limit."),
    ("user_limit", "Limit per user", "The most one person may hold; empty: no limit."),
    ("live_jobs_limit", "Jobs not ended", "How many the project may have; empty: no limit."),
    ("user_live_jobs_limit", "Jobs not ended per user", "How many each may have; empty: no limit."),
)
_ROLES = (
    (ProjectRole.VIEWER, "sees all jobs of the project"),
    (ProjectRole.MEMBER, "also submits jobs, and manages their own"),
    (ProjectRole.OPERATOR, "also manages all its jobs"),
    (ProjectRole.ADMIN, "also manages members"),
)


@require_safe
def projects(request: HttpRequest) -> HttpResponse:
    """List the projects of a person, or all for admins, with what they hold now."""
    return _projects_page(request, Project())


@require_POST
def project_new(request: HttpRequest) -> HttpResponse:
    """Make a project; show the form again with what was given if it is refused."""
    admin_or_404(request)
    given = _shares_given(request) | _given(request, "name")
    try:
        values = checked(NewProjectSerializer, given)
        made = project_make(values.pop("name"), values, timezone.now(), by=person(request))
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return _projects_page(request, Project(**given), status=400)
    messages.success(request, f"Project {made.name} is created. Add its members.")
    return redirect("project", made.pk)


@require_safe
def project(request: HttpRequest, project_id: int) -> HttpResponse:
    """Show a project: its shares and what it holds now, its members, its use."""
    found = access.project_visible_to(request.user, project_id)
    return _project_page(request, found, found)


def _project_page(
    request: HttpRequest, found: Project, shown: Project, status: int = 200
) -> HttpResponse:
    """Render a project, with the values of `shown` in the form of its shares."""
    state = project_state(request.user, found.pk)
    is_admin = access.is_admin(request.user)
    context = _fields(shown) | {
        "project": found,
        "version": project_version(found),
        "is_closed": shown.is_closed,
        "state": state,
        "members": found.memberships.select_related("user"),
        "roles": _ROLES,
        "manages_members": is_admin or state.role == ProjectRole.ADMIN,
        "num_accelerators": num_accelerators_present(),
        "usage_query": urlencode({"by": "user", "project": found.name}),
    }
    return render(request, "frontend/project.html", context, status=status)


@require_POST
def project_edit(request: HttpRequest, project_id: int) -> HttpResponse:
    """Change the shares and limits of a project; show the form again if that is refused."""
    admin_or_404(request)

    found = access.project_visible_to(request.user, project_id)
    given = _shares_given(request) | {"is_closed": "is_closed" in request.POST}
    seen = request.POST.get("version")
    try:
        values = checked(ProjectChangeSerializer, given)
        project_change(found.pk, values, by=person(request), seen_version=seen)
    except StaleVersionError:
        text = (
            "Somebody else has changed this project in the meantime. Compare what you typed with "
            "“Shares now”, and save it again if it is still meant."
        )
        messages.error(request, text)
        return _project_page(request, found, Project(**given), status=412)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return _project_page(request, found, Project(**given), status=400)
    nudges.jobs_changed(cluster=True)
    messages.success(request, "Saved. The next decision applies the new shares.")
    return redirect("project", found.pk)


@require_POST
def project_delete_now(request: HttpRequest, project_id: int) -> HttpResponse:
    """Delete a project that has no live jobs."""
    admin_or_404(request)
    found = access.project_visible_to(request.user, project_id)
    try:
        project_delete(found.pk, timezone.now(), by=person(request))
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return redirect("project", found.pk)
    nudges.jobs_changed(cluster=True)
    messages.success(request, f"Project {found.name} is deleted.")
    return redirect("projects")


@require_POST
def project_member(request: HttpRequest, project_id: int) -> HttpResponse:
    """Give a person a role in a project."""

    def change(found: Project) -> str:
        access.members_change_check(request.user, found)
        role = checked(RoleSerializer, _given(request, "role"))["role"]
        name = str(request.POST.get("user", "")).strip()[:150]
        member_set(found, name, role, timezone.now(), by=person(request))
        return f"{name} is {role} of {found.name} now."

    return _do(request, project_id, change)


@require_POST
def project_member_remove(request: HttpRequest, project_id: int) -> HttpResponse:
    """End a person's membership."""

    def change(found: Project) -> str:
        access.members_change_check(request.user, found)
        name = str(request.POST.get("user", "")).strip()[:150]
        member_remove(found, name, by=person(request))
        return f"{name} is no member of {found.name} any more."

    return _do(request, project_id, change)


@require_safe
def usage(request: HttpRequest) -> HttpResponse:
    """Show accelerator-hours, waste and cost by project, user or tag, or send them as CSV."""
    return _usage_page(request)


def _usage_page(
    request: HttpRequest, typed: Mapping[str, str] | None = None, status: int = 200
) -> HttpResponse:
    """Render the usage, with the prices typed in their form if these were not stored."""
    known = accelerator_prices()
    shown = known if typed is None else typed
    kinds = sorted({*accelerator_kinds(with_removed=True), *known, *shown})
    query = {name: str(text).strip() for name, text in request.GET.items() if str(text).strip()}
    context: dict[str, Any] = {
        "groupings": [one.value for one in UsageBy],
        "query": query,
        "projects": with_chosen(access.projects_visible_to(request.user), query.get("project")),
        "currency": settings.CURRENCY,
        "prices": [(kind, shown.get(kind)) for kind in kinds],
        "prices_version": prices_version(known),
        "csv_query": urlencode({**query, "csv": "1"}),
        "idle_percent": settings.IDLE_PERCENT,
    }
    try:
        since, until = (_time(query, name) for name in ("since", "until"))
        found = usage_of(request.user, query, since=since, until=until)
    except InvalidInputError as error:
        context["error"] = words(error)
        return render(request, "frontend/usage.html", context, status=400)
    if query.get("csv"):
        answer = usage_csv(found)
        answer.content = codecs.BOM_UTF8 + answer.content  # else Excel takes it for Latin-1
        return answer
    context["usage"] = found
    context["borrowing"] = [row for row in project_states(request.user) if row.borrowed]
    return render(request, "frontend/usage.html", context, status=status)


@require_POST
def prices(request: HttpRequest) -> HttpResponse:
    """Set the prices of accelerators by kind; an empty one removes the price."""
    admin_or_404(request)
    typed = _by_kind(request, "price")
    seen = request.POST.get("version")
    try:
        values = checked(PricesSerializer, {"per_hour": typed})
        prices_set(values["per_hour"], by=person(request), seen_version=seen)
    except StaleVersionError:
        now = ", ".join(f"{kind} {price:g}" for kind, price in accelerator_prices().items())
        text = (
            f"Somebody else has changed the prices in the meantime; they are: {now or 'none'}. "
            "Save yours again if they are still meant."
        )
        messages.error(request, text)
        return _usage_page(request, typed, status=412)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return _usage_page(request, typed, status=400)
    messages.success(request, "The prices are saved.")
    return redirect("usage")


def _projects_page(request: HttpRequest, new: Project, status: int = 200) -> HttpResponse:
    """Render the list of projects, with a form that has the values of a new one."""
    is_admin = access.is_admin(request.user)
    context = (_fields(new) if is_admin else {}) | {
        "states": project_states(request.user),
        "num_accelerators": num_accelerators_present(),
        "guaranteed_total": guaranteed_total() if is_admin else None,
    }
    return render(request, "frontend/projects.html", context, status=status)


def _fields(found: Project) -> dict[str, Any]:
    """Return what `parts/project_fields.html` shows: quotas, their bounds, the description."""
    return {
        "project": found,
        "description": found.description,
        "quotas": [(name, label, text, getattr(found, name)) for name, label, text in _QUOTAS],
        "quotas_by_kind": _kind_rows(found),
        "quota_limit": QUOTA_LIMIT,
    }


def _shares_given(request: HttpRequest) -> dict[str, Any]:
    """Return the values of `parts/project_fields.html`; an empty limit is None."""
    names = [name for name, _, _ in _QUOTAS]
    return {
        **dict.fromkeys(name for name in names if name != "guaranteed"),
        **_given(request, *names),
        "description": request.POST.get("description", "").strip(),
        "guaranteed_by_kind": _by_kind(request, "guaranteed_by_kind"),
        "limit_by_kind": _by_kind(request, "limit_by_kind"),
    }


def _kind_rows(found: Project) -> list[tuple[str, int, int | None, int | None]]:
    """Return every kind that is enrolled or has a quota: its number, guarantee and limit."""
    present, own, limits = accelerators_by_kind(), found.guaranteed_by_kind, found.limit_by_kind
    return [
        (kind, present.get(kind, 0), own.get(kind), limits.get(kind))
        for kind in sorted({*present, *own, *limits})
    ]


def _by_kind(request: HttpRequest, name: str) -> dict[str, str]:
    """Return the filled fields of a form that are named after kinds, as `price_t4`, by kind."""
    return {
        field.removeprefix(f"{name}_"): str(text).strip()
        for field, text in request.POST.items()
        if field.startswith(f"{name}_") and str(text).strip()
    }


def _time(query: Mapping[str, str], name: str) -> Any:
    """Read a date or a time of the form; a date is its first moment.

    Raises:
        InvalidInputError: it is none.
    """
    text = query.get(name, "")
    if len(text) == len("2026-03-01"):
        text += "T00:00:00Z"
    try:
        return UtcDateTimeField(required=False).clean(text)
    except ValidationError:
        raise InvalidInputError.of(**{name: "Give a day like 2026-03-01."}) from None


def _given(request: HttpRequest, *names: str) -> dict[str, Any]:
    return {name: text for name in names if (text := request.POST.get(name, "").strip())}


def _do(request: HttpRequest, project_id: int, change: Callable[[Project], str]) -> HttpResponse:
    """Make a change, and return to the project with a message; what was typed stays if refused."""
    found = access.project_visible_to(request.user, project_id)
    try:
        messages.success(request, change(found))
    except ForbiddenError:
        raise
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return _project_page(request, found, found, status=400)
    is_seen = access.projects_visible_to(request.user).filter(pk=found.pk).exists()
    return redirect("project", found.pk) if is_seen else redirect("projects")
