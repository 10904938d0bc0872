"""Page of maintenance windows: those to come, and for admins a form that plans more."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from frontend.views.admin import admin_or_404
from frontend.views.changes import actor, errors_add, reason_given
from jobs import nudges
from jobs.exceptions import InvalidInputError
from jobs.models import Node
from jobs.selectors import access, drains
from jobs.selectors.maintenance import window_or_404, windows_open
from jobs.selectors.nodes import nodes_present
from jobs.services.cluster.maintenance import LENGTH_LIMIT, window_cancel, windows_plan


class WindowForm(forms.Form):
    """Windows of the same times for some nodes."""

    nodes = forms.MultipleChoiceField(label="Nodes", widget=forms.CheckboxSelectMultiple)
    starts_at = forms.DateTimeField(
        label="Starts (UTC)",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    ends_at = forms.DateTimeField(
        label="Ends (UTC)",
        help_text=f"At most {LENGTH_LIMIT.days} days after the start.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    reason = forms.CharField(
        label="Reason",
        max_length=500,
        help_text="All users see it.",
    )

    def __init__(self, data: Any, rows: list[Node], initial: dict[str, Any]) -> None:
        super().__init__(data, initial=initial)
        field = self.fields["nodes"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(str(node.pk), node.name) for node in rows]


@require_http_methods(["GET", "HEAD", "POST"])
def maintenance(request: HttpRequest) -> HttpResponse:
    """Show the windows to come; with POST plan windows, or show who would move."""
    rows, is_post = nodes_present(request.user), request.method == "POST"
    if is_post:
        admin_or_404(request)
    given = request.POST if is_post else request.GET
    chosen = given.getlist("nodes")
    is_preview = "preview" in given or not is_post
    # A preview needs nodes alone: what else was filled in stays, and is not checked yet.
    form = WindowForm(None if is_preview else given, rows, {**given.dict(), "nodes": chosen})
    if form.is_valid() and _plan(request, form):
        return redirect("maintenance")
    context: dict[str, Any] = {
        "windows": windows_open(request.user),
        "form": form,
        "lead_s": settings.MAINTENANCE_LEAD_S,
    }
    picked = [node for node in rows if str(node.pk) in chosen]
    if is_preview and picked and access.is_admin(request.user):
        now = timezone.now()
        moves = drains.drain_preview(picked, now)
        moved = {move.job.pk for move in moves}
        staying = [job for job in drains.jobs_on(picked) if job.pk not in moved]
        context["preview"] = {"nodes": picked, "moves": moves, "staying": staying, "at": now}
    return render(request, "frontend/maintenance.html", context)


def _plan(request: HttpRequest, form: WindowForm) -> bool:
    values = form.cleaned_data
    try:
        planned = windows_plan(
            [int(node) for node in values["nodes"]],
            values["starts_at"],
            values["ends_at"],
            timezone.now(),
            actor=actor(request),
            reason=values["reason"],
        )
    except InvalidInputError as error:
        errors_add(form, error)
        return False
    nudges.jobs_changed(cluster=True)
    names = ", ".join(window.node.name for window in planned)
    messages.success(request, f"Maintenance of {names} is planned.")
    return True


@require_POST
def maintenance_cancel(request: HttpRequest, window_id: int) -> HttpResponse:
    """Cancel a window before or during it."""
    admin_or_404(request)
    window = window_or_404(window_id)
    reason = reason_given(request)[:200]
    if window_cancel(window, timezone.now(), actor=actor(request), reason=reason):
        nudges.jobs_changed(cluster=True)
        text = f"Maintenance of {window.node.name} is cancelled."
        messages.success(request, text)
    return redirect("maintenance")
