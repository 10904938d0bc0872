"""Read-only data of one job by REST: events, resizes, series, logs, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.cache import patch_cache_control
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import nudges
from jobs.api.downloads import download, text_response
from jobs.api.jobs.data_serializers import (
    EventSerializer,
    GenerationSerializer,
    LogPartSerializer,
    LogSearchSerializer,
)
from jobs.api.negotiation import OneFormat
from jobs.api.openapi import download_schema, number_parameter, one_of
from jobs.api.requests import (
    actor,
    changeable_job,
    flag_param,
    job_exists,
    plain,
    visible_job,
    whole_param,
)
from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.models import Allocation, Event, Generation
from jobs.selectors import logs, series
from jobs.selectors.access import text_for
from jobs.selectors.job_filter import TEXTS, TextsFilter
from jobs.selectors.log_lines import LEVEL_FILTERS
from jobs.selectors.log_search import CONTEXT_LIMIT, Wanted, log_search
from jobs.selectors.retention import job_code
from jobs.services.lifecycle.audit import read_audit
from jobs.services.lifecycle.retention import files_delete

_TENURES_LIMIT = 5_000
_SEARCH_LIMIT = 200
#: Parameters of a log that do not go with `download`.
_OF_PARTS = ("cursor", "search", "level", "context")
_SLOT_LIMIT = 2**31 - 1
#: Seconds for which a browser may keep a picture of a job's data, which do not change.
_PICTURE_AGE_S = 3600


class _JobRows(generics.ListAPIView):
    """Rows of a job, newest first."""

    def get_queryset(self) -> Any:
        rows = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return rows.none()
        return rows.filter(job=job_exists(self.request, self.kwargs["job_id"]))


class EventFilter(django_filters.FilterSet):
    """`?kind=resize&kind=resize_requested`: events of any of these kinds."""

    kind = TextsFilter(method="filter_kinds", read=str, label="a kind")

    @extend_schema_field(TEXTS)
    def filter_kinds(
        self, events: QuerySet[Event], _name: str, kinds: Sequence[str]
    ) -> QuerySet[Event]:
        """Select events of any of the kinds."""
        return events.filter(kind__in=kinds)


class JobEvents(_JobRows):
    """Events of a job, newest first."""

    filterset_class = EventFilter
    queryset = Event.objects.all()
    serializer_class = EventSerializer


class JobGenerations(_JobRows):
    """A job's resizes with their figures, newest first."""

    filter_backends = ()
    queryset = Generation.objects.all()
    serializer_class = GenerationSerializer


class JobAllocations(APIView):
    """Accelerators that a job held over time, and how many of them trained."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: int) -> Response:
        """Get the allocations of a job, and its resizes."""
        job = job_exists(request, job_id)
        allocations = list(
            Allocation.objects.filter(job=job)
            .select_related("accelerator__node")
            .order_by("-id")[:_TENURES_LIMIT]
        )[::-1]
        return Response(
            {
                "allocations": [_allocation_data(row) for row in allocations],
                "sizes": [
                    {
                        "at": generation.switched_at,
                        "num_accelerators": generation.num_members,
                        "generation": generation.number,
                        "step": generation.step,
                        "reason": text_for(request.user, generation.reason),
                    }
                    for generation, _ in series.resizes_of(job)
                ],
            }
        )


def _allocation_data(row: Allocation) -> dict[str, Any]:
    return {
        "slot": row.slot,
        "node": row.accelerator.node.name,
        "accelerator": row.accelerator_id,
        "index": row.accelerator.index,
        "kind": row.accelerator.kind,
        "generation": row.granted_generation,
        "granted_at": row.granted_at,
        "ready_at": row.ready_at,
        "joined_at": row.joined_at,
        "release_requested_at": row.release_requested_at,
        "released_at": row.released_at,
        "exit_code": row.exit_code,
    }


class JobMetrics(APIView):
    """Loss and speed over steps, logs over epochs: limited in number, long series summed up."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job_id: int) -> Response:
        """Get the metrics of a job as series."""
        job = job_exists(request, job_id)
        return Response(
            {
                "steps": [
                    {
                        "at": row.at,
                        "step": row.step,
                        "loss": row.loss,
                        "batch_size": row.batch_size,
                        "learning_rate": row.learning_rate,
                        "noise_sqr": row.noise_sqr,
                        "noise_var": row.noise_var,
                        "examples_per_s": row.examples / row.seconds if row.seconds else None,
                    }
                    for row in series.step_bins_of(job)
                ],
                "batch_sizes": [
                    {"first_step": span.first_step, "batch_size": span.batch_size}
                    for span in series.batch_spans_of(job)
                ],
                "epochs": [
                    {"epoch": row.epoch, "step": row.step, "logs": row.logs, "at": row.at}
                    for row in series.epoch_reports_of(job)
                ],
            }
        )


class JobLogs(APIView):
    """A job's log: the newest part, the part since a cursor, matching lines, or a download."""

    content_negotiation_class = OneFormat

    @extend_schema(
        responses={
            (200, "application/json"): one_of("Log", LogPartSerializer, LogSearchSerializer),
            (200, "text/plain"): OpenApiTypes.STR,
        },
        parameters=[
            number_parameter("slot", 0, _SLOT_LIMIT, "Only this trainer's.", "integer"),
            OpenApiParameter("cursor", str, description="`next_cursor` of an earlier answer."),
            OpenApiParameter("search", str, description="Lines with this, whatever the case."),
            OpenApiParameter(
                "level",
                enum=[name for name, _ in LEVEL_FILTERS],
                description="Lines of this level or above; `output`: that tell no level.",
            ),
            number_parameter(
                "context",
                0,
                CONTEXT_LIMIT,
                f"Lines about each match, to {CONTEXT_LIMIT}.",
                "integer",
            ),
            OpenApiParameter("download", bool, description="All of it, as plain text."),
        ],
    )
    def get(self, request: Request, job_id: int) -> Response | StreamingHttpResponse:
        """Get the log of a job, or search it."""
        job = job_exists(request, job_id)
        read_audit(request.user, job, "log")
        slot = whole_param(request, "slot", _SLOT_LIMIT)
        if flag_param(request, "download"):
            if wrong := [name for name in _OF_PARTS if request.query_params.get(name)]:
                raise InvalidInputError.of(**dict.fromkeys(wrong, "Leave out of a download."))
            return text_response(plain(request), logs.log_text(job, slot), f"job-{job_id}.log")
        wanted = _wanted(request)
        if wanted.text or wanted.level:
            try:
                found = log_search(job, slot, wanted, request.query_params.get("cursor", ""))
            except ValueError:
                raise InvalidInputError.of(cursor="Give the cursor of an earlier answer.") from None
            return Response(found.as_data())
        cursor = whole_param(request, "cursor", 2**53)
        part = logs.log_tail(job, slot) if cursor is None else logs.log_since(job, slot, cursor)
        data = dataclasses.asdict(part)
        return Response({**data, "slots": logs.log_slots(job)})


def _wanted(request: Request) -> Wanted:
    """Read what a log is searched for.

    Raises:
        InvalidInputError: a parameter is not valid.
    """
    text, level = (request.query_params.get(name, "") for name in ("search", "level"))
    if len(text) > _SEARCH_LIMIT:
        raise InvalidInputError.of(search=f"Give at most {_SEARCH_LIMIT} characters.")
    known = [name for name, _ in LEVEL_FILTERS]
    if level and level not in known:
        raise InvalidInputError.of(level=f"Give one of {', '.join(known)}.")
    context = whole_param(request, "context", CONTEXT_LIMIT) or 0
    if context and not text and not level:
        raise InvalidInputError.of(context="Of a search alone; give search or level.")
    return Wanted(text, level, context)


class JobFiles(APIView):
    """All files of a job that has ended: code, results, checkpoints, log."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, job_id: int) -> Response:
        """Delete the files of a job; the job stays."""
        job = changeable_job(request, job_id)
        files_delete(job.pk, timezone.now(), actor=actor(request))
        nudges.jobs_changed([job.pk])
        return Response(status=204)


class JobFile(APIView):
    """A result file of a job, such as model.keras."""

    content_negotiation_class = OneFormat

    @extend_schema(**download_schema())
    def get(self, request: Request, job_id: int, name: str) -> HttpResponseBase:
        """Download a file of a job; `X-Sha256` is its digest."""
        job = job_exists(request, job_id)
        artifact = job.artifacts.filter(name=name).first()
        if artifact is None:
            raise NotFoundError(f"This job has no file {name!r:.60}.")
        read_audit(request.user, job, artifact.name)
        return download(plain(request), artifact.file, name=artifact.name, sha256=artifact.sha256)


class JobExampleImage(APIView):
    """A picture of an example that a job's selection chooses often."""

    content_negotiation_class = OneFormat

    @extend_schema(responses={(200, "image/png"): OpenApiTypes.BINARY})
    def get(self, request: Request, job_id: int, place: int) -> HttpResponse:
        """Get a picture of an example, at most 32 pixels wide and high."""
        job = job_exists(request, job_id)
        preview = job.example_previews.filter(place=place).first()
        if preview is None or preview.image is None:
            raise NotFoundError(f"This job has no picture of example {place}.")
        read_audit(request.user, job, "examples")
        response = HttpResponse(bytes(preview.image), content_type="image/png")
        patch_cache_control(response, private=True, max_age=_PICTURE_AGE_S)
        return response


class JobCode(APIView):
    """A job's code as submitted."""

    content_negotiation_class = OneFormat

    @extend_schema(**download_schema())
    def get(self, request: Request, job_id: int) -> HttpResponseBase:
        """Download the code of a job."""
        job = visible_job(request, job_id)
        code = job_code(job)
        read_audit(request.user, job, "code")
        return download(plain(request), code, name=job.code_name, sha256=job.code_sha256)
