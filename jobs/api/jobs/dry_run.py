"""Answer to a dry run of a submission."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework import serializers

from jobs.selectors.dry_run import OutlookKind, submission_outlook
from jobs.selectors.estimates.memory import submission_memory_advice
from jobs.submission import Submission


class KindMemorySerializer(serializers.Serializer):
    """Memory of a slice of the batch on one kind."""

    kind = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    num_virtual_nodes = serializers.IntegerField(
        allow_null=True, help_text="The fewest that fit; null if no number fits."
    )
    slice_bytes = serializers.IntegerField(help_text="Need with the requested virtual nodes.")
    is_enough = serializers.BooleanField()


class MemoryAdviceSerializer(serializers.Serializer):
    """Memory estimate of a job from validations of the same code."""

    bytes_per_example = serializers.IntegerField()
    base_bytes = serializers.IntegerField()
    kept_states = serializers.IntegerField()
    kept_bytes = serializers.IntegerField()
    num_virtual_nodes = serializers.IntegerField(
        allow_null=True, help_text="The fewest that fit every kind where any number fits."
    )
    kinds = KindMemorySerializer(many=True)


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
        "memory": None if memory is None else memory.as_data(),
    }
