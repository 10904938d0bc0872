"""Nodes and accelerators in answers, with the present use of these, and the effects of cordons."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.models import Accelerator, Node
from jobs.selectors.drains import drain_preview, jobs_on
from jobs.services.cluster.cordons import Cordon


class ReadingSerializer(serializers.Serializer):
    """Use of an accelerator in the last minute; null for what the device does not tell."""

    utilisation_percent = serializers.FloatField(allow_null=True)
    memory_bytes = serializers.FloatField(allow_null=True, help_text="Memory in use.")
    temperature_c = serializers.FloatField(allow_null=True)
    power_w = serializers.FloatField(allow_null=True)
    read_at = serializers.DateTimeField()


class AcceleratorSerializer(serializers.ModelSerializer):
    """One device of a node, with its `UseNow`."""

    reading = serializers.SerializerMethodField()
    is_idle_held = serializers.SerializerMethodField()

    class Meta:
        model = Accelerator
        fields = (
            "id",
            "index",
            "kind",
            "name",
            "memory_bytes",
            "is_present",
            "reading",
            "is_idle_held",
        )

    @extend_schema_field(ReadingSerializer(allow_null=True))
    def get_reading(self, accelerator: Accelerator) -> dict[str, Any] | None:
        row = self.context["use_now"].readings.get(accelerator.pk)
        return None if row is None else dict(ReadingSerializer(row).data)

    def get_is_idle_held(self, accelerator: Accelerator) -> bool:
        return accelerator.pk in self.context["use_now"].idle


class NodeSerializer(serializers.ModelSerializer):
    """A node with its accelerators, made of an `access.node_for` somebody.

    The context has the `use_now` of the accelerators, and the `unfiltered_nodes`.
    """

    host = serializers.CharField(help_text="Where trainers listen; empty for others than admins.")
    status = serializers.CharField(source="shown_status")
    proposed_shape = serializers.JSONField(
        allow_null=True,
        help_text="Shape that waits for an admin; others see its accelerators alone.",
    )
    filters_peers = serializers.SerializerMethodField(
        help_text="Trainers start only with a socket filter; false: as its operator wants."
    )
    accelerators = AcceleratorSerializer(many=True)

    class Meta:
        model = Node
        fields = (
            "id",
            "name",
            "host",
            "status",
            "isolation",
            "filters_peers",
            "is_cordoned",
            "is_draining",
            "cordon_reason",
            "quarantined_until",
            "quarantine_reason",
            "maintenance_from",
            "maintenance_until",
            "proposed_shape",
            "last_seen_at",
            "enrolled_at",
            "accelerators",
        )

    def get_filters_peers(self, node: Node) -> bool:
        return node.pk not in self.context["unfiltered_nodes"]


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
