"""Secrets for jobs: stored and deleted by their owner, never shown again."""

from __future__ import annotations

import datetime
import re
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError
from jobs.models import AuditAction, NotificationChannel, Secret
from jobs.sealing import UnsealError, is_sealed_anew, seal, unseal
from jobs.services.lifecycle.audit import audit_add
from jobs.submission import SECRET_NAME

VALUE_LIMIT_BYTES = 16 * 1024
#: Shorter values would be found, and masked, all over logs.
VALUE_LEAST = 8
SECRETS_LIMIT = 50
_RESERVED = re.compile(
    r"(VIRTUALFLOW_|PYTHON|LD_|TF_|GRPC_|CUDA_|MALLOC_|KERAS_|OMP_).*|PATH|HOME|TMPDIR|TZ|LANG|LC_.*"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def secret_store(user: User, name: str, value: Any, now: datetime.datetime) -> tuple[Secret, bool]:
    """Store a secret, in place of one of the same name; return it, and whether it is new.

    Raises:
        InvalidInputError: the name or the value is out of bounds; the message has no value.
        ConflictError: the user has too many secrets.
    """
    fields = {"name": _name_errors(name), "value": _value_errors(value)}
    if any(fields.values()):
        wrong = {field: errors for field, errors in fields.items() if errors}
        raise InvalidInputError("The secret is not valid.", fields=wrong)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(id=user.pk)  # serialises concurrent changes
        mine = Secret.objects.filter(owner=user)
        is_new = not mine.filter(name=name).exists()
        if is_new and mine.count() >= SECRETS_LIMIT:
            raise ConflictError(
                f"You have {SECRETS_LIMIT} secrets; delete one first.", code="too_many_secrets"
            )
        anew = {"sealed": seal(value), "changed_at": now}
        row, _ = Secret.objects.update_or_create(
            owner=user, name=name, defaults=anew, create_defaults={**anew, "created_at": now}
        )
        action = AuditAction.SECRET_MADE if is_new else AuditAction.SECRET_REPLACED
        audit_add(action, f"secret:{name}", user=user.get_username())
    return row, is_new


def secrets_seal_anew() -> tuple[int, int]:
    """Encrypt with the present key what was encrypted with a former one.

    Returns:
        Numbers of texts that were encrypted anew, and that none of the keys can read.
    """
    num_sealed = num_lost = 0
    for rows, field in (
        (Secret.objects, "sealed"),
        (NotificationChannel.objects, "address"),
        (NotificationChannel.objects, "signing_key"),
    ):
        for pk, sealed in rows.exclude(**{field: ""}).values_list("pk", field).iterator():
            if is_sealed_anew(sealed):
                continue
            try:
                anew = seal(unseal(sealed))
            except UnsealError:
                num_lost += 1
                continue
            # Only an unchanged row: a value stored since it was read has the present key already.
            num_sealed += rows.filter(**{"pk": pk, field: sealed}).update(**{field: anew})
    return num_sealed, num_lost


def secret_delete(user: User, name: str) -> None:
    """Delete one of the user's secrets; jobs that name it fail with the next orders.

    Raises:
        NotFoundError: the user has no such secret.
    """
    with transaction.atomic():
        num_deleted, _ = Secret.objects.filter(owner=user, name=name).delete()
        if not num_deleted:
            raise NotFoundError("You have no such secret.")
        audit_add(AuditAction.SECRET_DELETED, f"secret:{name}", user=user.get_username())


def _name_errors(name: str) -> list[str]:
    if not isinstance(name, str) or not SECRET_NAME.fullmatch(name):
        return ["Give 1 to 64 letters, digits and _, such as S3_KEY; no digit first."]
    if _RESERVED.fullmatch(name):
        return [f"{name} is a variable of the system or of the platform; choose another name."]
    return []


def _value_errors(value: Any) -> list[str]:
    if not isinstance(value, str) or len(value) < VALUE_LEAST:
        return [f"Give text of at least {VALUE_LEAST} characters."]
    if _CONTROL.search(value):
        return ["Give text without control characters; encode binary values as base64."]
    if len(value.encode()) > VALUE_LIMIT_BYTES:
        return [f"At most {VALUE_LIMIT_BYTES} bytes."]
    return []
