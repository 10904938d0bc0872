"""Output formats of what-if replays, and their request."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.policies import POLICIES
from controlplane.simulator.settings import MOST_COST_S
from jobs.models import Replay
from jobs.selectors.replays import ComparedReplays
from jobs.services.cluster.replays import HOURS_RANGE, SCENARIOS_LIMIT


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
            "resize_cost_s",
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


class ScenarioSerializer(serializers.Serializer):
    """Policy, cluster and resize cost of a replay. Only for the OpenAPI document."""

    policy = serializers.ChoiceField([*POLICIES])
    accelerators = serializers.DictField(
        child=serializers.IntegerField(min_value=0),
        required=False,
        help_text="Number by kind; a kind that is left out stays as it is.",
    )
    resize_cost_s = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=0.0,
        max_value=MOST_COST_S,
        help_text="Seconds for which every start and every resize stops a job; null: as measured.",
    )


class ReplayRequestSerializer(ScenarioSerializer):
    """A request for what-if replays. Only for the OpenAPI document."""

    policy = serializers.ChoiceField([*POLICIES], required=False)
    scenarios = serializers.ListField(
        child=ScenarioSerializer(),
        required=False,
        min_length=1,
        max_length=SCENARIOS_LIMIT,
        help_text="Several to compare, in place of the fields of one.",
    )
    hours = serializers.IntegerField(
        required=False,
        min_value=HOURS_RANGE[0],
        max_value=HOURS_RANGE[1],
        help_text="How far back; 24 by default.",
    )


class ComparedReplaySerializer(serializers.ModelSerializer):
    """A scenario of a comparison."""

    status = serializers.CharField()
    prices = serializers.SerializerMethodField()

    class Meta:
        model = Replay
        fields = (
            "id",
            "status",
            "progress",
            "policy",
            "accelerators",
            "resize_cost_s",
            "error",
            "prices",
        )

    def get_prices(self, replay: Replay) -> dict[str, float]:
        """Return the prices of an hour by kind, of the kinds that have one."""
        return dict(self.context["prices"][replay.pk])


class CellSerializer(serializers.Serializer):
    """A figure of a replay beside that of the history replayed unchanged."""

    value = serializers.FloatField(allow_null=True)
    factor = serializers.FloatField(allow_null=True)
    verdict = serializers.ChoiceField(["better", "worse", "same", ""])
    is_best = serializers.BooleanField()


class MeasureRowSerializer(serializers.Serializer):
    """A figure of all replays of a comparison."""

    name = serializers.CharField(source="measure.key")
    title = serializers.CharField(source="measure.label")
    unit = serializers.CharField(source="measure.unit")
    jobs = serializers.CharField(help_text="The jobs that it is of; empty: all.")
    recorded = CellSerializer()
    as_is = CellSerializer(help_text="The history replayed unchanged.")
    scenarios = CellSerializer(many=True)


class ComparisonSerializer(serializers.Serializer):
    """What-if replays over one history side by side; no rows until one is done."""

    start_at = serializers.DateTimeField(source="first.start_at")
    end_at = serializers.DateTimeField(source="first.end_at")
    num_jobs = serializers.IntegerField(source="result.num_jobs", default=None, allow_null=True)
    as_is_policy = serializers.CharField(
        source="result.as_is_policy", default=None, allow_null=True
    )
    as_is_accelerators = serializers.DictField(
        source="result.as_is_accelerators", default=None, allow_null=True
    )
    scenarios = serializers.SerializerMethodField()
    rows = MeasureRowSerializer(many=True)

    @extend_schema_field(ComparedReplaySerializer(many=True))
    def get_scenarios(self, comparison: ComparedReplays) -> Any:
        """Return the replays, oldest first."""
        context = {"prices": comparison.prices}
        return ComparedReplaySerializer(comparison.replays, many=True, context=context).data
