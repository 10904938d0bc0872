"""The policy of the cluster by REST: which one is in force, its switch and the effect of that."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.core.policies import POLICIES
from jobs import nudges
from jobs.api.cluster.serializers import PolicyChoiceSerializer, PolicySerializer
from jobs.api.jobs.action_views import MoveSerializer, StartChangeSerializer
from jobs.api.openapi import if_match_param, one_of
from jobs.api.permissions import AdminToWritePermission
from jobs.api.requests import (
    NUMBER_ETAG,
    actor,
    body,
    flag_param,
    person,
    text_field,
    version_expected,
)
from jobs.api.throttles import preview_count
from jobs.exceptions import InvalidInputError
from jobs.selectors.policy_preview import STARTS_LIMIT, policy_preview
from jobs.services.scheduling.policy import cluster_setting, policy_choose


class PolicyPreviewSerializer(serializers.Serializer):
    """Changes that another policy would make now."""

    dry_run = serializers.BooleanField()
    policy = serializers.CharField()
    moves = MoveSerializer(many=True)
    starts = StartChangeSerializer(
        many=True, help_text=f"Of at most {STARTS_LIMIT} jobs, those that start first."
    )


class Policy(APIView):
    """The policy in force; admins can switch it."""

    permission_classes = (AdminToWritePermission,)

    @extend_schema(responses=PolicySerializer)
    def get(self, _request: Request) -> Response:
        """Get the policy, with the names of all policies."""
        return _answer()

    @extend_schema(
        request=PolicyChoiceSerializer,
        responses=one_of("PolicyOrPreview", PolicySerializer, PolicyPreviewSerializer),
        parameters=[
            if_match_param(NUMBER_ETAG),
            OpenApiParameter(
                "dry_run", bool, description="Change nothing; answer which jobs it would move."
            ),
        ],
    )
    def put(self, request: Request) -> Response:
        """Switch the policy; with `version`, only if unchanged since that version."""
        values = body(request, "policy", "version", "reason")
        name, seen = text_field(values, "policy"), values.get("version")
        if seen is not None and (isinstance(seen, bool) or not isinstance(seen, int)):
            raise InvalidInputError.of(version="Give the version as you read it.")
        tag = version_expected(request, NUMBER_ETAG, "policy")
        if flag_param(request, "dry_run"):
            return _preview(request, name)
        policy_choose(
            name,
            timezone.now(),
            actor=actor(request),
            reason=text_field(values, "reason"),
            seen_version=seen if tag is None else int(tag),
        )
        nudges.jobs_changed(cluster=True)
        return _answer()


def _preview(request: Request, name: str) -> Response:
    if name not in POLICIES:
        raise InvalidInputError.of(policy=f"Choose one of {', '.join(POLICIES)}.")
    preview_count(person(request))
    found = policy_preview(name, timezone.now())
    effect = {"dry_run": True, "policy": name, "moves": found.moves, "starts": found.starts}
    return Response(PolicyPreviewSerializer(effect).data)


def _answer() -> Response:
    row = cluster_setting()
    data = {**PolicySerializer(row).data, "policies": [*POLICIES]}
    return Response(data, headers={"ETag": f'"{row.version}"'})
