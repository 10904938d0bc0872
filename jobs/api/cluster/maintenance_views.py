"""Maintenance windows of nodes by REST."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import nudges
from jobs.api.cluster.node_serializers import CordonPreviewSerializer, cordon_preview
from jobs.api.jobs.serializers import ReasonSerializer
from jobs.api.permissions import AdminPermission, AdminToWritePermission
from jobs.api.requests import BodySerializer, actor, body, checked, flag_param, text_field
from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import MaintenanceWindow, Node
from jobs.selectors.access import Person, is_admin
from jobs.selectors.maintenance import window_or_404, windows_open
from jobs.services.cluster.maintenance import NODES_LIMIT, window_cancel, windows_plan

_ID_LIMIT = 2**31 - 1


class MaintenanceWindowSerializer(serializers.ModelSerializer):
    """A window of one node; `planned_by` is empty for others than admins."""

    node = serializers.IntegerField(source="node_id")
    node_name = serializers.CharField(source="node.name")
    status = serializers.CharField(help_text="planned, under way, ended or cancelled.")

    class Meta:
        model = MaintenanceWindow
        fields = (
            "id",
            "node",
            "node_name",
            "status",
            "starts_at",
            "ends_at",
            "reason",
            "planned_by",
            "created_at",
            "began_at",
            "ended_at",
        )


class WindowPlanSerializer(BodySerializer):
    """A request for windows of the same times."""

    nodes = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=_ID_LIMIT),
        allow_empty=False,
        min_length=1,
        max_length=NODES_LIMIT,
        help_text="Nodes, each of which gets a window.",
    )
    starts_at = serializers.DateTimeField(help_text="With an offset; without one it is UTC.")
    ends_at = serializers.DateTimeField(help_text="At most 30 days after the start.")
    reason = serializers.CharField(max_length=500)


class MaintenanceWindows(APIView):
    """The windows that have not ended; admins plan more."""

    permission_classes = (AdminToWritePermission,)

    @extend_schema(
        operation_id="maintenance_windows_list", responses=MaintenanceWindowSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        """List maintenance windows: planned or under way, the next one first."""
        return Response(_data(windows_open(request.user), request.user))

    @extend_schema(
        request=WindowPlanSerializer,
        responses={
            200: CordonPreviewSerializer,
            201: MaintenanceWindowSerializer(many=True),
        },
        parameters=[
            OpenApiParameter(
                "dry_run",
                bool,
                description="Change nothing; answer who would move if maintenance of the `nodes` "
                "began now. The other fields are not needed.",
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Plan a window for each of some nodes."""
        is_dry_run = flag_param(request, "dry_run")
        values = checked(WindowPlanSerializer, body(request), partial=is_dry_run)
        if is_dry_run:
            return Response(cordon_preview(_nodes(values.get("nodes", ())), "maintenance"))
        planned = windows_plan(
            values["nodes"],
            values["starts_at"],
            values["ends_at"],
            timezone.now(),
            actor=actor(request),
            reason=values["reason"],
        )
        nudges.jobs_changed(cluster=True)
        return Response(_data(planned, request.user), status=201)


class MaintenanceWindowCancel(APIView):
    """Cancel a maintenance window before or during it (admins)."""

    permission_classes = (AdminPermission,)

    @extend_schema(request=ReasonSerializer, responses=MaintenanceWindowSerializer)
    def post(self, request: Request, window_id: int) -> Response:
        reason = text_field(body(request, "reason"), "reason")
        window = window_or_404(window_id)
        is_changed = window_cancel(window, timezone.now(), actor=actor(request), reason=reason)
        window.refresh_from_db()
        if not is_changed and not window.is_cancelled:
            raise ConflictError("This maintenance has ended already.", code="window_ended")
        nudges.jobs_changed(cluster=True)
        return Response(_data([window], request.user)[0])


def _nodes(ids: list[int]) -> list[Node]:
    if not ids:
        raise InvalidInputError.of(nodes="Give the nodes.")
    found = list(Node.objects.filter(pk__in=ids, removed_at=None).order_by("pk"))
    missing = sorted(set(ids).difference(node.pk for node in found))
    if missing:
        raise InvalidInputError.of(nodes=f"There is no node {missing[0]}.")
    return found


def _data(windows: list[MaintenanceWindow], person: Person) -> list[dict[str, Any]]:
    rows = [dict(MaintenanceWindowSerializer(window).data) for window in windows]
    return rows if is_admin(person) else [{**row, "planned_by": ""} for row in rows]
