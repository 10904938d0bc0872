"""Output formats of what-if replays, and their request."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.core.policies import POLICIES
from jobs.models import Replay
from jobs.services.cluster.replays import HOURS_RANGE


class ReplaySummarySerializer(serializers.ModelSerializer):
    """A what-if replay, without its result."""

    requested_by = serializers.CharField(source="requested_by.username", default=None)
    status = serializers.CharField()

    class Meta:
        model = Replay
        fields = (
            "id",
            "status",
            "progress",
            "policy",
            "accelerators",
            "start_at",
            "end_at",
            "requested_by",
            "requested_at",
            "finished_at",
            "error",
        )


class ReplaySerializer(ReplaySummarySerializer):
    """A what-if replay with its result, which is empty until it is done."""

    class Meta:
        model = Replay
        fields = (*ReplaySummarySerializer.Meta.fields, "result")


class ReplayRequestSerializer(serializers.Serializer):
    """A request for a what-if replay. Only for the OpenAPI document."""

    policy = serializers.ChoiceField([*POLICIES])
    accelerators = serializers.DictField(
        child=serializers.IntegerField(min_value=0),
        required=False,
        help_text="Number by kind; a kind that is left out stays as it is.",
    )
    hours = serializers.IntegerField(
        required=False,
        min_value=HOURS_RANGE[0],
        max_value=HOURS_RANGE[1],
        help_text="How far back; 24 by default.",
    )
