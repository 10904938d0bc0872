"""Generation and digests of tokens, and digests of values that may have changed.

A token itself is shown once and never stored.
"""

from __future__ import annotations

import hashlib
import json
import secrets


def token_make(prefix: str) -> str:
    """Generate a token of 256 random bits; the prefix shows people and scanners its purpose."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def token_digest(token: str) -> str:
    """Return the digest to store. A plain hash is enough for 256 random bits."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def values_digest(values: object) -> str:
    """Return a digest by which another state of these values is noticed."""
    return token_digest(json.dumps(values, sort_keys=True))[:16]
