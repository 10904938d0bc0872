"""Output formats of tokens, templates and the cluster's settings."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.core.policies import POLICIES
from jobs.models import (
    ApiToken,
    AuditEntry,
    ClusterSetting,
    EnrolmentToken,
)
from jobs.services.cluster.api_tokens import JOB_SCOPES, LIFETIME_DAYS_LIMIT, SCOPES


class PolicySerializer(serializers.ModelSerializer):
    """The policy in force."""

    class Meta:
        model = ClusterSetting
        fields = ("policy", "version", "changed_by", "changed_at")


class PolicyChoiceSerializer(serializers.Serializer):
    """A change of the policy. Only for the OpenAPI document."""

    policy = serializers.ChoiceField([*POLICIES])
    version = serializers.IntegerField(
        required=False, allow_null=True, help_text="As read; another one is refused."
    )
    reason = serializers.CharField(required=False, allow_blank=True, max_length=500)


class ShapeChoiceSerializer(serializers.Serializer):
    """The proposed shape to accept. Only for the OpenAPI document."""

    digest = serializers.CharField(max_length=64)


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


class NewTokenSerializer(serializers.Serializer):
    """A token to be made."""

    name = serializers.CharField(max_length=60)
    scopes = serializers.MultipleChoiceField(choices=SCOPES, default=set(JOB_SCOPES))
    lifetime_days = serializers.IntegerField(min_value=1, max_value=LIFETIME_DAYS_LIMIT, default=90)
    password = serializers.CharField(help_text="of the user who asks")


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
