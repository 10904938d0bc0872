"""Answer to a dry run of a cordon or a drain."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.utils import timezone
from rest_framework import serializers

from jobs.models import Node
from jobs.selectors.drains import drain_preview, jobs_on
from jobs.services.cluster.cordons import Cordon


class DrainMoveSerializer(serializers.Serializer):
    """A job that would change, by a drain or by maintenance."""

    job = serializers.IntegerField(source="job.pk")
    name = serializers.CharField(source="job.name")
    on_node = serializers.IntegerField(
        source="num_here", help_text="Accelerators that it holds on the node."
    )
    held = serializers.IntegerField()
    wanted = serializers.IntegerField()
    nodes = serializers.DictField(
        child=serializers.IntegerField(), help_text="Name of a node -> accelerators there then."
    )
    within_s = serializers.FloatField(
        allow_null=True, help_text="Seconds until the change is done."
    )
    start_s = serializers.ListField(
        child=serializers.FloatField(),
        allow_null=True,
        help_text="Seconds until the earliest and the latest start of a job that waits then.",
    )
    text = serializers.CharField()


class CordonPreviewSerializer(serializers.Serializer):
    """Effect of a cordon, a drain or maintenance now."""

    dry_run = serializers.BooleanField()
    change = serializers.CharField()
    moves = DrainMoveSerializer(many=True)
    staying = serializers.ListField(
        child=serializers.IntegerField(), help_text="Jobs of the node that do not change."
    )


def cordon_preview(nodes: Collection[Node], change: str) -> dict[str, Any]:
    """Return the changes of jobs by a drain or maintenance; a cordon moves nothing."""
    moves = [] if change == Cordon.CORDON else drain_preview(nodes, timezone.now())
    moved = {move.job.pk for move in moves}
    staying = [job.pk for job in jobs_on(nodes) if job.pk not in moved]
    preview = {"dry_run": True, "change": str(change), "moves": moves, "staying": staying}
    return dict(CordonPreviewSerializer(preview).data)
