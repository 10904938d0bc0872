"""Liveness and readiness of the process."""

from __future__ import annotations

from time import monotonic

from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from jobs import nudges
from jobs.models import ClusterSetting


@require_safe
def healthz(_request: HttpRequest) -> JsonResponse:
    """Report that the process is alive."""
    return JsonResponse({"status": "ok"})


#: Seconds for which an answer of `readyz` stands: it is open to everybody and asks two servers.
READY_FOR_S = 1.0
_last: tuple[float, dict[str, object]] | None = None


@require_safe
def readyz(_request: HttpRequest) -> JsonResponse:
    """Report whether database and Redis respond; status 503 if one does not.

    `cycle` is false while scheduling cycles fail. The status stays 200 then: the site answers, and
    its pages tell of the failure.
    """
    global _last
    now = monotonic()
    if _last is None or now - _last[0] >= READY_FOR_S:
        _last = now, _readiness()
    body = _last[1]
    return JsonResponse(body, status=503 if body["status"] == "not ready" else 200)


def _readiness() -> dict[str, object]:
    is_cycle_failing = False
    has_database = True
    try:
        is_cycle_failing = ClusterSetting.objects.exclude(cycle_failed_at=None).exists()
    except DatabaseError:
        has_database = False
    parts = {"database": has_database, "redis": nudges.redis_answers()}
    is_ready = all(parts.values())
    status = "not ready" if not is_ready else "degraded" if is_cycle_failing else "ok"
    return {"status": status, **parts, "cycle": not is_cycle_failing}
