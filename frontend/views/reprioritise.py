"""Preview of new priorities and tiers, which is confirmed before they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from frontend.views.bulk import typed_keep
from frontend.views.changes import person, words
from jobs.api.jobs.action_views import action_preview
from jobs.exceptions import ControlPlaneError
from jobs.models import Job
from jobs.query_values import whole_read


def standing_given(request: HttpRequest, job: Job | None = None) -> dict[str, Any]:
    """Read priority and tier from a form; what `job` has already is left out."""
    given: dict[str, Any] = {}
    text = request.POST.get("priority", "").strip()
    if text:
        number = whole_read(text)
        given["priority"] = -1 if number is None else number
    if tier := request.POST.get("tier", ""):
        given["tier"] = tier[:20]
    if job is None:
        return given
    changed = {name: value for name, value in given.items() if value != getattr(job, name)}
    return changed or {"priority": given.get("priority", job.priority)}


def standing_seen(request: HttpRequest, job_id: str) -> dict[str, Any]:
    """Return the tier and priority that a job had on the page of the form, as `expected_` fields.

    Empty if the form does not have them.
    """
    tier, _, priority = request.POST.get(f"seen-{job_id}", "").partition(" ")
    return {"expected_tier": tier, "expected_priority": priority} if tier else {}


def reprioritise_confirm(
    request: HttpRequest, job_ids: Sequence[str], *, is_one: bool, job: Job | None = None
) -> HttpResponse:
    """Show the effect of a new priority or tier, with the form that gives it.

    Args:
        is_one: the change of one job's page; otherwise that of the list's ticked jobs.
    """
    given = standing_given(request, job)
    back = request.POST.get("back", "")
    try:
        body = {"action": "reprioritise", "jobs": list(job_ids), **given}
        preview = action_preview(person(request), body)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        if is_one:
            return redirect("job", job_ids[0])
        typed_keep(request)
        return redirect(f"{reverse('jobs')}?{back}".rstrip("?"))
    action = reverse("job_reprioritise", args=job_ids[:1]) if is_one else reverse("jobs_act")
    context = {
        "preview": preview,
        "jobs": Job.objects.filter(pk__in=job_ids).order_by("pk"),
        "given": given,
        "action": action,
        "is_one": is_one,
        "back": back,
        "reason": request.POST.get("reason", "")[:500],
    }
    return render(request, "frontend/reprioritise.html", context)
