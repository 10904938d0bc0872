"""What-if replays by REST, for admins."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.permissions import AdminPermission
from jobs.api.replays.serializers import (
    ComparisonSerializer,
    ReplayRequestSerializer,
    ReplaySerializer,
    ReplaySummarySerializer,
)
from jobs.api.requests import body, person, text_field, unknown_fields
from jobs.exceptions import InvalidInputError
from jobs.models import Replay
from jobs.selectors.replays import comparison_of, replay_summaries
from jobs.services.cluster.replays import Scenario, replay_cancel, replays_ask

_DEFAULT_HOURS = 24
_FIELDS = ("policy", "accelerators", "resize_cost_s")
_TEXTS = {"type": "array", "items": {"type": "string"}}


class ReplayList(generics.ListAPIView):
    """What-if replays, newest first."""

    permission_classes = (AdminPermission,)
    queryset = replay_summaries()
    serializer_class = ReplaySummarySerializer
    filter_backends = ()

    @extend_schema(request=ReplayRequestSerializer, responses={201: ReplaySummarySerializer})
    def post(self, request: Request) -> Response:
        """Replay the past with other policies, sizes or resize costs.

        Several scenarios are replayed over the same history: `replays/N/comparison/` has them side
        by side. The answer is the first of their replays.
        """
        values = body(request, *_FIELDS, "scenarios", "hours")
        given = values.get("scenarios")
        own = {name: values[name] for name in _FIELDS if name in values}
        if given is not None and own:
            text = "Give scenarios, or the fields of one, not both."
            raise InvalidInputError.of(scenarios=text)
        if given is not None and not isinstance(given, list):
            raise InvalidInputError.of(scenarios="Give a list of scenarios.")
        replays = replays_ask(
            person(request),
            [_scenario(one) for one in ([own] if given is None else given)],
            hours=values.get("hours", _DEFAULT_HOURS),
            now=timezone.now(),
        )
        return Response(ReplaySummarySerializer(replays[0]).data, status=201)


def _scenario(values: Any) -> Scenario:
    if not isinstance(values, dict):
        raise InvalidInputError.of(scenarios="Each scenario is an object with a policy.")
    if wrong := unknown_fields(values, _FIELDS):
        raise InvalidInputError("The input is not valid.", fields=wrong)
    accelerators = values.get("accelerators", {})
    if not isinstance(accelerators, dict):
        raise InvalidInputError.of(accelerators="Give an object of numbers by kind.")
    return Scenario(text_field(values, "policy"), accelerators, values.get("resize_cost_s"))


class ReplayDetail(APIView):
    """One what-if replay."""

    permission_classes = (AdminPermission,)

    @extend_schema(responses=ReplaySerializer)
    def get(self, _request: Request, replay_id: int) -> Response:
        """Get a replay, with its result when it is done."""
        replay = get_object_or_404(Replay.objects.select_related("requested_by"), id=replay_id)
        return Response(ReplaySerializer(replay).data)

    @extend_schema(responses={204: None})
    def delete(self, _request: Request, replay_id: int) -> Response:
        """Cancel a live replay, or delete an ended one."""
        replay_cancel(replay_id, timezone.now())
        return Response(status=204)


class ReplayComparison(APIView):
    """A what-if replay beside those over the same history."""

    permission_classes = (AdminPermission,)

    @extend_schema(
        parameters=[
            OpenApiParameter(
                "price",
                _TEXTS,
                description="Price of an hour, as `REPLAY:KIND=PRICE`; repeatable.",
            )
        ],
        responses=ComparisonSerializer,
    )
    def get(self, request: Request, replay_id: int) -> Response:
        """Compare a replay with those over the same history."""
        replay = get_object_or_404(Replay, id=replay_id)
        prices = dict(text.rpartition("=")[::2] for text in request.query_params.getlist("price"))
        comparison = comparison_of(replay, prices)
        known = {f"{row.pk}:{kind}" for row in comparison.replays for kind in row.accelerators}
        if prices.keys() - known:
            places = ", ".join(f"{place}=PRICE" for place in sorted(known))
            raise InvalidInputError.of(price=f"Give any of {places}.")
        return Response(ComparisonSerializer(comparison).data)
