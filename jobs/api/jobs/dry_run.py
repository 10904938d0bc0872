"""Answer to a dry run of a submission."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework import serializers

from jobs.selectors.dry_run import OutlookKind, submission_outlook
from jobs.selectors.estimates.memory import submission_memory_advice
from jobs.submission import Submission


class BytesField(serializers.IntegerField):
    """An estimate of bytes, which need not be a whole number."""

    def to_representation(self, value: float) -> int:
        return round(value)


class KindMemorySerializer(serializers.Serializer):
    """Memory of a slice of the batch on one kind."""

    kind = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    num_virtual_nodes = serializers.IntegerField(
        allow_null=True, help_text="The fewest that fit; null if no number fits."
    )
    slice_bytes = BytesField(help_text="Need with the requested virtual nodes.")
    is_enough = serializers.BooleanField()


class MemoryAdviceSerializer(serializers.Serializer):
    """Memory estimate of a job from validations of the same code."""

    bytes_per_example = BytesField(source="need.bytes_per_example")
    base_bytes = BytesField(source="need.base_bytes")
    kept_states = serializers.IntegerField(source="need.num_kept_states")
    kept_bytes = BytesField(source="need.kept_bytes")
    num_virtual_nodes = serializers.IntegerField(
        source="suggested",
        allow_null=True,
        help_text="The fewest that fit every kind where any number fits.",
    )
    kinds = KindMemorySerializer(source="fits", many=True)


class SubmissionOutlookSerializer(serializers.Serializer):
    """The policy's decision for a job if it were in the queue now. Only for the OpenAPI document.

    `accelerators` has the number at the start by kind; it is empty for a later start.
    """

    dry_run = serializers.BooleanField()
    starts = serializers.ChoiceField(choices=[kind.value for kind in OutlookKind])
    accelerators = serializers.DictField(child=serializers.IntegerField())
    num_shrunk = serializers.IntegerField(help_text="Jobs that would give up accelerators.")
    reason = serializers.CharField()
    memory = MemoryAdviceSerializer(allow_null=True)


def submission_preview(submission: Submission, user: User) -> dict[str, Any]:
    """Return the fields of `SubmissionOutlookSerializer`."""
    outlook = submission_outlook(submission, timezone.now(), user)
    memory = submission_memory_advice(submission)
    return {
        "dry_run": True,
        "starts": outlook.kind.value,
        "accelerators": outlook.accelerators,
        "num_shrunk": outlook.num_shrunk,
        "reason": outlook.reason,
        "memory": None if memory is None else MemoryAdviceSerializer(memory).data,
    }
