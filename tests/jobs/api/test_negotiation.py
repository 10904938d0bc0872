"""The short negotiation chooses as DRF's does, whatever a client accepts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.http import Http404
from rest_framework.exceptions import NotAcceptable
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.renderers import JSONOpenAPIRenderer, JSONRenderer, TemplateHTMLRenderer
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from jobs.api.negotiation import ShortNegotiation

JSON, HTML, OPENAPI = JSONRenderer(), TemplateHTMLRenderer(), JSONOpenAPIRenderer()


def chosen(of: BaseContentNegotiation, request: Request, renderers: Any, suffix: Any) -> Any:
    try:
        return of.select_renderer(request, renderers, suffix)
    except (NotAcceptable, Http404) as error:
        return type(error)


@pytest.mark.parametrize("accept", [
    None, "", "*/*", "application/json", "Application/JSON", "application/json; indent=4",
    "text/html", "text/html, */*;q=0.1", "application/*", "application/xml", "nonsense", "*/*;q=0",
])  # fmt: skip
def test_it_chooses_as_the_default(accept: str | None) -> None:
    headers = {} if accept is None else {"HTTP_ACCEPT": accept}
    for path, suffix, renderers in itertools.product(
        ["/", "/?fields=status", "/?format=json", "/?format=none"],
        [None, "json", "html"],
        [[JSON], [JSON, HTML], [HTML, JSON], [OPENAPI, JSON]],
    ):
        request = Request(APIRequestFactory().get(path, **headers))
        expected = chosen(DefaultContentNegotiation(), request, renderers, suffix)
        assert chosen(ShortNegotiation(), request, renderers, suffix) == expected
