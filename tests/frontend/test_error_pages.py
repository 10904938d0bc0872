"""Pages about errors: drawn without anything that may be broken, in the look of the site."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser
from django.contrib.staticfiles import finders
from django.db import OperationalError
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import get_resolver

import frontend

TEMPLATES = Path(frontend.__file__).parent / "templates"


STATUSES = sorted(int(path.stem) for path in TEMPLATES.glob("*.html") if path.stem.isdigit())


def drawn(status: int) -> HttpResponse:
    """Let Django's handler answer a request that ends with this status."""
    request = RequestFactory().get("/nowhere/")
    request.user = AnonymousUser()
    view: Callable[..., HttpResponse] = get_resolver().resolve_error_handler(min(status, 500))
    if status < 500:
        return view(request, exception=Exception())
    causes: dict[int, Exception] = {503: OperationalError(), 507: OSError(errno.ENOSPC, "full")}
    cause = causes.get(status, ZeroDivisionError())
    try:
        raise cause
    except type(cause):
        return view(request)


@pytest.mark.parametrize("status", STATUSES)
def test_an_error_page_is_drawn_with_the_sites_look(status: int) -> None:
    response = drawn(status)
    page = response.content.decode()
    assert response.status_code == status
    styles = re.findall(r'<link rel="stylesheet" href="/static/([^"]+)"', page)
    assert styles
    assert all(finders.find(style) for style in styles)
    assert re.search(r'<a [^>]*href="/', page), "says where to go on"
