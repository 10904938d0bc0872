"""Secrets for jobs by REST: names and dates to read, values to write alone."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import nudges
from jobs.api.requests import body, person
from jobs.models import Secret
from jobs.services.cluster.secrets import VALUE_LIMIT_BYTES, secret_delete, secret_store
from jobs.submission import SECRET_NAME


class SecretSerializer(serializers.ModelSerializer):
    """A secret without its value."""

    class Meta:
        model = Secret
        fields = ("name", "created_at", "changed_at")


class NewSecretSerializer(serializers.Serializer):
    """The value of a secret. Only for the OpenAPI document."""

    value = serializers.RegexField(
        r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$",
        min_length=8,
        max_length=VALUE_LIMIT_BYTES,
        trim_whitespace=False,
        write_only=True,
    )


_NAME_PARAM = OpenApiParameter(
    "name", {"type": "string", "pattern": f"^({SECRET_NAME.pattern})$"}, OpenApiParameter.PATH
)


class SecretList(APIView):
    """The user's own secrets, without their values."""

    @extend_schema(operation_id="secrets_list", responses=SecretSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the names and dates of secrets."""
        rows = Secret.objects.filter(owner=person(request))
        return Response(SecretSerializer(rows, many=True).data)


class SecretDetail(APIView):
    """One of the user's own secrets; its value is never given."""

    @extend_schema(
        request=NewSecretSerializer,
        responses={200: SecretSerializer, 201: SecretSerializer},
        parameters=[_NAME_PARAM],
    )
    def put(self, request: Request, name: str) -> Response:
        """Create the secret, or replace its value."""
        value = body(request, "value").get("value")
        row, is_new = secret_store(person(request), name, value, timezone.now())
        return Response(SecretSerializer(row).data, status=201 if is_new else 200)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete the secret; jobs that name it fail."""
        secret_delete(person(request), name)
        nudges.jobs_changed(orders=True)
        return Response(status=204)
