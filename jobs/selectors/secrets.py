"""Secrets that a job names, decrypted for the agents that run it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from jobs.models import Secret
from jobs.sealing import UnsealError, unseal

#: Bytes of all secrets of a job together, in UTF-8: they are handed to each of its processes.
JOB_SECRETS_LIMIT_BYTES = 24 * 1024


class SecretsError(ValueError):
    """A job's secrets are missing or too large; the message is for its owner."""


class UnreadableSecretError(SecretsError):
    """A secret was encrypted with a key that the site has no more."""


def sealed_secrets(
    wanted_names: Iterable[tuple[int, Collection[str]]],
) -> dict[tuple[int, str], str]:
    """Return the encrypted secrets of users, by (owner's id, name); one query at most.

    Args:
        wanted_names: pairs of owner's id and names.
    """
    wanted = {(owner, name) for owner, names in wanted_names for name in names}
    if not wanted:
        return {}
    rows = Secret.objects.filter(
        owner_id__in={owner for owner, _ in wanted}, name__in={name for _, name in wanted}
    )
    return {(row.owner_id, row.name): row.sealed for row in rows}


def secret_values(
    owner_id: int, names: Collection[str], sealed: Mapping[tuple[int, str], str]
) -> dict[str, str]:
    """Decrypt the named secrets of a user.

    Raises:
        SecretsError: one is missing or cannot be decrypted, or they are too large together.
    """
    missing = [name for name in names if (owner_id, name) not in sealed]
    if missing:
        raise SecretsError(
            f"There is no secret {', '.join(missing)}; store it on the account page, or do without."
        )
    values = {}
    for name in names:
        try:
            values[name] = unseal(sealed[owner_id, name])
        except UnsealError:
            raise UnreadableSecretError(
                f"The secret {name} cannot be read since the site's key was changed; store its "
                "value again."
            ) from None
    if sum(len(value.encode()) for value in values.values()) > JOB_SECRETS_LIMIT_BYTES:
        raise SecretsError(f"At most {JOB_SECRETS_LIMIT_BYTES} bytes in all secrets of a job.")
    return values
