"""Jobs side by side by REST."""

from __future__ import annotations

import dataclasses
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.requests import flag_param
from jobs.exceptions import InvalidInputError
from jobs.models import Job
from jobs.query_values import WHOLE_LIMIT, whole_read
from jobs.selectors.comparison import (
    COMPARED_LIMIT,
    Comparison,
    Series,
    compared_jobs,
    jobs_compared,
    series_compared,
)
from jobs.services.lifecycle.audit import reads_audit

_NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "maximum": WHOLE_LIMIT},
    "maxItems": COMPARED_LIMIT,
}


class JobComparison(APIView):
    """Settings, best and last values, and histories of metrics of several jobs."""

    @extend_schema(
        operation_id="jobs_compare",
        responses=OpenApiTypes.OBJECT,
        parameters=[
            OpenApiParameter("job", _NUMBERS, required=True, description="Number; repeatable."),
            OpenApiParameter("all", bool, description="Settings that are equal, too."),
            OpenApiParameter("series", bool, description="Histories of metrics, too."),
        ],
    )
    def get(self, request: Request) -> Response:
        """Compare jobs."""
        shows_all, has_series = flag_param(request, "all"), flag_param(request, "series")
        jobs = compared_jobs(request.user, _numbers(request))
        reads_audit(request.user, jobs, "page")
        found = jobs_compared(jobs)
        data = {
            "jobs": [_job_data(found, place) for place in range(len(found.jobs))],
            "settings": {
                row.name: row.values for row in found.settings if shows_all or not row.is_equal
            },
            "num_settings": found.num_settings,
            "metrics": {
                row.name: {
                    "higher_is_better": row.is_higher_better,
                    "best": row.best,
                    "best_epoch": row.best_epoch,
                    "last": row.last,
                }
                for row in found.metrics
            },
            "num_metrics": found.num_metrics,
        }
        if has_series:
            data["series"] = {
                name: [_plain(one) for one in of_jobs]
                for name, of_jobs in series_compared(jobs).items()
            }
        return Response(data)


def _numbers(request: Request) -> list[int]:
    texts = request.query_params.getlist("job")
    if not texts:
        raise InvalidInputError.of(job="Name the jobs, as in ?job=1&job=2.")
    numbers = [number for text in texts if (number := whole_read(text)) is not None]
    if len(numbers) < len(texts):
        raise InvalidInputError.of(job="Give numbers of jobs.")
    return numbers


def _plain(series: Series) -> dict[str, Any]:
    """Return the fields; `asdict` would copy every list by its elements."""
    return {field.name: getattr(series, field.name) for field in dataclasses.fields(series)}


def _job_data(found: Comparison, place: int) -> dict[str, Any]:
    job: Job = found.jobs[place]
    return {
        "id": job.pk,
        "name": job.name,
        "owner": job.owner.get_username(),
        "tags": job.tags,
        "status": job.status,
        "step": job.step,
        "epoch": job.epoch,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "accelerator_hours": found.accelerator_hours[place],
    }
