"""Validations by REST: build code and measure its memory before submission."""

from __future__ import annotations

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from controlplane.core.values.lifecycle import JobStatus
from jobs import nudges
from jobs.api.jobs.submission_serializer import SubmissionSerializer, submission_of
from jobs.api.parsers import BoundedJsonParser, YamlParser
from jobs.api.requests import number_param, person
from jobs.api.serializers import ValidationSerializer
from jobs.api.waiting import changes_await
from jobs.selectors.validations import draft_as_data, draft_visible_to
from jobs.services.submission.measurements import draft_measure


class ValidationList(APIView):
    """POST builds and measures a submission without submitting it."""

    parser_classes = (BoundedJsonParser, MultiPartParser, FormParser, YamlParser)

    @extend_schema(
        request=SubmissionSerializer,
        responses={200: ValidationSerializer, 202: ValidationSerializer},
    )
    def post(self, request: Request) -> Response:
        """Measure a submission (JSON, YAML, form or multipart)."""
        draft = draft_measure(person(request), submission_of(request), timezone.now())
        is_under_way = draft.status == JobStatus.VALIDATING
        if is_under_way:
            nudges.jobs_changed([draft.pk], orders=True, cycle=False)
        location = reverse("api:validation-detail", [draft.pk], request=request)
        status = 202 if is_under_way else 200
        return Response(draft_as_data(draft), status=status, headers={"Location": location})


class ValidationDetail(APIView):
    """One validation; `wait` delays the response until it has ended."""

    @extend_schema(
        responses=ValidationSerializer,
        parameters=[OpenApiParameter("wait", float, description="Seconds to wait for it, to 30.")],
    )
    def get(self, request: Request, draft_id: int) -> Response:
        """Get a validation."""
        wait_s = number_param(request, "wait", 0, 0, settings.WAIT_LIMIT_S) or 0.0

        def is_over() -> bool:
            return draft_visible_to(request.user, draft_id).status != JobStatus.VALIDATING

        if wait_s:
            changes_await(is_over, draft_id, wait_s)
        return Response(draft_as_data(draft_visible_to(request.user, draft_id)))
