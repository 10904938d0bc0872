"""Visible words of a page."""

from __future__ import annotations

import re


def page_text(response: object) -> str:
    """Return the visible words of a response's page, with single blanks."""
    html = response.content.decode()  # type: ignore[attr-defined]
    body = re.sub(r"<script.*?</script>", "", html[html.index("<body") :], flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())
