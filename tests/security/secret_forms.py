"""The forms in which a program may tell a secret."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote


def secret_forms(value: str) -> dict[str, str]:
    """Give all forms of a value that are masked."""
    return {
        "raw": value,
        "json": json.dumps(value)[1:-1],
        "json in utf-8": json.dumps(value, ensure_ascii=False)[1:-1],
        "repr": repr(value)[1:-1],
        "percent-encoded": quote(value, safe=""),
        "base64": base64.b64encode(value.encode()).decode(),
        "base64 for addresses": base64.urlsafe_b64encode(value.encode()).decode(),
    }
