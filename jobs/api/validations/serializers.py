"""Output format of a validation."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.api.jobs.dry_run import MemoryAdviceSerializer
from jobs.models import Validation
from jobs.selectors.estimates.memory import advice_text, job_memory_advice, shortage_text


class ValidationSerializer(serializers.ModelSerializer):
    """A validation of a submission that is not submitted."""

    code = serializers.CharField(source="status_code", help_text="Machine word; if failed, why.")
    text = serializers.SerializerMethodField()
    num_virtual_nodes = serializers.IntegerField(source="validated_job.num_virtual_nodes")
    memory = serializers.SerializerMethodField(help_text="As in a dry run.")

    class Meta:
        model = Validation
        fields = (
            "id",
            "status",
            "code",
            "text",
            "num_virtual_nodes",
            "memory",
            "facts",
            "error_field",
            "error_traceback",
            "requested_at",
            "ended_at",
        )

    def to_representation(self, validation: Validation) -> Any:
        self._advice = job_memory_advice(validation.validated_job)
        return super().to_representation(validation)

    def get_text(self, validation: Validation) -> str:
        advice = self._advice
        texts = [] if advice is None else [advice_text(advice), shortage_text(advice)]
        return " ".join([validation.status_reason, *texts]).strip()

    def get_memory(self, _validation: Validation) -> dict[str, Any] | None:
        return None if self._advice is None else MemoryAdviceSerializer(self._advice).data
