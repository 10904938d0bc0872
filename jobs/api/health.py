"""Liveness and readiness of the process."""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from jobs import nudges


@require_safe
def healthz(_request: HttpRequest) -> JsonResponse:
    """Report that the process is alive."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(_request: HttpRequest) -> JsonResponse:
    """Report whether database and Redis respond; status 503 if one does not."""
    parts = {"database": _database_answers(), "redis": nudges.redis_answers()}
    is_ready = all(parts.values())
    body = {"status": "ok" if is_ready else "not ready", **parts}
    return JsonResponse(body, status=200 if is_ready else 503)


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM jobs_clustersetting LIMIT 1")
    except DatabaseError:
        return False
    return True
