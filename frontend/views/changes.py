"""Helpers of views that change state: the user, the actor, error texts."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.forms import Form
from django.http import HttpRequest

from jobs.exceptions import ControlPlaneError
from jobs.services.lifecycle.events import user_actor


def person(request: HttpRequest) -> User:
    """Return the user of a view that requires login."""
    return cast(User, request.user)


def actor(request: HttpRequest) -> str:
    """Return the user as an actor of events."""
    return user_actor(request.user)


def reason_given(request: HttpRequest) -> str:
    """Return the reason of a form, without NULs, which PostgreSQL does not store."""
    return request.POST.get("reason", "").replace("\0", "")


def errors_add(form: Form, error: ControlPlaneError) -> None:
    """Add messages to their fields, or the error itself to the form's head."""
    for name, texts in error.fields.items():
        form.add_error(name, list(texts))
    if not error.fields:
        form.add_error(None, error.detail)


def words(error: ControlPlaneError) -> str:
    """Return an error as one line: the field messages, if any."""
    lines = [message for of_field in error.fields.values() for message in of_field]
    return " ".join(lines) or error.detail
