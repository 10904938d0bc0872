"""Making and digesting tokens. The token itself is shown once and never stored."""

from __future__ import annotations

import hashlib
import secrets


def token_make(prefix: str) -> str:
    """Make a token of 256 random bits; the prefix tells a person (and a scanner) what it is."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def token_digest(token: str) -> str:
    """Give what is stored. A plain hash is enough for 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()
