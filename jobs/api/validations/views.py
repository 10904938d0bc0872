"""Validations by REST: build code and measure its memory before submission."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from controlplane.core.protocol.wire import StopKind
from controlplane.core.values.lifecycle import ValidationStatus
from jobs import nudges
from jobs.api.jobs.dry_run import MemoryAdviceSerializer
from jobs.api.jobs.submission_fields import EnumField, TextField, WholeField
from jobs.api.jobs.submission_request import submission_of
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.api.openapi import number_parameter
from jobs.api.parsers import SUBMISSION_PARSERS
from jobs.api.requests import number_param, person
from jobs.api.waiting import changes_await
from jobs.models import Validation
from jobs.selectors.access import validation_visible_to
from jobs.selectors.estimates.memory import advice_text, job_memory_advice, shortage_text
from jobs.services.submission.validation_requests import validation_request
from jobs.submission import STOP_LIMIT


class ValidationRequestSerializer(SubmissionSerializer):
    """A submission that is only validated; name and stop condition may be missing."""

    name = TextField(100, default="Validation")
    stop_kind = EnumField(StopKind, default=StopKind.EPOCHS)
    #: Enough for every selection and tuning: too few epochs are warned of.
    stop_limit = WholeField(1, STOP_LIMIT, default=1000)


class ValidationSerializer(serializers.ModelSerializer):
    """A validation of a submission that is not submitted."""

    code = serializers.CharField(source="status_code", help_text="Machine word; if failed, why.")
    text = serializers.SerializerMethodField()
    num_virtual_nodes = serializers.IntegerField(source="validated_job.num_virtual_nodes")
    memory = serializers.SerializerMethodField(help_text="As in a dry run.")

    class Meta:
        model = Validation
        fields = (
            "id",
            "status",
            "code",
            "text",
            "num_virtual_nodes",
            "memory",
            "facts",
            "error_field",
            "error_traceback",
            "requested_at",
            "ended_at",
        )

    def to_representation(self, validation: Validation) -> Any:
        self._advice = job_memory_advice(validation.validated_job)
        return super().to_representation(validation)

    def get_text(self, validation: Validation) -> str:
        advice = self._advice
        texts = [] if advice is None else [advice_text(advice), shortage_text(advice)]
        return " ".join([validation.status_reason, *texts]).strip()

    def get_memory(self, _validation: Validation) -> dict[str, Any] | None:
        return None if self._advice is None else MemoryAdviceSerializer(self._advice).data


class ValidationList(APIView):
    """POST builds and measures a submission without submitting it."""

    parser_classes = SUBMISSION_PARSERS

    @extend_schema(
        request=ValidationRequestSerializer,
        responses={200: ValidationSerializer, 202: ValidationSerializer},
    )
    def post(self, request: Request) -> Response:
        """Measure a submission (JSON, YAML, form or multipart)."""
        wanted = submission_of(request, ValidationRequestSerializer)
        validation = validation_request(person(request), wanted, timezone.now())
        is_running = validation.status == ValidationStatus.RUNNING
        if is_running:
            nudges.jobs_changed(orders=True, cycle=False)
        location = reverse("api:validation-detail", [validation.pk], request=request)
        status = 202 if is_running else 200
        data = ValidationSerializer(validation).data
        return Response(data, status=status, headers={"Location": location})


class ValidationDetail(APIView):
    """One validation; `wait` delays the response until it has ended."""

    @extend_schema(
        responses=ValidationSerializer,
        parameters=[
            number_parameter("wait", 0, settings.WAIT_LIMIT_S, "Seconds to wait for it, to 30.")
        ],
    )
    def get(self, request: Request, validation_id: int) -> Response:
        """Get a validation."""
        wait_s = number_param(request, "wait", 0, settings.WAIT_LIMIT_S) or 0.0

        def is_over() -> bool:
            validation = validation_visible_to(request.user, validation_id)
            return validation.status != ValidationStatus.RUNNING

        if wait_s:
            changes_await(request, is_over, None, wait_s)
        validation = validation_visible_to(request.user, validation_id)
        return Response(ValidationSerializer(validation).data)
