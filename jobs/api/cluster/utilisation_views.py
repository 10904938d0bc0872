"""Use of a node's accelerators over time by REST."""

from __future__ import annotations

import datetime

from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.openapi import fields_param
from jobs.api.requests import chosen_fields, time_param
from jobs.exceptions import InvalidInputError
from jobs.models import Node, ReadingBin
from jobs.selectors.readings import STEPS_S, readings_between

_DEFAULT_SPAN = datetime.timedelta(hours=1)
#: Values of a bin, in the order of the answer.
FIELDS = (
    "at",
    "num_readings",
    "utilisation_percent",
    "utilisation_peak",
    "memory_bytes",
    "memory_peak",
    "temperature_c",
    "power_w",
)


class ReadingBinSerializer(serializers.ModelSerializer):
    """Means of a bin, which begins `at`, and peaks. Only for the OpenAPI document."""

    class Meta:
        model = ReadingBin
        fields = FIELDS


class AcceleratorUtilisationSerializer(serializers.Serializer):
    """Bins of one accelerator, oldest first. Only for the OpenAPI document."""

    id = serializers.IntegerField()
    index = serializers.IntegerField()
    kind = serializers.CharField()
    bins = ReadingBinSerializer(many=True)


class NodeUtilisationSerializer(serializers.Serializer):
    """Use of a node's accelerators over time. Only for the OpenAPI document."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    step = serializers.IntegerField(help_text="Width of a bin in seconds.")
    accelerators = AcceleratorUtilisationSerializer(many=True)


class NodeUtilisation(APIView):
    """Utilisation, memory, temperature and power of a node's accelerators over time."""

    @extend_schema(
        operation_id="node_utilisation",
        responses=NodeUtilisationSerializer,
        parameters=[
            OpenApiParameter("since", OpenApiTypes.DATETIME, description="By default an hour ago."),
            OpenApiParameter("until", OpenApiTypes.DATETIME, description="By default now."),
            OpenApiParameter(
                "step",
                int,
                enum=STEPS_S,
                description="Width of a bin in seconds. By default the smallest that is kept for "
                "so long, and gives at most 20,000 bins.",
            ),
            fields_param(FIELDS),
        ],
    )
    def get(self, request: Request, node_id: int) -> Response:
        """Get the bins of every accelerator between two times."""
        node = get_object_or_404(Node, removed_at=None, id=node_id)
        now = timezone.now()
        until = time_param(request, "until") or now
        since = time_param(request, "since") or until - _DEFAULT_SPAN
        if since >= until:
            raise InvalidInputError.of(since="Give a time before `until`.")
        chosen = chosen_fields(request, FIELDS)
        names = [name for name in FIELDS if chosen is None or name in chosen]
        found, step_s = readings_between(node, since, until, _step_s(request))
        return Response(
            {
                "since": since,
                "until": until,
                "step": step_s,
                "accelerators": [
                    {
                        "id": one.accelerator.pk,
                        "index": one.accelerator.index,
                        "kind": one.accelerator.kind,
                        "bins": [{name: getattr(row, name) for name in names} for row in one.bins],
                    }
                    for one in found
                ],
            }
        )


def _step_s(request: Request) -> int | None:
    text = request.query_params.get("step", "")
    if not text:
        return None
    if text not in map(str, STEPS_S):
        raise InvalidInputError.of(step=f"Give one of {', '.join(map(str, STEPS_S))}.")
    return int(text)
