"""Output formats of the REST API. Read-only: services validate input."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.protocol.codec import encode
from jobs.api.jobs.submission_fields import NoteField, TagsField
from jobs.models import (
    Accelerator,
    ApiToken,
    Artifact,
    AuditEntry,
    ClusterSetting,
    EnrolmentToken,
    Event,
    Generation,
    Job,
    Node,
    Replay,
    Validation,
)
from jobs.selectors.estimates.memory import advice_text, job_memory_advice, shortage_text
from jobs.selectors.estimates.noise import noise_scale_of
from jobs.selectors.estimates.nonfinite import nonfinite_warning
from jobs.selectors.forecast import forecast_of
from jobs.selectors.reproducibility import Reproducibility, kinds_used, reproducibility_of
from jobs.selectors.retention import files_expire_at
from jobs.selectors.selection import selection_counts
from jobs.services.cluster.api_tokens import JOB_SCOPES, LIFETIME_DAYS_LIMIT, SCOPES
from jobs.submission import PRIORITY_RANGE, SUBMISSION_COLUMNS


class ChosenFieldsSerializer(serializers.ModelSerializer):
    """Serializer of the fields in `?fields=a,b`, or of all of them."""

    def get_field_names(self, declared_fields: Any, info: Any) -> list[str]:
        chosen = self.context.get("fields")
        names = super().get_field_names(declared_fields, info)
        return [name for name in names if chosen is None or name in chosen]


class StopSerializer(serializers.Serializer):
    """Stop condition of a job."""

    kind = serializers.CharField(source="stop_kind")
    limit = serializers.IntegerField(source="stop_limit")
    metric = serializers.CharField(source="stop_metric")
    target = serializers.FloatField(source="stop_target", allow_null=True)
    higher_is_better = serializers.BooleanField(source="stop_higher_is_better")


class JobSummarySerializer(ChosenFieldsSerializer):
    """A job in a list."""

    owner = serializers.CharField(source="owner.username")
    stop = StopSerializer(source="*")
    num_accelerators = serializers.IntegerField(help_text="Accelerators that it holds now.")
    batch_size = serializers.IntegerField(
        source="batch_size_now", help_text="Examples of a step as it trains now."
    )

    warning = serializers.SerializerMethodField(
        help_text="What is not finite now, in a sentence; empty while all is well."
    )

    class Meta:
        model = Job
        fields = (
            "id",
            "name",
            "tags",
            "task",
            "owner",
            "template",
            "status",
            "status_code",
            "status_reason",
            "policy_reason",
            "expected_start_earliest_at",
            "expected_start_latest_at",
            "expected_start_changes",
            "expected_start_changed_at",
            "priority",
            "num_accelerators",
            "min_accelerators",
            "max_accelerators",
            "accepted_kinds",
            "allow_mixed_kinds",
            "global_batch_size",
            "batch_size",
            "batch_size_min",
            "batch_size_max",
            "num_virtual_nodes",
            "stop",
            "step",
            "epoch",
            "loss",
            "warning",
            "examples_per_s",
            "submitted_at",
            "started_at",
            "ended_at",
            "version",
            "revision",
        )

    def get_warning(self, job: Job) -> str:
        return nonfinite_warning(job)


class ArtifactSerializer(serializers.ModelSerializer):
    """A result file of a job."""

    class Meta:
        model = Artifact
        fields = ("name", "sha256", "size_bytes", "step", "at")


class JobSerializer(JobSummarySerializer):
    """One job with all fields."""

    files = ArtifactSerializer(source="artifacts", many=True)
    files_expire_at = serializers.SerializerMethodField(
        help_text="When its files are deleted; null: they are kept."
    )
    kinds_used = serializers.SerializerMethodField(help_text="Kinds that it has trained on.")
    noise_scale = serializers.SerializerMethodField(
        help_text="Gradient noise scale in examples, with what it is made of; null while unknown."
    )
    forecast = serializers.SerializerMethodField(
        help_text="What its reports let expect of its speed and loss; null while nothing is known."
    )
    selected = serializers.SerializerMethodField(
        help_text="Examples of the epochs that select: candidates, analysed, trained, and the "
        "share trained on; how many times faster than plain epochs these are, as predicted and as "
        "measured; why selection ended early; the examples chosen most often; null without a "
        "selection."
    )
    reproducibility = serializers.SerializerMethodField(
        help_text="What another run of the same job gives: the same bits, or equal within rounding."
    )

    class Meta:
        model = Job
        fields = (
            *JobSummarySerializer.Meta.fields,
            *(name for name in SUBMISSION_COLUMNS if name not in JobSummarySerializer.Meta.fields),
            "source_job",
            "code_sha256",
            "generation",
            "restarts",
            "pause_requested",
            "facts",
            "metrics",
            "nonfinite",
            "digest",
            "error_field",
            "error_traceback",
            "attained_accelerator_s",
            "throughput_by_count",
            "noise_scale",
            "forecast",
            "kinds_used",
            "selected",
            "reproducibility",
            "files",
            "files_expire_at",
            "files_deleted_at",
        )

    @classmethod
    def render(cls, job: Job, chosen: Iterable[str] | None) -> dict[str, Any]:
        """Return the fields of a job; `chosen` are the names of some, None means all."""
        names = None if chosen is None else frozenset(chosen)
        rendered: dict[str, Any] = cls._for_fields(names).to_representation(job)
        return rendered

    @classmethod
    @functools.lru_cache(maxsize=128)
    def _for_fields(cls, names: frozenset[str] | None) -> JobSerializer:
        """Return a serializer without an instance; making its fields takes longer than using it."""
        return cls(context={"fields": names})

    def get_files_expire_at(self, job: Job) -> datetime.datetime | None:
        return files_expire_at(job)

    def get_kinds_used(self, job: Job) -> list[str]:
        return kinds_used(job)

    def get_noise_scale(self, job: Job) -> dict[str, float | int | None] | None:
        noise = noise_scale_of(job)
        if noise is None:
            return None
        return {
            "examples": noise.examples if math.isfinite(noise.examples) else None,
            "sqr": noise.sqr,
            "var": noise.var,
            "num_reports": noise.num_reports,
        }

    def get_forecast(self, job: Job) -> dict[str, Any] | None:
        return forecast_of(job)

    def get_selected(self, job: Job) -> dict[str, Any] | None:
        counts = selection_counts(job)
        if counts is None:
            return None
        ended = job.selection_ended or None
        return dataclasses.asdict(counts) | {
            "share": counts.share,
            "ended": ended,
            "most_chosen": job.most_chosen,
        }

    @extend_schema_field(serializers.ChoiceField(choices=list(Reproducibility)))
    def get_reproducibility(self, job: Job) -> str:
        return reproducibility_of(job, kinds_used(job))[0].value


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
        return None if self._advice is None else self._advice.as_data()


class ReasonSerializer(serializers.Serializer):
    """Reason for an action."""

    reason = serializers.CharField(required=False, max_length=500)


class PrioritySerializer(ReasonSerializer):
    """A new priority."""

    priority = serializers.IntegerField(min_value=PRIORITY_RANGE[0], max_value=PRIORITY_RANGE[1])


class DescriptionSerializer(serializers.Serializer):
    """New tags and note of a job; what is left out stays."""

    tags = TagsField(required=False, help_text="All tags of the job.")
    note = NoteField(required=False)

    def to_internal_value(self, data: Any) -> Any:
        """Refuse unknown fields."""
        unknown = f"This cannot be changed; use {' or '.join(self.fields)}."
        if errors := {str(name): [unknown] for name in data if name not in self.fields}:
            raise serializers.ValidationError(errors)
        return super().to_internal_value(data)


class EventSerializer(serializers.ModelSerializer):
    """An event."""

    class Meta:
        model = Event
        fields = ("id", "kind", "actor", "message", "data", "at", "job", "node")


class AcceleratorSerializer(serializers.ModelSerializer):
    """One device of a node."""

    class Meta:
        model = Accelerator
        fields = ("id", "index", "kind", "name", "memory_bytes", "is_present")


class NodeSerializer(serializers.ModelSerializer):
    """A node with its accelerators."""

    status = serializers.CharField(source="shown_status")
    accelerators = AcceleratorSerializer(many=True)

    class Meta:
        model = Node
        fields = (
            "id",
            "name",
            "host",
            "status",
            "isolation",
            "is_cordoned",
            "is_draining",
            "quarantined_until",
            "quarantine_reason",
            "proposed_shape",
            "last_seen_at",
            "enrolled_at",
            "accelerators",
        )


class GenerationSerializer(serializers.ModelSerializer):
    """One resize of a job."""

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


class PolicySerializer(serializers.ModelSerializer):
    """The policy in force."""

    class Meta:
        model = ClusterSetting
        fields = ("policy", "version", "changed_by", "changed_at")


class TokenSerializer(serializers.ModelSerializer):
    """An API token, without the token text."""

    class Meta:
        model = ApiToken
        fields = (
            "id",
            "name",
            "scopes",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
        )


class EnrolmentTokenSerializer(serializers.ModelSerializer):
    """An enrolment token, without the token text."""

    created_by = serializers.CharField(source="created_by.username", default=None)

    class Meta:
        model = EnrolmentToken
        fields = ("id", "created_by", "created_at", "expires_at")


class AuditEntrySerializer(serializers.ModelSerializer):
    """An entry of the audit log."""

    class Meta:
        model = AuditEntry
        fields = ("id", "at", "actor", "action", "object", "address", "user_agent", "details")


class NewTokenSerializer(serializers.Serializer):
    """A token to be made."""

    name = serializers.CharField(max_length=60)
    scopes = serializers.MultipleChoiceField(choices=SCOPES, default=set(JOB_SCOPES))
    lifetime_days = serializers.IntegerField(min_value=1, max_value=LIFETIME_DAYS_LIMIT, default=90)
    password = serializers.CharField(help_text="of the user who asks")


class TemplateStopSerializer(serializers.Serializer):
    """When a job of a template stops, unless the submission says otherwise."""

    kind = serializers.CharField(source="kind.value")
    limit = serializers.IntegerField()


class TemplateSerializer(serializers.Serializer):
    """A job template: the defaults of its jobs."""

    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    settings = serializers.DictField()
    global_batch_size = serializers.IntegerField()
    num_virtual_nodes = serializers.IntegerField()
    max_accelerators = serializers.IntegerField()
    stop = TemplateStopSerializer()


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

    policy = serializers.CharField()
    accelerators = serializers.DictField(
        child=serializers.IntegerField(min_value=0),
        required=False,
        help_text="Number by kind; a kind that is left out stays as it is.",
    )
    hours = serializers.IntegerField(required=False, help_text="How far back; 24 by default.")
