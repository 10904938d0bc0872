"""What-if replays by REST, for admins."""

from __future__ import annotations

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.permissions import AdminPermission
from jobs.api.replays.serializers import (
    ReplayRequestSerializer,
    ReplaySerializer,
    ReplaySummarySerializer,
)
from jobs.api.requests import body, person, text_field
from jobs.exceptions import InvalidInputError
from jobs.models import Replay
from jobs.services.cluster.replays import replay_ask, replay_cancel

_DEFAULT_HOURS = 24


class ReplayList(generics.ListAPIView):
    """What-if replays, newest first."""

    permission_classes = (AdminPermission,)
    queryset = Replay.objects.select_related("requested_by").defer("result")
    serializer_class = ReplaySummarySerializer
    filter_backends = ()

    @extend_schema(request=ReplayRequestSerializer, responses={201: ReplaySummarySerializer})
    def post(self, request: Request) -> Response:
        """Request a replay of the past with another policy or cluster size."""
        values = body(request)
        accelerators = values.get("accelerators", {})
        if not isinstance(accelerators, dict):
            raise InvalidInputError.of(accelerators="Give an object of numbers by kind.")
        replay = replay_ask(
            person(request),
            policy=text_field(values, "policy"),
            accelerators=accelerators,
            hours=values.get("hours", _DEFAULT_HOURS),
            now=timezone.now(),
        )
        return Response(ReplaySummarySerializer(replay).data, status=201)


class ReplayDetail(APIView):
    """One what-if replay."""

    permission_classes = (AdminPermission,)

    @extend_schema(responses=ReplaySerializer)
    def get(self, _request: Request, replay_id: int) -> Response:
        """Get a replay, with its result when it is done."""
        replay = Replay.objects.select_related("requested_by").filter(id=replay_id).first()
        if replay is None:
            raise Http404
        return Response(ReplaySerializer(replay).data)

    @extend_schema(responses={204: None})
    def delete(self, _request: Request, replay_id: int) -> Response:
        """Cancel a live replay, or delete an ended one."""
        replay_cancel(replay_id, timezone.now())
        return Response(status=204)
