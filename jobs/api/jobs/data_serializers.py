"""Output formats of a job's events and resizes."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.protocol.codec import encode
from jobs.api.readable import ReadableText, reader_of
from jobs.models import (
    Event,
    Generation,
)
from jobs.selectors.access import text_for


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
        members: list[dict[str, Any]] = encode(generation.membership.members)
        return members
