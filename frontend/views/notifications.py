"""Pages of the user's own notification channels and of the messages sent to them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from frontend.forms import ChannelForm
from frontend.views.changes import errors_add, person, words
from jobs.exceptions import ConflictError, ControlPlaneError, InvalidInputError
from jobs.models import ChannelKind, NotificationChannel
from jobs.selectors.access import deliveries_visible_to, is_admin
from jobs.services.lifecycle.notifications import CLUSTER_EVENTS, JOB_EVENTS
from jobs.services.notifications.channels import (
    channel_change,
    channel_confirm,
    channel_create,
    channel_delete,
    channel_of,
    channel_test,
)

_SHOWN_DELIVERIES = 100


@require_http_methods(["GET", "HEAD", "POST"])
def channels(request: HttpRequest) -> HttpResponse:
    """Show the channels; with POST create one and show its signing key once."""
    if request.method != "POST":
        return _page(request, ChannelForm(is_admin=is_admin(request.user)))
    form = ChannelForm(request.POST, is_admin=is_admin(request.user))
    if not form.is_valid():
        return _page(request, form)
    try:
        channel, key = channel_create(person(request), form.values(), timezone.now())
    except ControlPlaneError as error:
        errors_add(form, error)
        return _page(request, form)
    if channel.kind != ChannelKind.WEBHOOK:
        is_mail = channel.kind == ChannelKind.EMAIL
        todo = "Enter the code that is mailed to it." if is_mail else "Send a test to see it work."
        text = f"The channel “{channel.name}” is added. {todo}"
        messages.success(request, text)
        return redirect("channels")
    form = ChannelForm(is_admin=is_admin(request.user))
    response = _page(request, form, new_channel={"name": channel.name, "key": key})
    response.headers["Cache-Control"] = "no-store"
    return response


@require_safe
def deliveries(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Show the newest messages of a channel."""
    channel = channel_of(person(request), channel_id)
    found = deliveries_visible_to(person(request), channel.deliveries.all())
    rows = list(found[: _SHOWN_DELIVERIES + 1])
    context = {
        "channel": channel,
        "events": [_EVENT_LABELS.get(name, name) for name in channel.events],
        "deliveries": [
            (row, _EVENT_LABELS.get(row.kind, row.kind)) for row in rows[:_SHOWN_DELIVERIES]
        ],
        "has_older": len(rows) > _SHOWN_DELIVERIES,
        "kept_days": settings.NOTIFICATION_DAYS,
    }
    return render(request, "frontend/deliveries.html", context)


@require_POST
def test(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Send a test message."""
    try:
        channel_test(person(request), channel_id, timezone.now())
    except ConflictError as error:
        messages.error(request, error.detail)
    else:
        text = "A message is on its way; reload this page to see what came of it."
        messages.success(request, text)
    return redirect("channel_deliveries", channel_id)


@require_POST
def pause(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Pause a channel, or resume it, as its button said."""
    try:
        channel_change(
            person(request), channel_id, {"is_paused": request.POST.get("do") != "resume"}
        )
    except InvalidInputError as error:
        messages.error(request, words(error))
    return redirect("channels")


@require_POST
def confirm(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Confirm the address of a mail channel."""
    try:
        channel = channel_confirm(person(request), channel_id, request.POST.get("code", ""))
    except InvalidInputError as error:
        messages.error(request, words(error))
    else:
        messages.success(request, f"The address of “{channel.name}” is confirmed.")
    return redirect("channels")


@require_POST
def delete(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Delete a channel."""
    channel = channel_delete(person(request), channel_id)
    messages.success(request, f"The channel “{channel.name}” is deleted.")
    return redirect("channels")


_EVENT_LABELS = JOB_EVENTS | CLUSTER_EVENTS


def _page(request: HttpRequest, form: ChannelForm, **more: Any) -> HttpResponse:
    context = {
        "form": form,
        "channels": NotificationChannel.objects.filter(owner=person(request)),
        "chat_services": settings.CHAT_SERVICES,
        **more,
    }
    return render(request, "frontend/channels.html", context)
