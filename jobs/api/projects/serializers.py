"""Bodies and answers of projects, members and prices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.api.jobs.submission_fields import EnumField, FlagField, NumberField, TextField, WholeField
from jobs.api.requests import BodySerializer
from jobs.models import ProjectMembership, ProjectRole
from jobs.models.projects import NAME_PATTERN, QUOTA_LIMIT
from jobs.services.cluster.projects import PRICES_LIMIT


def kinds_bounded(by_kind: Collection[str]) -> None:
    """Bound the number of kinds and their names."""
    if len(by_kind) > PRICES_LIMIT or not all(
        0 < len(k) <= 40 and k.isprintable() for k in by_kind
    ):
        text = f"Give at most {PRICES_LIMIT} kinds, each of 1 to 40 printable characters."
        raise serializers.ValidationError(text)


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": QUOTA_LIMIT},
        "maxProperties": PRICES_LIMIT,
    }
)
class CountsField(serializers.DictField):
    """Numbers of accelerators by kind."""

    def __init__(self, **options: Any) -> None:
        child = WholeField(0, QUOTA_LIMIT)
        super().__init__(child=child, validators=[kinds_bounded], **options)


class ProjectChangeSerializer(BodySerializer):
    """Shares and limits of a project; null stands for no limit."""

    description = TextField(300, required=False, allow_blank=True)
    guaranteed = WholeField(0, QUOTA_LIMIT, required=False)
    limit = WholeField(1, QUOTA_LIMIT, required=False, allow_null=True)
    user_limit = WholeField(1, QUOTA_LIMIT, required=False, allow_null=True)
    guaranteed_by_kind = CountsField(
        required=False, help_text="The guarantee of each kind; all of them are replaced."
    )
    limit_by_kind = CountsField(
        required=False, help_text="The limit of each kind; all of them are replaced."
    )
    live_jobs_limit = WholeField(1, QUOTA_LIMIT, required=False, allow_null=True)
    user_live_jobs_limit = WholeField(1, QUOTA_LIMIT, required=False, allow_null=True)
    is_closed = FlagField(required=False)


class NewProjectSerializer(ProjectChangeSerializer):
    """A new project."""

    name = serializers.RegexField(
        f"^{NAME_PATTERN}$",
        error_messages={
            "invalid": "Give 1 to 40 lower-case letters, digits and -, no - first.",
        },
    )


class RoleSerializer(BodySerializer):
    """Role of a member."""

    role = EnumField(ProjectRole)


class MemberSerializer(serializers.ModelSerializer):
    """A member of a project."""

    user = serializers.CharField(source="user.username")

    class Meta:
        model = ProjectMembership
        fields = ("user", "role", "since")


class ProjectSerializer(serializers.Serializer):
    """A project, and what it holds now."""

    id = serializers.IntegerField(source="project.pk")
    name = serializers.CharField(source="project.name")
    description = serializers.CharField(source="project.description")
    guaranteed = serializers.IntegerField(
        source="project.guaranteed",
        help_text="Accelerators that its jobs get at once if they can use them.",
    )
    limit = serializers.IntegerField(
        source="project.limit", allow_null=True, help_text="Most that its jobs may hold together."
    )
    user_limit = serializers.IntegerField(
        source="project.user_limit", allow_null=True, help_text="Most for the jobs of one user."
    )
    guaranteed_by_kind = CountsField(
        source="project.guaranteed_by_kind", help_text="The guarantee of each kind that has one."
    )
    limit_by_kind = CountsField(
        source="project.limit_by_kind", help_text="The limit of each kind that has one."
    )
    live_jobs_limit = serializers.IntegerField(source="project.live_jobs_limit", allow_null=True)
    user_live_jobs_limit = serializers.IntegerField(
        source="project.user_live_jobs_limit", allow_null=True
    )
    is_closed = serializers.BooleanField(source="project.is_closed")
    created_at = serializers.DateTimeField(source="project.created_at")
    held = serializers.IntegerField(help_text="Accelerators that its jobs hold now.")
    borrowed = serializers.IntegerField(
        help_text="Of these beyond its guarantees: given back at once when others need theirs."
    )
    held_by_kind = CountsField(help_text="Accelerators that its jobs hold now.")
    borrowed_by_kind = CountsField(help_text="Of these beyond its guarantees.")
    live_jobs = serializers.IntegerField(help_text="Jobs not ended.")
    waiting_jobs = serializers.IntegerField(help_text="Jobs that wait for accelerators.")
    num_members = serializers.IntegerField()
    role = serializers.CharField(help_text="Your role; empty: you are no member.")


class PricesSerializer(BodySerializer):
    """Price of an hour of one accelerator, by kind."""

    currency = serializers.CharField(read_only=True, help_text="The site's setting; may be empty.")
    per_hour = serializers.DictField(child=NumberField(0.0, 1e6), validators=[kinds_bounded])
