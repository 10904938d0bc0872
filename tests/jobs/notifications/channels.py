"""Address and builder of notification channels."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from jobs.models import NotificationChannel
from jobs.services.notifications.channels import DEFAULT_EVENTS, channel_create
from tests.support.builders import at

URL = "/api/v1/channels/"


def channel_make(
    user: User, address: str = "https://hooks.example/x", **other: Any
) -> tuple[NotificationChannel, str]:
    values = {
        "name": f"channel {NotificationChannel.objects.count()}",
        "kind": "webhook",
        "address": address,
        "events": list(DEFAULT_EVENTS),
        "is_cluster_wide": False,
    }
    return channel_create(user, values | other, at(0))
