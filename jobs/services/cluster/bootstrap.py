"""What a new installation needs before anybody can log in or any node can join."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import ApiToken, Node
from jobs.services.cluster.api_tokens import SCOPES
from jobs.services.cluster.nodes import enrolment_token_create
from jobs.services.cluster.tokens import token_digest


def ensure_admin(name: str, password: str) -> User:
    """Give the admin `name`, making it with `password` if there is no such user yet.

    An admin that exists keeps the password that it has.
    """
    found = User.objects.filter(username=name).first()
    if found is not None:
        return found
    return User.objects.create_superuser(username=name, password=password)


def ensure_api_token(user: User, name: str, text: str) -> ApiToken:
    """Let programs that know `text` act for `user`, from now on until it is revoked."""
    row, _ = ApiToken.objects.get_or_create(
        digest=token_digest(text), defaults={"user": user, "name": name, "scopes": list(SCOPES)}
    )
    return row


def ensure_enrolment_token(node_name: str) -> str | None:
    """Make a one-time token for a node; None when the node has joined already."""
    if Node.objects.filter(name=node_name).exists():
        return None
    _, text = enrolment_token_create(None, timezone.now())
    return text
