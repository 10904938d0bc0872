"""Answers of the API outside its views: unknown addresses and query parameters, failures."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from django.views import defaults
from drf_spectacular.generators import SchemaGenerator

from jobs.exceptions import (
    RETRY_S,
    InvalidInputError,
    NotFoundError,
    ServerError,
    UnavailableError,
    is_database_away,
    problem_response,
)

_PREFIX = "/api/v1/"
#: Largest number of a row.
_NUMBER_LIMIT = 2**63 - 1
_CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")


@functools.cache
def query_parameters() -> Mapping[tuple[str, str], frozenset[str]]:
    """Return (address with placeholders, method in lower case) -> names of query parameters.

    Reading the document takes half a second, once per process. The first call must be that of a
    single thread: the generator changes its classes while it loads them.
    """
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    return {
        (path, method): frozenset(
            parameter["name"]
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query"
        )
        for path, operations in paths.items()
        for method, operation in operations.items()
    }


class AddressPartsMiddleware(MiddlewareMixin):
    """Answers 404 to parts of an address that no row can have; databases fail on some."""

    def process_view(
        self, _request: HttpRequest, _view: Any, _args: Any, parts: Mapping[str, Any]
    ) -> None:
        """Look at the numbers and names of the address."""
        for part in parts.values():
            if (isinstance(part, int) and part > _NUMBER_LIMIT) or "\0" in str(part):
                raise Http404


class QueryParametersMiddleware(MiddlewareMixin):
    """Refuses unknown query parameters: ignored, a mistyped filter would return everything."""

    def process_view(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """Return a refusal that names the parameter and its like, or None."""
        if not request.GET or request.resolver_match is None:
            return None
        address = "/" + _CONVERTER.sub(r"{\1}", request.resolver_match.route)
        method = "get" if request.method == "HEAD" else str(request.method).lower()
        if not address.startswith(_PREFIX) or (address, method) not in query_parameters():
            return None
        known = query_parameters()[address, method]
        errors = {name: [_sentence(name, known)] for name in request.GET if name not in known}
        if not errors:
            return None
        return problem_response(InvalidInputError("The input is not valid.", fields=errors))


def _sentence(name: str, known: frozenset[str]) -> str:
    if not known:
        return "This address takes no query parameters."
    like = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {like[0]}?" if like else ""
    return f"No such query parameter; there are {', '.join(sorted(known))}.{hint}"


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a problem for an unknown address of the API, a page for any other."""
    if request.path.startswith("/api/"):
        return problem_response(
            NotFoundError(f"There is no such address; {_PREFIX}schema/ describes all of them.")
        )
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Return a problem for a failure of the API, a page for any other.

    While the database is away, 503: agents suspect what they sent after a 500.
    """
    is_away, is_page = is_database_away(sys.exception()), not request.path.startswith("/api/")
    answer: HttpResponse
    if is_page:
        answer = defaults.server_error(request, "503.html" if is_away else "500.html")
    else:
        failed = ServerError("The site failed at this request; see its log.")
        answer = problem_response(UnavailableError() if is_away else failed)
    if is_away:
        answer.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        answer.headers["Retry-After"] = str(RETRY_S)
    return answer
