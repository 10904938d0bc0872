"""Actions on many jobs by REST, and the form of their requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.core.values.tiers import Tier
from jobs import nudges
from jobs.api.jobs.submission_fields import (
    TAG_SCHEMA,
    EnumField,
    FlagField,
    TagsField,
    WholeField,
)
from jobs.api.requests import BodySerializer, body, checked, person
from jobs.api.throttles import preview_count
from jobs.exceptions import InvalidInputError
from jobs.query_values import WHOLE_LIMIT
from jobs.selectors.access import jobs_visible_to
from jobs.selectors.policy_preview import STARTS_LIMIT, reprioritise_preview
from jobs.services.scheduling.policy import cluster_setting
from jobs.services.submission.many_jobs import (
    JOBS_LIMIT,
    ActionOutcome,
    JobsAction,
    PriorityChange,
    jobs_act,
    jobs_change_check,
    undo_of,
)
from jobs.services.submission.standing import Standing, standing_read
from jobs.submission import PRIORITY_RANGE


@extend_schema_field(TAG_SCHEMA)
class TagField(serializers.CharField):
    """One tag."""

    def to_internal_value(self, data: Any) -> str:
        words = TagsField().run_validation([super().to_internal_value(data)])
        return words[0] if words else ""


class _StandingSerializer(BodySerializer):
    """Priority and tier to give, and those that a job must have until then."""

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


class ChangeSerializer(_StandingSerializer):
    """New priority, tier or both of one job."""

    job = WholeField(1, WHOLE_LIMIT)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Require something to change."""
        if not values.keys() & {"priority", "tier"}:
            raise serializers.ValidationError({"priority": ["Give a priority, a tier, or both."]})
        return values


_NUM_JOBS: dict[str, Any] = {
    "required": False,
    "min_length": 1,
    "max_length": JOBS_LIMIT,
    "error_messages": {
        "min_length": "Choose at least one job.",
        "max_length": f"At most {JOBS_LIMIT} jobs at once.",
    },
}


class JobsActionSerializer(_StandingSerializer):
    """An action on many jobs, which are named by `jobs` or by `changes`."""

    action = EnumField(JobsAction)
    jobs = serializers.ListField(
        child=WholeField(1, WHOLE_LIMIT), **_NUM_JOBS, help_text=f"1 to {JOBS_LIMIT} numbers."
    )
    changes = serializers.ListField(
        child=ChangeSerializer(),
        **_NUM_JOBS,
        help_text=f"Of `reprioritise`: 1 to {JOBS_LIMIT} jobs with values of their own.",
    )
    all_or_none = FlagField(
        required=False,
        help_text="If one job is refused, so is the request, and no job changes.",
    )
    tag = TagField(required=False, max_length=40, help_text="Of `tag` and `untag`.")
    reason = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=500,
        help_text="Required to reprioritise somebody else's job.",
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Require the fields of the action, and none of other actions."""
        is_reprioritised = values["action"] is JobsAction.REPRIORITISE
        is_of_tags = values["action"] in (JobsAction.TAG, JobsAction.UNTAG)
        others = {} if is_of_tags else {"tag": "Of tag and untag alone."}
        if not is_reprioritised:
            others |= dict.fromkeys(("priority", "tier"), "Of reprioritise alone.")
        if wrong := {name: [text] for name, text in others.items() if name in values}:
            raise serializers.ValidationError(wrong)
        if "changes" in values:
            numbers = [change["job"] for change in values["changes"]]
            if not is_reprioritised:
                raise serializers.ValidationError({"changes": ["Of reprioritise alone."]})
            if values.keys() & {"jobs", *_StandingSerializer().fields}:
                text = "Leave out jobs, and values that are not of one change."
                raise serializers.ValidationError({"changes": [text]})
            if len({*numbers}) < len(numbers):
                raise serializers.ValidationError({"changes": ["Name each job once."]})
            return values
        needed = {JobsAction.REPRIORITISE: "priority", JobsAction.CANCEL: None}
        name = needed.get(values["action"], "tag")
        if is_reprioritised and values.get("tier"):
            name = None
        if name is not None and not values.get(name):
            text = "Give a tag." if name == "tag" else "Give a priority, a tier, or both."
            raise serializers.ValidationError({name: [text]})
        if "jobs" not in values:
            raise serializers.ValidationError({"jobs": ["Choose at least one job."]})
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

    def get_done(self, outcome: ActionOutcome) -> bool:
        return not outcome.code


class OutcomesSerializer(serializers.Serializer):
    """Results of an action by job, and the requests that undo it."""

    results = OutcomeSerializer(many=True)
    undo = JobsActionSerializer(
        many=True, help_text="Requests that undo it; none undoes a cancellation."
    )


def action_perform(user: Any, data: Mapping[str, Any]) -> tuple[list[ActionOutcome], list[Any]]:
    """Check and perform one action; return the outcomes and the requests that undo it.

    Raises:
        InvalidInputError: the request is not valid; no job changed.
        ControlPlaneError: a job is refused, and the request is all or none; no job changed.
    """
    values = checked(JobsActionSerializer, data)
    action, changes = values["action"], _changes(values)
    texts = {"tag": values.get("tag", ""), "reason": values["reason"]}
    is_all_or_none = values.get("all_or_none", False)
    outcomes = jobs_act(
        user, action, changes, timezone.now(), is_all_or_none=is_all_or_none, **texts
    )
    if changed := [outcome.job_id for outcome in outcomes if outcome.is_changed]:
        is_of_labels = action in (JobsAction.TAG, JobsAction.UNTAG)
        nudges.jobs_changed(changed, orders=not is_of_labels)
    return outcomes, undo_of(action, outcomes, changes, **texts)


def action_preview(user: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Check a request to reprioritise jobs, and return its effect; no job changes.

    Raises:
        InvalidInputError: the request is not valid, or of another action.
        ForbiddenError, NotFoundError: the user may not change one of the jobs, or see it.
        ThrottledError: the user asks too often.
    """
    values = checked(JobsActionSerializer, data)
    if values["action"] is not JobsAction.REPRIORITISE:
        raise InvalidInputError.of(action="Only reprioritise has an effect to preview.")
    given = {job_id: change.given for job_id, change in _changes(values).items()}
    for standing in {*given.values()}:
        standing_read(user, asdict(standing))
    jobs_change_check(user, given.keys())
    preview_count(user)
    preview = reprioritise_preview(
        {job_id: one.priority for job_id, one in given.items() if one.priority is not None},
        {job_id: one.tier for job_id, one in given.items() if one.tier is not None},
        timezone.now(),
        jobs_visible_to(user),
    )
    moved = [move.job.pk for move in preview.moves]
    visible = set(jobs_visible_to(user).filter(pk__in=moved).values_list("pk", flat=True))
    shown = [move for move in preview.moves if move.job.pk in visible]
    return {
        "policy": cluster_setting().policy,
        "moves": shown,
        "num_others": len(preview.moves) - len(shown),
        "starts": preview.starts,
    }


def _changes(values: Mapping[str, Any]) -> dict[int, PriorityChange]:
    """Return the change of each job of a checked request."""
    rows = values.get("changes") or [{**values, "job": job} for job in values["jobs"]]
    return {
        row["job"]: PriorityChange(
            Standing(row.get("priority"), row.get("tier")),
            Standing(row.get("expected_priority"), row.get("expected_tier")),
        )
        for row in rows
    }


class MoveSerializer(serializers.Serializer):
    """A job whose accelerators would change."""

    job = serializers.IntegerField(source="job.pk")
    name = serializers.CharField(source="job.name")
    held = serializers.IntegerField(help_text="Accelerators now.")
    wanted = serializers.IntegerField(help_text="Accelerators then; 0: it would wait.")


class StartSerializer(serializers.Serializer):
    """Seconds until the expected start of a waiting job."""

    earliest_s = serializers.FloatField()
    latest_s = serializers.FloatField()


class StartChangeSerializer(serializers.Serializer):
    """A waiting job whose expected start would change; null: there is no estimate."""

    job = serializers.IntegerField(source="job.pk")
    name = serializers.CharField(source="job.name")
    before = StartSerializer(allow_null=True)
    after = StartSerializer(allow_null=True)


class PreviewSerializer(serializers.Serializer):
    """Changes that a new priority or tier would make now."""

    policy = serializers.CharField()
    moves = MoveSerializer(many=True)
    num_others = serializers.IntegerField(help_text="Changed jobs that are not yours to see.")
    starts = StartChangeSerializer(
        many=True, help_text=f"Of at most {STARTS_LIMIT} jobs, those that start first."
    )


class PreviewRequestSerializer(JobsActionSerializer):
    """New priorities or tiers to preview. Only for the OpenAPI document."""

    action = serializers.ChoiceField([JobsAction.REPRIORITISE.value])  # type: ignore[assignment]


class JobsActionPreview(APIView):
    """Effect of new priorities or tiers, before they are given."""

    @extend_schema(request=PreviewRequestSerializer, responses=PreviewSerializer)
    def post(self, request: Request) -> Response:
        """Preview new priorities or tiers: what `reprioritise` would change now."""
        return Response(PreviewSerializer(action_preview(person(request), body(request))).data)


class JobActions(APIView):
    """One action on many jobs; each job changes or is refused by itself, or all together."""

    @extend_schema(request=JobsActionSerializer, responses=OutcomesSerializer)
    def post(self, request: Request) -> Response:
        """Cancel, reprioritise, tag or untag jobs; a repeated request changes nothing more."""
        outcomes, undo = action_perform(person(request), body(request))
        return Response(OutcomesSerializer({"results": outcomes, "undo": undo}).data)
