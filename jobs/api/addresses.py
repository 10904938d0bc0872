"""Answers of the API outside its views: unknown addresses and query parameters, failures."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Mapping
from http import HTTPStatus
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.exceptions import DisallowedHost, TooManyFieldsSent, TooManyFilesSent
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.middleware.common import CommonMiddleware
from django.urls import is_valid_path
from django.utils.deprecation import MiddlewareMixin
from django.views import defaults

from jobs.api.openapi import openapi_document
from jobs.api.requests import UNKNOWN_LIMIT
from jobs.exceptions import (
    RETRY_S,
    ControlPlaneError,
    InvalidInputError,
    NotFoundError,
    ServerError,
    passing_error,
    problem_response,
)

_PREFIX = "/api/v1/"
#: Largest number of a row.
_NUMBER_LIMIT = 2**63 - 1
#: Setting and noun of what a request may have only so many of.
_COUNT_LIMITS: Mapping[type[Exception], tuple[str, str]] = {
    TooManyFieldsSent: ("DATA_UPLOAD_MAX_NUMBER_FIELDS", "query parameters or fields of a form"),
    TooManyFilesSent: ("DATA_UPLOAD_MAX_NUMBER_FILES", "files"),
}
_CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")


@functools.cache
def query_parameters() -> Mapping[tuple[str, str], Mapping[str, bool]]:
    """Return (address with placeholders, method in lower case) -> query parameters by name.

    Each with whether it may be repeated. The first call must be that of a single thread.
    """
    paths = openapi_document()["paths"]
    return {
        (path, method): {
            parameter["name"]: parameter["schema"].get("type") == "array"
            and parameter.get("explode", True)
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query"
        }
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


class SlashMiddleware(CommonMiddleware):
    """Redirects reads to addresses with a slash at the end; what a redirected POST sent is lost."""

    def should_redirect_with_slash(self, request: HttpRequest) -> bool:
        """Return whether the request is a read of an address that lacks a slash alone."""
        is_read = request.method in ("GET", "HEAD")
        return is_read and super().should_redirect_with_slash(request)


class QueryParametersMiddleware(MiddlewareMixin):
    """Refuses unknown query parameters: ignored, a mistyped filter would return everything.

    And those given twice though only one value is read, or without a value, as by a variable of a
    shell that is not set, or as `?dry_run`.
    """

    def process_view(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        """Return a refusal that names the parameter and its like, or None."""
        if not request.GET or request.resolver_match is None:
            return None
        address = "/" + _CONVERTER.sub(r"{\1}", request.resolver_match.route)
        method = "get" if request.method == "HEAD" else str(request.method).lower()
        if not address.startswith(_PREFIX) or (address, method) not in query_parameters():
            return None
        known = query_parameters()[address, method]
        wrong = (
            name
            for name, values in request.GET.lists()
            if name not in known or "" in values or (len(values) > 1 and not known[name])
        )
        errors = {
            name[:60]: [_sentence(name, known, request.GET)]
            for name in islice(wrong, UNKNOWN_LIMIT)
        }
        if not errors:
            return None
        return problem_response(InvalidInputError("The input is not valid.", fields=errors))


def _sentence(name: str, known: Mapping[str, bool], given: QueryDict) -> str:
    if name in known:
        is_empty = "" in given.getlist(name)
        return "Give this a value, or leave it out." if is_empty else "Give this once."
    if not known:
        return "This address takes no query parameters."
    like = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {like[0]}?" if like else ""
    return f"No such query parameter; there are {', '.join(sorted(known))}.{hint}"


class MisdirectedError(ControlPlaneError):
    """The site is called by a name that is not its own. Agents drop what is refused with 400."""

    status = HTTPStatus.MISDIRECTED_REQUEST
    code = "unknown_host"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a problem for what Django refuses of a request to the API, a page for any other."""
    if not request.path.startswith("/api/"):
        return defaults.bad_request(request, exception)
    if isinstance(exception, DisallowedHost):
        return problem_response(MisdirectedError("VIRTUALFLOW_HOSTS has no such name of the site."))
    limit = _COUNT_LIMITS.get(type(exception))
    if limit is None:
        return problem_response(ControlPlaneError("The request is malformed."))
    return problem_response(InvalidInputError(f"At most {getattr(settings, limit[0])} {limit[1]}."))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a problem for an unknown address of the API, a page for any other."""
    if request.path.startswith("/api/"):
        text = f"There is no such address; {_PREFIX}schema/ describes all of them."
        if is_valid_path(f"{request.path_info}/"):
            text = f"There is no such address; end it with a slash: {request.path}/"
        return problem_response(NotFoundError(text))
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Return a problem for a failure of the API, a page for any other.

    507 or 503 if it may pass: agents suspect what they sent after a 500.
    """
    passing = passing_error(sys.exception())
    answer: HttpResponse
    if request.path.startswith("/api/"):
        failed = ServerError("The site failed at this request; see its log.")
        answer = problem_response(passing or failed)
    else:
        status = passing.status if passing else HTTPStatus.INTERNAL_SERVER_ERROR
        answer = defaults.server_error(request, f"{status:d}.html")
        answer.status_code = status
    if passing:
        answer.headers["Retry-After"] = str(RETRY_S)
    return answer
