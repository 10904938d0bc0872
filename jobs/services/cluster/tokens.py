"""Generation and digests of tokens. The token itself is shown once and never stored."""

from __future__ import annotations

import hashlib
import secrets


def token_make(prefix: str) -> str:
    """Generate a token of 256 random bits; the prefix shows people and scanners its purpose."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def token_digest(token: str) -> str:
    """Return the digest to store. A plain hash is enough for 256 random bits."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
