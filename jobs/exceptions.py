"""Errors visible to clients: one tree with machine codes, rendered as RFC 9457 problems."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse, JsonResponse
from rest_framework import exceptions as rest
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

PROBLEM_TYPE = "application/problem+json"
#: Seconds after which to try again what the database could not do.
RETRY_S = 5
#: Most messages about one field.
MESSAGES_LIMIT = 10
#: Class of SQLSTATE of values too large for PostgreSQL, to psycopg an OperationalError as well.
_LIMIT_EXCEEDED = "54"
#: SQLSTATE of a full disk.
_DISK_FULL = "53100"

logger = logging.getLogger(__name__)

FieldErrors = Mapping[str, Sequence[str]]


class ControlPlaneError(Exception):
    """Base of all client errors.

    Attributes:
        status: HTTP status of the response.
        code: machine-readable word, stable between releases.
        fields: messages by input field, if any.
    """

    status = HTTPStatus.BAD_REQUEST
    code = "bad_request"

    def __init__(
        self, detail: str, *, code: str | None = None, fields: FieldErrors | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.fields = dict(fields or {})


class InvalidInputError(ControlPlaneError):
    """The input breaks a rule; `fields` has the messages."""

    code = "invalid"

    @classmethod
    def of(cls, **fields: str) -> InvalidInputError:
        """Build an error from one message per field."""
        return cls("The input is not valid.", fields={k: [v] for k, v in fields.items()})


class NotAuthenticatedError(ControlPlaneError):
    status = HTTPStatus.UNAUTHORIZED
    code = "not_authenticated"


class ForbiddenError(ControlPlaneError, PermissionDenied):
    """The user may not do this; for a page Django answers with its own of status 403."""

    status = HTTPStatus.FORBIDDEN
    code = "forbidden"


class NotFoundError(ControlPlaneError, Http404):
    """There is no such thing, or not for this user; for a page Django answers with its own."""

    status = HTTPStatus.NOT_FOUND
    code = "not_found"


class ConflictError(ControlPlaneError):
    """The request conflicts with the present state."""

    status = HTTPStatus.CONFLICT
    code = "conflict"


class StaleVersionError(ControlPlaneError):
    """The resource changed since the client read it (If-Match)."""

    status = HTTPStatus.PRECONDITION_FAILED
    code = "stale_version"


class TooManyFailuresError(ControlPlaneError):
    """Wrong passwords or tokens came too often; `Retry-After` says how long to wait."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "too_many_failures"


class ThrottledError(ControlPlaneError):
    """Requests came too often.

    Attributes:
        wait_s: seconds until the next one is answered.
    """

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "throttled"

    def __init__(self, detail: str, wait_s: float) -> None:
        super().__init__(detail)
        self.wait_s = wait_s


class GoneError(ControlPlaneError):
    status = HTTPStatus.GONE
    code = "gone"


class TooLargeError(ControlPlaneError):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too_large"


class RangeError(ControlPlaneError):
    """The file ends before the range that was asked for."""

    status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    code = "range_not_satisfiable"


class UnavailableError(ControlPlaneError):
    """The database does not answer for now; the same request may succeed later."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unavailable"

    def __init__(self) -> None:
        super().__init__(
            "The database is busy or away; try again. After a change, look first if it is made."
        )


class BusyError(ControlPlaneError):
    """Too many requests of one sort are being served; the same request may succeed soon."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "busy"


class DiskFullError(ControlPlaneError):
    """A disk of the site is full; the same request may succeed once there is room."""

    status = HTTPStatus.INSUFFICIENT_STORAGE
    code = "disk_full"

    def __init__(self) -> None:
        super().__init__(
            "The site's disk is full, so nothing was stored. Try again once its operator has made "
            "room; what is running goes on."
        )


class ServerError(ControlPlaneError):
    """An unexpected failure, which is in the log."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "server_error"


def is_database_away(error: BaseException | None) -> bool:
    """Return whether a query may succeed later: it did not fail over its values."""
    sqlstate = getattr(getattr(error, "__cause__", None), "sqlstate", None) or ""
    is_of_the_values = sqlstate.startswith(_LIMIT_EXCEEDED)
    return isinstance(error, OperationalError | InterfaceError) and not is_of_the_values


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether no room was left for a file or a row."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    cause = getattr(error, "__cause__", None)
    is_sqlites = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return is_sqlites or getattr(cause, "sqlstate", None) == _DISK_FULL


@contextmanager
def full_disk_refused() -> Iterator[None]:
    """Turn the error of a file that finds no room into one that is told."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError from None
        raise


@contextmanager
def errors_contained(job_id: int, what: str) -> Iterator[None]:
    """Log an error over one job, so that a task goes on with the others and tries it again.

    Errors of the connection to the database, and the end of the task's time, are raised.

    Args:
        what: the rest of a sentence that begins with the job.
    """
    try:
        yield
    except (OperationalError, InterfaceError, SoftTimeLimitExceeded):
        raise
    except Exception:
        logger.exception("job %d %s", job_id, what, extra={"job": job_id})


def passing_error(error: BaseException | None) -> ControlPlaneError | None:
    """Return the answer to an error that is no fault of the request, which may succeed later."""
    if is_disk_full(error):
        return DiskFullError()
    return UnavailableError() if is_database_away(error) else None


def problem_body(
    status: int, code: str, detail: str, fields: FieldErrors | None = None
) -> dict[str, Any]:
    """Return the members of a problem document."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
    }
    if fields:
        body["errors"] = {name: list(messages) for name, messages in fields.items()}
    return body


def messages_by_field(errors: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the errors of a serializer as at most `MESSAGES_LIMIT` messages for each field."""
    return {name: _messages(nested)[:MESSAGES_LIMIT] for name, nested in errors.items()}


def _messages(errors: Any) -> list[str]:
    """Return nested messages in one list; those of an entry begin with its place or key."""
    if isinstance(errors, Mapping):
        places = ((f"Item {key + 1}" if isinstance(key, int) else key) for key in errors)
        pairs = zip(places, map(_messages, errors.values()), strict=True)
        return [f"{place}: {text}" for place, texts in pairs for text in texts]
    if isinstance(errors, list):
        return [text for nested in errors for text in _messages(nested)]
    return [str(errors)]


def problem_response(error: ControlPlaneError) -> HttpResponse:
    """Render an error for a view outside the REST framework."""
    body = problem_body(error.status, error.code, error.detail, error.fields)
    headers = _retry_headers(error)
    return JsonResponse(body, status=error.status, content_type=PROBLEM_TYPE, headers=headers)


def _retry_headers(error: ControlPlaneError) -> dict[str, str]:
    if isinstance(error, ThrottledError):
        return {"Retry-After": str(int(error.wait_s) + 1)}
    return {"Retry-After": str(RETRY_S)} if isinstance(error, BusyError) else {}


def problem_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Render an expected error of a REST view; None turns an unexpected one into a 500."""
    headers: dict[str, str] = {}
    if isinstance(error, ControlPlaneError):
        body = problem_body(error.status, error.code, error.detail, error.fields)
        headers = _retry_headers(error)
    elif isinstance(error, Http404):
        body = problem_body(404, "not_found", "There is no such thing, or it is not yours.")
    elif isinstance(error, RequestDataTooBig):
        limit_bytes = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = problem_body(413, "too_large", f"At most {limit_bytes} bytes besides files.")
    elif isinstance(error, PermissionDenied):
        body = problem_body(403, "forbidden", str(error) or "You may not do this.")
    elif isinstance(error, rest.APIException):
        body, headers = _rest_problem(error)
    elif away := passing_error(error):
        logger.error("%s", away.detail, exc_info=error)
        body = problem_body(away.status, away.code, away.detail)
        headers["Retry-After"] = str(RETRY_S)
    else:
        return None
    request, renderer = context["request"], JSONRenderer()  # that of the OpenAPI view writes YAML
    # Of a request whose type cannot be sent (406) neither is set yet.
    request.accepted_renderer, request.accepted_media_type = renderer, renderer.media_type
    return Response(body, status=body["status"], headers=headers, content_type=PROBLEM_TYPE)


def _rest_problem(error: rest.APIException) -> tuple[dict[str, Any], dict[str, str]]:
    headers: dict[str, str] = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(int(error.wait) + 1)  # type: ignore[attr-defined]
    if isinstance(error, rest.ValidationError) and isinstance(error.detail, dict):
        fields = messages_by_field(error.detail)
        return problem_body(400, "invalid", "The input is not valid.", fields), headers
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else "invalid"
    detail = error.detail
    text = str(detail[0]) if isinstance(detail, list) and detail else str(detail)
    return problem_body(error.status_code, code, text), headers
