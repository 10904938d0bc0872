"""The list of jobs: filtered, sorted and page by page, and actions on many jobs of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.datastructures import MultiValueDict
from django.views.decorators.http import require_POST, require_safe

from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.tiers import TIERS
from frontend.live.progress import job_progress
from frontend.views.bulk import request_perform, typed_keep, undo_request, undo_shown
from frontend.views.changes import person, words
from frontend.views.reprioritise import reprioritise_confirm, standing_seen
from jobs.exceptions import ControlPlaneError
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Job, Project, SavedFilter
from jobs.query_values import whole_read
from jobs.selectors import access, limits
from jobs.selectors.comparison import COMPARED_LIMIT
from jobs.selectors.job_filter import STATUS_GROUPS, JobFilter
from jobs.selectors.job_order import DEFAULT_ORDER
from jobs.selectors.job_rows import JobPage, job_page
from jobs.services.cluster.saved_filters import NAME_LIMIT, filter_delete, filter_save
from jobs.services.submission.many_jobs import JOBS_LIMIT
from jobs.submission import PRIORITY_RANGE

#: Parameters of the address that are no filters; the name is that of a filter not saved yet.
_CURSOR, _TYPED_NAME = "cursor", "save_as"
#: Projects that the filter offers.
_PROJECTS_LIMIT = 200
_REPEATED = ("tag", "metric", "setting")
_MORE = ("tier", "template", "setting", "sweep", "submitted_after", "submitted_before")
#: Columns that the list is sorted by, with the direction of a first click.
_SORTED = {
    "name": "", "status": "", "metric": "-", "tier": "-", "priority": "-",
    "duration": "-", "submitted": "-",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's sort link, and `aria-sort` if the list is sorted by it."""

    query: str
    sorted_as: str
    arrow: str


@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    """List jobs; the address holds filter, order and page."""
    given = MultiValueDict(
        {
            name: texts
            for name in request.GET
            if (texts := [text.strip() for text in request.GET.getlist(name) if text.strip()])
        }
    )
    cursor, typed_name = (given.pop(name, [""])[-1] for name in (_CURSOR, _TYPED_NAME))
    matching = JobFilter(given, queryset=access.jobs_visible_to(request.user))
    errors = _errors(matching, given)
    page, metric = None, ""
    if not errors:
        chosen = matching.form.cleaned_data
        metric = chosen["metric"][0][0] if chosen["metric"] else ""
        order = chosen["order"] or DEFAULT_ORDER
        parts = access.seen_parts(request.user)
        page = job_page(matching.qs, order=order, cursor=cursor, metric=metric, parts=parts)
    query = {name: given.getlist(name) for name in given}
    own_limits = limits.limits_for(request.user)
    projects = list(access.projects_visible_to(request.user)[:_PROJECTS_LIMIT])
    context: dict[str, Any] = {
        "page": page,
        "rows": page and [_row(job, page) for job in page.jobs],
        "is_changeable": page is not None and access.is_changeable(request.user, *page.jobs),
        "metric": metric,
        "filters": {name: given[name] for name in given},
        "repeated": {name: given.getlist(name) or [""] for name in _REPEATED},
        "is_filtered": bool({*given} - {"order"}),
        "has_more_filters": bool({*given} & {*_MORE}),
        "errors": errors,
        "statuses": {"Groups": [*STATUS_GROUPS], "One status": [one.value for one in JobStatus]},
        "templates": list(JOB_TEMPLATES),
        "headings": _headings(query),
        "query": urlencode(query, doseq=True),
        "saved_filters": SavedFilter.objects.filter(owner=person(request)),
        "name_limit": NAME_LIMIT,
        "typed_name": typed_name,
        **undo_shown(request),
        "ceiling": own_limits.priority_ceiling,
        "tiers": own_limits.tiers,
        "all_tiers": TIERS,
        "projects": with_chosen(projects, given.get("project")),
        "shows_owners": bool(projects) or access.is_admin(request.user),
        "lowest_priority": PRIORITY_RANGE[0],
        "compared_limit": COMPARED_LIMIT,
        "jobs_limit": JOBS_LIMIT,
    }
    if page is not None:
        context["previous_query"] = _query(query, page.previous_cursor)
        context["next_query"] = _query(query, page.next_cursor)
    return render(request, "frontend/jobs.html", context, status=400 if errors else 200)


@require_POST
def saved_filter(request: HttpRequest) -> HttpResponse:
    """Keep the filter of the list by a name, or delete one that was kept."""
    query, number = request.POST.get("query", ""), whole_read(request.POST.get("delete"))
    name = request.POST.get("name", "")
    try:
        if number is not None:
            filter_delete(person(request), number)
        else:
            kept = filter_save(person(request), name, query, timezone.now())
            messages.success(request, f"This filter is saved as “{kept.name}”.")
    except ControlPlaneError as error:
        messages.error(request, words(error))
        if name:
            query = f"{query}&{urlencode({_TYPED_NAME: name[:200]})}"
    return redirect(f"{reverse('jobs')}?{query}".rstrip("?"))


def with_chosen(projects: Iterable[Project], chosen: str | None) -> list[str]:
    """Return the names that a filter offers, with the chosen one: its user may have left it."""
    names = [project.name for project in projects]
    return [*names, chosen] if chosen and chosen not in names else names


def _row(job: Job, page: JobPage) -> tuple[Job, Any, float | None]:
    progress = job_progress(job, page.steps_per_epoch[job.pk])
    return job, progress, page.best_values.get(job.pk)


def _errors(matching: JobFilter, given: Mapping[str, Any]) -> list[str]:
    known = sorted(matching.base_filters)
    errors = [
        f"There is no filter “{name}”; use {', '.join(known)}."
        for name in given
        if name not in known
    ]
    if not matching.is_valid():
        errors += [f"{name}: {text}" for name, texts in matching.errors.items() for text in texts]
    return errors


def _headings(query: Mapping[str, Sequence[str]]) -> dict[str, Heading]:
    order = (query.get("order") or [DEFAULT_ORDER])[-1]
    return {name: heading(name, sign, query, order) for name, sign in _SORTED.items()}


def heading(name: str, first_sign: str, query: Mapping[str, Any], order: str) -> Heading:
    """Return the heading of a column, whose first click sorts as `first_sign` says."""
    sign, sorted_as, arrow = first_sign, "", ""
    if order == name:
        sign, sorted_as, arrow = "-", "ascending", "▲"
    elif order == f"-{name}":
        sign, sorted_as, arrow = "", "descending", "▼"
    return Heading(urlencode({**query, "order": sign + name}, doseq=True), sorted_as, arrow)


def _query(query: Mapping[str, Sequence[str]], cursor: str) -> str:
    return urlencode({**query, _CURSOR: cursor}, doseq=True) if cursor else ""


@require_POST
def job_actions(request: HttpRequest) -> HttpResponse:
    """Act on the ticked jobs, undo such an action, or lead to the comparison of the jobs."""
    ticked = request.POST.getlist("job")
    if request.POST.get("do") == "compare":
        query = urlencode({"job": ticked}, doseq=True)
        return redirect(f"{reverse('compare')}?{query}")
    if request.POST.get("do") == "preview":
        return reprioritise_confirm(request, ticked, is_one=False)
    if not request_perform(request, undo_request(request) or _action_request(request, ticked)):
        typed_keep(request)
    # The path is fixed, so that nothing in the form leads elsewhere.
    return redirect(f"{reverse('jobs')}?{request.POST.get('back', '')}".rstrip("?"))


def _action_request(request: HttpRequest, ticked: Sequence[str]) -> dict[str, Any]:
    action = request.POST.get("do", "")
    body: dict[str, Any] = {"action": action, "jobs": list(ticked)}
    name = {"tag": "tag", "untag": "tag"}.get(action)
    if name is not None:
        body[name] = request.POST.get(name, "")
    if action == "reprioritise":
        given = {name: text for name in ("priority", "tier") if (text := request.POST.get(name))}
        jobs = body.pop("jobs")
        body["changes"] = [{"job": job, **given, **standing_seen(request, job)} for job in jobs]
    return body | {"reason": request.POST.get("reason", "")}
