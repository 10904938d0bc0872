"""Encryption of stored secrets, with a key derived from `settings.SECRETS_KEY`."""

from __future__ import annotations

import base64
from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

_PURPOSE = b"virtualflow: secrets of jobs"


class UnsealError(ValueError):
    """A stored text was encrypted with an unknown key, or damaged."""


def seal(text: str) -> str:
    """Return the encrypted text, another one at each call."""
    return _cipher(settings.SECRETS_KEY).encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Return the text.

    Raises:
        UnsealError: it was encrypted with none of the keys, or is damaged.
    """
    keys = (settings.SECRETS_KEY, *settings.OLD_SECRETS_KEYS)
    try:
        return MultiFernet([*map(_cipher, keys)]).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise UnsealError("encrypted with another key") from None


def is_sealed_anew(sealed: str) -> bool:
    """Return whether a text was encrypted with the present key."""
    try:
        _cipher(settings.SECRETS_KEY).decrypt(sealed.encode())
    except InvalidToken:
        return False
    return True


@cache
def _cipher(key: str) -> Fernet:
    derived = HKDF(SHA256(), 32, salt=None, info=_PURPOSE).derive(key.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
