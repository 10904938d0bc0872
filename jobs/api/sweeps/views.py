"""Sweeps by REST: submit, list, get, change, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from jobs import nudges
from jobs.api.jobs.serializers import ReasonSerializer
from jobs.api.jobs.views import key_of
from jobs.api.openapi import if_match_param, one_of
from jobs.api.parsers import SUBMISSION_PARSERS
from jobs.api.requests import (
    NUMBER_ETAG,
    body,
    checked,
    flag_param,
    person,
    text_field,
    version_expected,
)
from jobs.api.sweeps.serializers import (
    SweepChangeSerializer,
    SweepPreviewSerializer,
    SweepSerializer,
    SweepSubmissionSerializer,
    statuses_counted,
    sweep_request_of,
)
from jobs.models import Sweep
from jobs.selectors.access import sweep_visible_to, sweeps_visible_to
from jobs.services.lifecycle.audit import reads_audit
from jobs.services.submission.rows import submission_try
from jobs.services.submission.sweeps import (
    sweep_cancel,
    sweep_limit,
    sweep_pause,
    sweep_resume,
    sweep_submit,
)


class SweepList(generics.ListAPIView):
    """Sweeps visible to the user, newest first; POST submits one."""

    queryset = Sweep.objects.none()
    serializer_class = SweepSerializer
    filter_backends = ()
    parser_classes = SUBMISSION_PARSERS

    def get_queryset(self) -> Any:
        return sweeps_visible_to(self.request.user)

    def paginate_queryset(self, queryset: Any) -> Any:
        """Return the sweeps of a page, whose jobs are counted by one query."""
        page = super().paginate_queryset(queryset)
        reads_audit(self.request.user, page or (), "page")
        self._statuses = statuses_counted(page or ())
        return page

    def get_serializer_context(self) -> dict[str, Any]:
        statuses = getattr(self, "_statuses", {})
        return {**super().get_serializer_context(), "statuses": statuses}

    @extend_schema(
        request=SweepSubmissionSerializer,
        responses={
            200: one_of("SweepOrPreview", SweepSerializer, SweepPreviewSerializer),
            201: SweepSerializer,
        },
        parameters=[
            OpenApiParameter("dry_run", bool, description="Draw; store nothing."),
            OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER),
        ],
    )
    def post(self, request: Request) -> Response:
        """Submit a sweep: the fields of a job, and `sweep` with the space (JSON, YAML, form)."""
        wanted = sweep_request_of(request)
        if flag_param(request, "dry_run"):
            submission_try(person(request), wanted.submission, len(wanted.settings))
            return Response(
                {
                    "num_jobs": len(wanted.settings),
                    "max_running": wanted.max_running,
                    "settings": wanted.settings,
                }
            )
        now, key = timezone.now(), key_of(request)
        sweep = sweep_submit(person(request), wanted, now, idempotency_key=key)
        nudges.jobs_changed(sweep.jobs.values_list("pk", flat=True), orders=True)
        headers = {"Location": reverse("api:sweep-detail", [sweep.pk], request=request)}
        is_new = sweep.submitted_at == now
        return sweep_response(sweep, status=201 if is_new else 200, headers=headers)


def sweep_response(
    sweep: Sweep, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Answer with a sweep."""
    context = {"statuses": statuses_counted([sweep])}
    tag = {"ETag": f'"{sweep.max_running}"'}
    data = SweepSerializer(sweep, context=context).data
    return Response(data, status=status, headers={**tag, **(headers or {})})


class SweepDetail(APIView):
    """One sweep; its jobs are `jobs/?sweep=N`."""

    @extend_schema(responses=SweepSerializer)
    def get(self, request: Request, sweep_id: int) -> Response:
        """Get a sweep."""
        sweep = sweep_visible_to(request.user, sweep_id)
        reads_audit(request.user, [sweep], "page")
        return sweep_response(sweep)

    @extend_schema(
        request=SweepChangeSerializer,
        responses=SweepSerializer,
        parameters=[if_match_param(NUMBER_ETAG)],
    )
    def patch(self, request: Request, sweep_id: int) -> Response:
        """Change how many jobs of a sweep run at once."""
        sweep = sweep_visible_to(request.user, sweep_id)
        values = checked(SweepChangeSerializer, body(request))
        seen = version_expected(request, NUMBER_ETAG, "sweep")
        seen_limit = None if seen is None else int(seen)
        changed = sweep_limit(sweep.pk, **values, user=person(request), seen_limit=seen_limit)
        nudges.jobs_changed(orders=True)
        return sweep_response(changed)


class SweepAction(APIView):
    """Base of user actions on all jobs of a sweep."""

    #: Service that performs the action and returns the jobs that it changed.
    change: ClassVar[Callable[..., list[int]]]

    @extend_schema(request=ReasonSerializer, responses=SweepSerializer)
    def post(self, request: Request, sweep_id: int) -> Response:
        sweep = sweep_visible_to(request.user, sweep_id)
        reason = text_field(body(request, "reason"), "reason")
        changed = type(self).change(sweep, person(request), timezone.now(), reason)
        nudges.jobs_changed(changed, orders=True)
        return sweep_response(sweep)


class SweepCancel(SweepAction):
    """Cancel the jobs of a sweep that have not ended."""

    change = sweep_cancel


class SweepPause(SweepAction):
    """Pause a sweep: jobs that run save their state, and none begins."""

    change = sweep_pause


class SweepResume(SweepAction):
    """Resume a sweep and its paused jobs."""

    change = sweep_resume
