"""Page of the queue: its jobs in order, changes of several at once, and the policy's switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.core.policies import POLICIES, policy_summary
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES
from controlplane.core.values.tiers import TIERS
from frontend.text.priority_text import priority_text
from frontend.views.admin import admin_or_404
from frontend.views.bulk import request_perform, undo_request, undo_shown
from frontend.views.changes import actor, person, reason_given, words
from frontend.views.reprioritise import standing_seen
from jobs import nudges
from jobs.api.jobs.action_views import action_preview
from jobs.exceptions import ControlPlaneError
from jobs.models import Job
from jobs.query_values import whole_read
from jobs.selectors.access import jobs_visible_to
from jobs.selectors.policy_preview import policy_preview
from jobs.selectors.queue import QUEUE_JOBS_AT_ONCE, QUEUE_ORDER, priority_ranges, queue_page
from jobs.selectors.queue_places import places_moved
from jobs.services.scheduling.policy import cluster_setting, policy_choose
from jobs.services.submission.many_jobs import JOBS_LIMIT
from jobs.submission import PRIORITY_RANGE

_MOST_PAGES = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """A job, and the tier and priority that a form gives to it, as they were typed."""

    job: Job
    tier: str
    priority: str
    held: int = 0

    @property
    def changes(self) -> list[tuple[str, Any, str]]:
        """Columns that differ, with their values before and after."""
        both = (("tier", self.job.tier, self.tier), ("priority", self.job.priority, self.priority))
        return [one for one in both if str(one[1]) != one[2]]


@require_http_methods(["GET", "HEAD", "POST"])
def queue(request: HttpRequest) -> HttpResponse:
    """Show the jobs that have not ended by tier and priority, highest first.

    With POST preview new tiers and priorities of several jobs, give them, or undo that. What is
    refused is previewed again, compared with the present.
    """
    admin_or_404(request)
    number = min(max(whole_read(request.GET.get("page")) or 1, 1), _MOST_PAGES)
    typed = _changes_read(request)
    changes = _moved(request, typed)
    body = undo_request(request) or _apply_request(request, changes)
    if body and (request_perform(request, body) or not changes):
        return redirect(f"{reverse('queue')}?page={number}")
    given = {change["job"]: change for change in changes}
    context = _page_context(number, given)
    if request.method == "POST":
        context["changes"] = _changes_preview(request, given)
        context["reason"] = reason_given(request)
        context["not_moved"] = request.POST if changes is typed else {}
    else:
        context |= undo_shown(request)
    asked = request.GET.get("policy", "")
    if asked in POLICIES and asked != context["policy"]:
        found = policy_preview(asked, timezone.now())
        context["preview"] = {"policy": asked, "moves": found.moves, "starts": found.starts}
        context["switch_reason"] = request.GET.get("reason", "")
    return render(request, "frontend/queue.html", context)


def _page_context(number: int, given: dict[int, dict[str, Any]]) -> dict[str, Any]:
    jobs = queue_page(number)
    setting = cluster_setting()
    policy = setting.policy
    return {
        "rows": [_row(job, given, held) for job, held in jobs[:QUEUE_JOBS_AT_ONCE]],
        "page": number,
        "previous_page": number - 1,
        "next_page": number + 1 if len(jobs) > QUEUE_JOBS_AT_ONCE else None,
        "priorities": PRIORITY_RANGE,
        "tiers": TIERS,
        "policies": [(name, policy_summary(name)) for name in POLICIES],
        "policy": policy,
        "policy_version": setting.version,
        "priority_text": priority_text(policy, priority_ranges()),
    }


def _row(job: Job, given: dict[int, dict[str, Any]], held: int = 0) -> Row:
    change = given.get(job.pk, {})
    priority = change.get("priority", str(job.priority))
    return Row(job, change.get("tier", job.tier), priority, held)


def _changes_read(request: HttpRequest) -> list[dict[str, Any]]:
    """Read what a form changes of the tiers and priorities that it was made with."""
    form, changes = request.POST, []
    for text in form.getlist("job")[:JOBS_LIMIT]:
        seen = standing_seen(request, text)
        tier = form.get(f"tier-{text}", "")
        priority = form.get(f"priority-{text}", "").strip()
        change: dict[str, Any] = {}
        if tier not in ("", seen.get("expected_tier")):
            change["tier"] = tier
        if priority not in ("", seen.get("expected_priority")):
            change["priority"] = priority
        if change and (job_id := whole_read(text)) is not None:
            changes.append({"job": job_id, **change, **seen})
    return changes


def _moved(request: HttpRequest, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to changes those that bring a job to the position asked for, on whichever page."""
    do, number = request.POST.get("do"), request.POST.get("move", "").strip()
    # The Enter key in the fields of the move previews.
    if do not in ("move", "top") and not (do == "preview" and number):
        return changes
    job_id = whole_read(number.removeprefix("#"))
    position = 1 if do == "top" else whole_read(request.POST.get("to", "").strip())
    if job_id is None or position is None:
        messages.error(request, "Give a job's number and a position.")
        return changes
    try:
        places = places_moved(job_id, position)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return changes
    moved = {
        place.job_id: {"job": place.job_id, "tier": place.tier, "priority": str(place.priority)}
        for place in places
    }
    return [change for change in changes if change["job"] not in moved] + list(moved.values())


def _apply_request(request: HttpRequest, changes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the request that makes the changes; None if the form does not ask for that."""
    if not changes or request.POST.get("do") != "apply":
        return None
    reason = reason_given(request)
    if not reason.strip():
        messages.error(request, "Say why: the owners will read it.")
        return None
    return {"action": "reprioritise", "changes": changes, "all_or_none": True, "reason": reason}


def _changes_preview(
    request: HttpRequest, given: dict[int, dict[str, Any]]
) -> dict[str, Any] | None:
    """Compare changes with the jobs as they are now, and decide once as if they were made."""
    found = jobs_visible_to(request.user).filter(pk__in=given).order_by(*QUEUE_ORDER)
    rows = [row for row in (_row(job, given) for job in found) if row.changes]
    ended = [row.job for row in rows if row.job.status in ENDED_JOB_STATUSES]
    rows = [row for row in rows if row.job not in ended]
    if not rows:
        messages.info(request, "There is no change to preview.")
        return None
    body = {
        "action": "reprioritise",
        "changes": [
            {"job": row.job.pk, **{name: to for name, _, to in row.changes}} for row in rows
        ],
    }
    try:
        preview = action_preview(person(request), body)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return None
    return {"rows": rows, "ended": ended, **preview}


@require_POST
def policy(request: HttpRequest) -> HttpResponse:
    """Switch the policy of the whole cluster, unless it is another than the form shows."""
    admin_or_404(request)
    name, reason = request.POST.get("policy", ""), reason_given(request)[:200]
    seen = whole_read(request.POST.get("version", ""))
    try:
        policy_choose(name, timezone.now(), actor=actor(request), reason=reason, seen_version=seen)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        query = urlencode({"policy": name, "reason": reason})
        return redirect(f"{reverse('queue')}?{query}")
    nudges.jobs_changed(cluster=True)
    messages.success(request, f"The policy is {name} now.")
    return redirect("queue")
