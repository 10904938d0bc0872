"""Prerequisites of a new installation: an admin, an API token, and enrolment tokens."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import ApiToken, Node
from jobs.services.cluster.api_tokens import SCOPES
from jobs.services.cluster.nodes import REMOVED_NAME_CHARACTERS, enrolment_token_create
from jobs.services.cluster.tokens import token_digest


def ensure_admin(name: str, password: str) -> User:
    """Return the user `name`, created as an admin with `password` if absent.

    An existing user keeps its password.
    """
    found = User.objects.filter(username=name).first()
    if found is not None:
        return found
    return User.objects.create_superuser(username=name, password=password)


def ensure_api_token(user: User, name: str, text: str) -> ApiToken:
    """Store `text` as a token that acts for `user` until it is revoked."""
    row, _ = ApiToken.objects.get_or_create(
        digest=token_digest(text), defaults={"user": user, "name": name, "scopes": list(SCOPES)}
    )
    return row


def ensure_enrolment_token(node_name: str, *, again: bool = False) -> str | None:
    """Create a one-time token for a node; None if the node has enrolled already.

    Args:
        again: also for a node that was removed.
    """
    former_name = f"{node_name[:REMOVED_NAME_CHARACTERS]} (removed "
    if Node.objects.filter(name=node_name).exists():
        return None
    if not again and Node.objects.filter(name__startswith=former_name).exists():
        return None
    _, text = enrolment_token_create(None, timezone.now())
    return text
