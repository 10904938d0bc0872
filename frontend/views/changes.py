"""Who it is that changes something."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest

from jobs.exceptions import ControlPlaneError
from jobs.services.lifecycle.events import user_actor


def person(request: HttpRequest) -> User:
    """Give the person of a view that only people who are logged in reach."""
    return cast(User, request.user)


def actor(request: HttpRequest) -> str:
    """Name the person as events do."""
    return user_actor(request.user)


def words(error: ControlPlaneError) -> str:
    """Say what is wrong in one line: the fields' messages where there are any."""
    lines = [message for of_field in error.fields.values() for message in of_field]
    return " ".join(lines) or error.detail
