"""Output formats of a job's events, resizes and log."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.protocol.codec import encode
from jobs.api.jobs.serializers import ReadableText, reader_of
from jobs.models import (
    Event,
    Generation,
)
from jobs.selectors.access import text_for
from jobs.selectors.log_lines import LEVELS, OUTPUT
from jobs.selectors.log_search import SearchBound


class EventSerializer(serializers.ModelSerializer):
    """An event; the context has the request."""

    message = ReadableText()
    data = serializers.SerializerMethodField()  # type: ignore[assignment]  # hides its own `data`

    class Meta:
        model = Event
        fields = ("id", "kind", "actor", "message", "data", "at", "job", "node")

    @extend_schema_field(serializers.DictField())
    def get_data(self, event: Event) -> Any:
        return text_for(reader_of(self.context), event.data)


class GenerationSerializer(serializers.ModelSerializer):
    """One resize of a job; the context has the request."""

    reason = ReadableText()

    members = serializers.SerializerMethodField()
    recover = serializers.BooleanField(source="is_recovery")
    parked = serializers.BooleanField(source="is_parked")

    class Meta:
        model = Generation
        fields = (
            "number",
            "previous",
            "phase",
            "num_members",
            "num_switched",
            "members",
            "reason",
            "actor",
            "requested_at",
            "ready_at",
            "switch_ordered_at",
            "switched_at",
            "closed_at",
            "step",
            "pause_s",
            "bytes_moved",
            "digest_before",
            "digest_after",
            "recover",
            "parked",
            "lost",
            "first_step_at",
        )

    @extend_schema_field(serializers.ListField(child=serializers.DictField()))
    def get_members(self, generation: Generation) -> list[dict[str, Any]]:
        return encode(generation.membership.members)


class LogPartSerializer(serializers.Serializer):
    """A part of a log as text."""

    text = serializers.CharField()
    next_cursor = serializers.IntegerField(help_text="To ask for what came since.")
    truncated = serializers.BooleanField(help_text="Older text was left out.")
    slots = serializers.ListField(child=serializers.IntegerField(), help_text="All trainers.")


class LogLineSerializer(serializers.Serializer):
    """A line of a log."""

    slot = serializers.IntegerField(help_text="Its trainer.")
    offset = serializers.IntegerField(help_text="Byte of the trainer's log at which it begins.")
    at = serializers.DateTimeField(help_text="When it arrived.")
    level = serializers.ChoiceField(
        choices=[*LEVELS, OUTPUT], help_text="As the line tells; `output`: it tells none."
    )
    text = serializers.CharField()


class LogMatchSerializer(LogLineSerializer):
    """A matching line, with lines about it that belong to no match before."""

    before = LogLineSerializer(many=True)
    after = LogLineSerializer(many=True)


class LogSearchSerializer(serializers.Serializer):
    """A search of a log, which stops at bounds of matches, bytes and time."""

    matches = LogMatchSerializer(many=True)
    stopped = serializers.ChoiceField(
        choices=[stop.value for stop in SearchBound],
        help_text="`end`: all is searched; or a bound.",
    )
    next_cursor = serializers.CharField(help_text="To go on from; empty at the end.")
    searched_bytes = serializers.IntegerField()
