"""Prerequisites of a new installation: an admin, an API token, and enrolment tokens."""

from __future__ import annotations

import datetime
from pathlib import Path

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.utils import timezone

from jobs.demo.environment import kept_secret
from jobs.models import ApiToken, AuditAction, Node
from jobs.services.cluster.api_tokens import SCOPES
from jobs.services.cluster.nodes import REMOVED_NAME_CHARACTERS, enrolment_token_create
from jobs.services.cluster.tokens import token_digest
from jobs.services.lifecycle.audit import audit_add

TOKEN_LIFETIME = datetime.timedelta(days=90)


def ensure_admin(name: str, password: str) -> User:
    """Return the user `name`, created as an admin with `password` if absent.

    An existing user keeps its password.

    Raises:
        ValidationError: the password of a new user is too weak.
    """
    found = User.objects.filter(username=name).first()
    if found is not None:
        return found
    validate_password(password, User(username=name))
    audit_add(AuditAction.USER_MADE, f"user:{name}", is_staff=True)
    return User.objects.create_superuser(username=name, password=password)


def ensure_api_token(user: User, name: str, text: str) -> ApiToken:
    """Store `text` as a token that acts for `user`; each call extends its lifetime to 90 days.

    A revoked token stays revoked.
    """
    anew = {"expires_at": timezone.now() + TOKEN_LIFETIME}
    first = {"user": user, "name": name, "scopes": list(SCOPES), **anew}
    row, _ = ApiToken.objects.update_or_create(
        digest=token_digest(text), defaults=anew, create_defaults=first
    )
    return row


def ensure_token_file(user: User, name: str, path: Path) -> str:
    """Return the token kept in a file, valid for 90 days from now; a revoked one is replaced."""
    text = kept_secret(path)
    if ApiToken.objects.filter(digest=token_digest(text)).exclude(revoked_at=None).exists():
        path.unlink()
        text = kept_secret(path)
    ensure_api_token(user, name, text)
    return text


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
