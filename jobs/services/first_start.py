"""What a new installation needs before anybody can log in or any node can join."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import Node
from jobs.services.nodes import enrolment_token_create


def ensure_admin(name: str, password: str) -> User:
    """Give the admin `name`, making it with `password` if there is no such user yet.

    An admin that exists keeps the password that it has.
    """
    found = User.objects.filter(username=name).first()
    if found is not None:
        return found
    return User.objects.create_superuser(username=name, password=password)


def ensure_enrolment_token(node_name: str) -> str | None:
    """Make a one-time token for a node; None when the node has joined already."""
    if Node.objects.filter(name=node_name).exists():
        return None
    _, text = enrolment_token_create(None, timezone.now())
    return text
