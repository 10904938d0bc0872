"""The cluster by REST: nodes, allocation history, and credentials."""

from __future__ import annotations

import datetime
from typing import Any

from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import nudges
from jobs.api.cluster.node_serializers import (
    CordonPreviewSerializer,
    NodeSerializer,
    cordon_preview,
)
from jobs.api.cluster.serializers import (
    AuditEntrySerializer,
    EnrolmentTokenSerializer,
    NewTokenSerializer,
    ShapeChoiceSerializer,
    TemplateSerializer,
    TokenSerializer,
)
from jobs.api.jobs.serializers import ReasonSerializer
from jobs.api.openapi import number_parameter, one_of
from jobs.api.permissions import AdminPermission, AdminToWritePermission, SessionPermission
from jobs.api.requests import (
    actor,
    body,
    flag_param,
    no_body,
    number_param,
    person,
    plain,
    text_field,
)
from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import ApiToken, AuditEntry, Node
from jobs.selectors import series
from jobs.selectors.access import is_admin, node_for, projects_seen_by
from jobs.selectors.audit import AuditFilter
from jobs.selectors.nodes import enrolment_tokens, unfiltered_nodes
from jobs.selectors.readings import use_now
from jobs.services.cluster.accounts import password_confirm
from jobs.services.cluster.agent_tokens import node_token_replace
from jobs.services.cluster.api_tokens import JOB_SCOPES, api_token_create, api_token_revoke
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.node_shapes import shape_accept
from jobs.services.cluster.nodes import enrolment_token_create, enrolment_token_revoke, node_remove
from jobs.services.failures.quarantine import node_unquarantine

_HOUR_S = 3600
_HISTORY_LIMIT_S = 30 * 24 * 3600
_BINS = 300


class NodeList(generics.ListAPIView):
    """All nodes, by name."""

    queryset = Node.objects.filter(removed_at=None).prefetch_related("accelerators")
    serializer_class = NodeSerializer
    filter_backends = ()

    def get_serializer(self, *rows: Any, **options: Any) -> Any:
        """Return the serializer of a page, with the present use of its accelerators."""
        nodes = rows[0] if rows and isinstance(rows[0], list) else []
        nodes = [node_for(self.request.user, node) for node in nodes]
        options["context"] = {**self.get_serializer_context(), **_nodes_context(*nodes)}
        return NodeSerializer(*rows, **options)


def _nodes_context(*nodes: Node) -> dict[str, Any]:
    ids = [accelerator.pk for node in nodes for accelerator in node.accelerators.all()]
    # The OpenAPI document is made without nodes, and without a database.
    unfiltered = unfiltered_nodes() if nodes else set()
    return {"use_now": use_now(ids, timezone.now()), "unfiltered_nodes": unfiltered}


def _node_data(request: Request, node_id: int) -> dict[str, Any]:
    node = node_for(request.user, _node(node_id))
    return dict(NodeSerializer(node, context=_nodes_context(node)).data)


class NodeDetail(APIView):
    """One node; admins can remove it."""

    permission_classes = (AdminToWritePermission,)

    @extend_schema(responses=NodeSerializer)
    def get(self, request: Request, node_id: int) -> Response:
        """Get a node."""
        return Response(_node_data(request, node_id))

    @extend_schema(request=ReasonSerializer, responses={204: None})
    def delete(self, request: Request, node_id: int) -> Response:
        """Remove a node: its agent stops, its jobs recover elsewhere."""
        node = _node(node_id)
        reason = text_field(body(request, "reason"), "reason")
        jobs = node_remove(node, timezone.now(), actor=actor(request), reason=reason)
        nudges.jobs_changed(jobs, orders=True, cluster=True)
        return Response(status=204)


def _node(node_id: int) -> Node:
    nodes = Node.objects.prefetch_related("accelerators")
    return get_object_or_404(nodes, removed_at=None, id=node_id)


class NodeCordon(APIView):
    """Cordon a node: it takes no new work (admins)."""

    permission_classes = (AdminPermission,)
    change = Cordon.CORDON

    @extend_schema(
        request=ReasonSerializer,
        responses=one_of("NodeOrPreview", NodeSerializer, CordonPreviewSerializer),
        parameters=[
            OpenApiParameter(
                "dry_run", bool, description="Change nothing; answer who would move, and when."
            )
        ],
    )
    def post(self, request: Request, node_id: int) -> Response:
        node = _node(node_id)
        reason = text_field(body(request, "reason"), "reason")
        if flag_param(request, "dry_run"):
            return Response(cordon_preview([node], self.change))
        node_cordon(node, self.change, timezone.now(), actor=actor(request), reason=reason)
        nudges.jobs_changed(cluster=True)
        return Response(_node_data(request, node_id))


class NodeDrain(NodeCordon):
    """Drain a node: its jobs move to others, or wait (admins)."""

    change = Cordon.DRAIN


class NodeUncordon(NodeCordon):
    """Uncordon a node: it takes new work again (admins)."""

    change = Cordon.UNCORDON

    @extend_schema(request=ReasonSerializer, responses=NodeSerializer)
    def post(self, request: Request, node_id: int) -> Response:
        return super().post(request, node_id)


class NodeUnquarantine(APIView):
    """End a node's quarantine before its time is over (admins)."""

    permission_classes = (AdminPermission,)

    @extend_schema(request=ReasonSerializer, responses=NodeSerializer)
    def post(self, request: Request, node_id: int) -> Response:
        node = _node(node_id)
        reason = text_field(body(request, "reason"), "reason")
        node_unquarantine(node, timezone.now(), actor=actor(request), reason=reason)
        nudges.jobs_changed(cluster=True)
        return Response(_node_data(request, node_id))


class NodeAcceptShape(APIView):
    """Accept a node's `proposed_shape` (admins)."""

    permission_classes = (AdminPermission,)

    @extend_schema(request=ShapeChoiceSerializer, responses=NodeSerializer)
    def post(self, request: Request, node_id: int) -> Response:
        """Accept the shape of a node with this `digest`."""
        digest = text_field(body(request, "digest"), "digest", limit=64)
        if not digest:
            raise InvalidInputError.of(digest="Give the digest of the proposed shape.")
        shape_accept(_node(node_id), digest, timezone.now(), actor=actor(request))
        nudges.jobs_changed(cluster=True)
        return Response(_node_data(request, node_id))


class NodeNewToken(APIView):
    """End a node's agent token, and let its agent enrol again (admins)."""

    permission_classes = (AdminPermission,)

    @extend_schema(request=None, responses={201: OpenApiTypes.OBJECT})
    def post(self, request: Request, node_id: int) -> Response:
        """Return an enrolment token for this node; its present agent token stops."""
        no_body(request)
        row, text = node_token_replace(
            _node(node_id), person(request), timezone.now(), actor=actor(request)
        )
        return Response({"token": text, "expires_at": row.expires_at}, status=201)


class EnrolmentTokens(APIView):
    """Enrolment tokens, each for one node (admins); the token is shown only once."""

    permission_classes = (AdminPermission,)

    @extend_schema(
        operation_id="enrolment_tokens_list", responses=EnrolmentTokenSerializer(many=True)
    )
    def get(self, _request: Request) -> Response:
        """List enrolment tokens that can still be used, newest first."""
        rows = enrolment_tokens(timezone.now())
        return Response(EnrolmentTokenSerializer(rows, many=True).data)

    @extend_schema(request=None, responses={201: OpenApiTypes.OBJECT})
    def post(self, request: Request) -> Response:
        """Create an enrolment token."""
        no_body(request)
        row, text = enrolment_token_create(person(request), timezone.now())
        return Response({**EnrolmentTokenSerializer(row).data, "token": text}, status=201)


class EnrolmentTokenDetail(APIView):
    """One unused enrolment token (admins)."""

    permission_classes = (AdminPermission,)

    @extend_schema(responses={204: None})
    def delete(self, _request: Request, token_id: int) -> Response:
        """Revoke an enrolment token."""
        enrolment_token_revoke(token_id)
        return Response(status=204)


class Audit(generics.ListAPIView):
    """The audit log, newest first (admins)."""

    permission_classes = (AdminPermission,)
    queryset = AuditEntry.objects.all()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilter


class ClusterSeries(APIView):
    """Accelerators held by each job over time, and their throughput."""

    @extend_schema(
        responses=OpenApiTypes.OBJECT,
        parameters=[number_parameter("last_s", 1, _HISTORY_LIMIT_S, "How far back, in seconds.")],
    )
    def get(self, request: Request) -> Response:
        """Get the cluster as series; jobs of other users are anonymous."""
        now = timezone.now()
        last_s = number_param(request, "last_s", 1, _HISTORY_LIMIT_S) or _HOUR_S
        start = now - datetime.timedelta(seconds=last_s)
        sees_all = is_admin(request.user)
        allocations = series.allocation_spans_between(start, now)
        projects = projects_seen_by(request.user)
        own = {
            row.job_id
            for row in allocations
            if sees_all or row.owner_id == request.user.pk or row.project_id in projects
        }
        return Response(
            {
                "from": start,
                "to": now,
                "num_accelerators": series.num_accelerators_present(),
                "allocations": [
                    {
                        "job": row.job_id if row.job_id in own else None,
                        "name": row.job_name if row.job_id in own else None,
                        "granted_at": row.granted_at,
                        "released_at": row.released_at,
                    }
                    for row in allocations
                ],
                "throughput": _throughput(start, now, last_s / _BINS, own, sees_all=sees_all),
            }
        )


def _throughput(
    start: datetime.datetime,
    end: datetime.datetime,
    bin_s: float,
    own: set[int],
    *,
    sees_all: bool,
) -> list[dict[str, Any]]:
    return [
        {
            "until": row.until,
            "job": row.job_id if sees_all or row.job_id in own else None,
            "examples": row.examples,
            "seconds": row.seconds,
        }
        for row in series.rates_between(start, end, bin_s)
    ]


class Tokens(generics.ListAPIView):
    """The user's own API tokens, newest first; in a session only."""

    permission_classes = (SessionPermission,)
    queryset = ApiToken.objects.none()
    serializer_class = TokenSerializer
    filter_backends = ()

    def get_queryset(self) -> Any:
        if getattr(self, "swagger_fake_view", False):
            return self.queryset
        return ApiToken.objects.filter(user=person(self.request))

    @extend_schema(request=NewTokenSerializer, responses={201: TokenSerializer})
    def post(self, request: Request) -> Response:
        """Create an API token, with the user's `password`; `token` is shown only once."""
        values = body(request, "name", "scopes", "lifetime_days", "password")
        password_confirm(plain(request), person(request), text_field(values, "password", 4096))
        row, text = api_token_create(
            person(request),
            text_field(values, "name"),
            timezone.now(),
            scopes=values.get("scopes", JOB_SCOPES),
            lifetime_days=values.get("lifetime_days", 90),
        )
        return Response({**TokenSerializer(row).data, "token": text}, status=201)


class TokenDetail(APIView):
    """One of the user's own API tokens; in a session only."""

    permission_classes = (SessionPermission,)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, token_id: int) -> Response:
        """Revoke an API token."""
        api_token_revoke(person(request), token_id, timezone.now())
        return Response(status=204)


class Templates(APIView):
    """Job templates."""

    @extend_schema(operation_id="templates_list", responses=TemplateSerializer(many=True))
    def get(self, _request: Request) -> Response:
        """List the templates."""
        return Response(TemplateSerializer(JOB_TEMPLATES.values(), many=True).data)


class TemplateCode(APIView):
    """The code of a template."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, _request: Request, name: str) -> Response:
        """Get the code of a template."""
        template = JOB_TEMPLATES.get(name)
        if template is None:
            raise NotFoundError("There is no such template.")
        return Response({"name": template.path.name, "code": template.code})
