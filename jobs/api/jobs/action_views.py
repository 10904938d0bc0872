"""Actions on many jobs by REST, and the form of their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.core.values.tiers import Tier
from jobs import nudges
from jobs.api.jobs.submission_fields import TAG_SCHEMA, EnumField, TagsField, WholeField
from jobs.api.requests import body, person
from jobs.api.throttles import preview_count
from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.selectors.access import jobs_changeable_by, jobs_visible_to
from jobs.selectors.policy_preview import reprioritise_preview
from jobs.services.scheduling.policy import cluster_setting
from jobs.services.submission.many_jobs import JOBS_LIMIT, JobsAction, Outcome, jobs_act, undo_of
from jobs.services.submission.standing import Standing, standing_read
from jobs.submission import JOB_ID_LIMIT, PRIORITY_RANGE


@extend_schema_field(TAG_SCHEMA)
class TagField(serializers.CharField):
    """One tag."""

    def to_internal_value(self, data: Any) -> str:
        words = TagsField().run_validation([super().to_internal_value(data)])
        return words[0] if words else ""


class JobsActionSerializer(serializers.Serializer):
    """An action on many jobs."""

    action = EnumField(JobsAction)
    jobs = serializers.ListField(
        child=WholeField(1, JOB_ID_LIMIT),
        min_length=1,
        max_length=JOBS_LIMIT,
        error_messages={
            "min_length": "Choose at least one job.",
            "max_length": f"At most {JOBS_LIMIT} jobs at once.",
        },
        help_text=f"Numbers of 1 to {JOBS_LIMIT} jobs.",
    )
    priority = WholeField(*PRIORITY_RANGE, required=False, help_text="Of `reprioritise`.")
    expected_priority = WholeField(
        *PRIORITY_RANGE,
        required=False,
        help_text="Jobs of another priority are refused (`stale_version`).",
    )
    tier = EnumField(Tier, required=False, help_text="Of `reprioritise`; one of both is enough.")
    expected_tier = EnumField(
        Tier, required=False, help_text="Jobs of another tier are refused (`stale_version`)."
    )
    tag = TagField(required=False, max_length=40, help_text="Of `tag` and `untag`.")
    reason = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=500,
        help_text="Required of an admin who reprioritises somebody else's job.",
    )

    def to_internal_value(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse unknown fields."""
        unknown = f"There is no such field; use {', '.join(self.fields)}."
        errors = {str(name): [unknown] for name in data if name not in self.fields}
        if errors:
            raise serializers.ValidationError(errors)
        return super().to_internal_value(data)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Require the field of the action."""
        needed = {JobsAction.REPRIORITISE: "priority", JobsAction.CANCEL: None}
        name = needed.get(values["action"], "tag")
        if values["action"] is JobsAction.REPRIORITISE and values.get("tier"):
            name = None
        if name is not None and not values.get(name):
            raise serializers.ValidationError({name: ["This action needs it."]})
        return values


class OutcomeSerializer(serializers.Serializer):
    """Result of an action on one job."""

    job = serializers.IntegerField(source="job_id")
    done = serializers.SerializerMethodField()
    changed = serializers.BooleanField(
        source="is_changed", help_text="False: the job was like that already."
    )
    code = serializers.CharField(help_text="If not done, why, as for one job; else empty.")
    detail = serializers.CharField()

    def get_done(self, outcome: Outcome) -> bool:
        return not outcome.code


class OutcomesSerializer(serializers.Serializer):
    """Results of an action by job, and the requests that undo it."""

    results = OutcomeSerializer(many=True)
    undo = JobsActionSerializer(
        many=True, help_text="Requests that undo it; none undoes a cancellation."
    )


def action_perform(user: Any, data: Mapping[str, Any]) -> tuple[list[Outcome], list[Any]]:
    """Check and perform one action; return the outcomes and the requests that undo it.

    Raises:
        InvalidInputError: the request is not valid; no job changed.
    """
    serializer = JobsActionSerializer(data=data)
    if not serializer.is_valid():
        raise InvalidInputError("The input is not valid.", fields=_texts(serializer.errors))
    values = dict(serializer.validated_data)
    action, jobs = values.pop("action"), values.pop("jobs")
    expected = Standing(values.pop("expected_priority", None), values.pop("expected_tier", None))
    outcomes = jobs_act(user, action, jobs, timezone.now(), expected=expected, **values)
    if changed := [outcome.job_id for outcome in outcomes if outcome.is_changed]:
        nudges.jobs_changed(changed, orders=True)
    given = Standing(values.get("priority"), values.get("tier"))
    tag, reason = values.get("tag", ""), values["reason"]
    return outcomes, undo_of(action, outcomes, given=given, tag=tag, reason=reason)


def action_preview(user: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Check a request to reprioritise jobs, and return its effect; no job changes.

    Raises:
        InvalidInputError: the request is not valid, or of another action.
        NotFoundError: one of the jobs is not there for this user.
        ThrottledError: the user asks too often.
    """
    serializer = JobsActionSerializer(data=data)
    if not serializer.is_valid():
        raise InvalidInputError("The input is not valid.", fields=_texts(serializer.errors))
    values = serializer.validated_data
    if values["action"] is not JobsAction.REPRIORITISE:
        raise InvalidInputError.of(action="Only reprioritise has an effect to preview.")
    standing = standing_read(user, values)
    ids = frozenset(values["jobs"])
    if jobs_changeable_by(user).filter(pk__in=ids).count() < len(ids):
        raise NotFoundError("There is no such job, or it is not yours.")
    preview_count(user)
    moves = reprioritise_preview(ids, standing.priority, standing.tier, timezone.now())
    moved = [move.job.pk for move in moves]
    visible = set(jobs_visible_to(user).filter(pk__in=moved).values_list("pk", flat=True))
    shown = [move for move in moves if move.job.pk in visible]
    return {
        "policy": cluster_setting().policy,
        "moves": shown,
        "num_others": len(moves) - len(shown),
    }


def _texts(errors: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return one message per field; those of a list's items are the field's."""
    return {name: [_first(messages)] for name, messages in errors.items()}


def _first(messages: Any) -> str:
    while not isinstance(messages, str):
        messages = next(iter(messages.values() if isinstance(messages, Mapping) else messages))
    return str(messages)


class MoveSerializer(serializers.Serializer):
    """A job whose accelerators would change."""

    job = serializers.IntegerField(source="job.pk")
    name = serializers.CharField(source="job.name")
    held = serializers.IntegerField(help_text="Accelerators now.")
    wanted = serializers.IntegerField(help_text="Accelerators then; 0: it would wait.")


class PreviewSerializer(serializers.Serializer):
    """Changes that a new priority or tier would make now."""

    policy = serializers.CharField()
    moves = MoveSerializer(many=True)
    num_others = serializers.IntegerField(help_text="Changed jobs that are not yours to see.")


class PreviewRequestSerializer(JobsActionSerializer):
    """New priorities or tiers to preview. Only for the OpenAPI document."""

    action = serializers.ChoiceField([JobsAction.REPRIORITISE.value])  # type: ignore[assignment]


class JobsActionPreview(APIView):
    """Effect of new priorities or tiers, before they are given."""

    @extend_schema(request=PreviewRequestSerializer, responses=PreviewSerializer)
    def post(self, request: Request) -> Response:
        """Return the changes that `reprioritise` would make now, and change nothing."""
        return Response(PreviewSerializer(action_preview(person(request), body(request))).data)


class JobActions(APIView):
    """One action on many jobs; each job changes or is refused by itself."""

    @extend_schema(request=JobsActionSerializer, responses=OutcomesSerializer)
    def post(self, request: Request) -> Response:
        """Cancel, reprioritise, tag or untag jobs; a repeated request changes nothing more."""
        outcomes, undo = action_perform(person(request), body(request))
        return Response(OutcomesSerializer({"results": outcomes, "undo": undo}).data)
