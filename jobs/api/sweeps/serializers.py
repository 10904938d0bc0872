"""A sweep by REST: what a request may say, and what is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Count, QuerySet
from rest_framework import serializers
from rest_framework.request import Request

from jobs.api.jobs.submission_fields import SettingsField, WholeField
from jobs.api.jobs.submission_request import submission_apart
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.api.requests import BodySerializer
from jobs.exceptions import InvalidInputError, messages_by_field
from jobs.job_templates import template_of
from jobs.models import Job, Sweep
from jobs.query_values import WHOLE_LIMIT
from jobs.selectors.settings_values import settings_with
from jobs.services.submission.sweeps import SweepRequest
from jobs.submission import Submission
from jobs.sweep_space import (
    DEFAULT_MAX_RUNNING,
    JOBS_LIMIT,
    SpaceError,
    settings_drawn,
    space_read,
)


class SweepPlanSerializer(BodySerializer):
    """The space of a sweep, and how its jobs are drawn from it."""

    space = SettingsField(
        help_text="By setting: a list of values, or a range: `low`, `high`, `scale` (`linear` or "
        "`log`), `integer`, and `num` values of a grid."
    )
    num_draws = WholeField(
        1,
        JOBS_LIMIT,
        default=None,
        allow_null=True,
        help_text="Random draws; without it the jobs are the grid of all combinations.",
    )
    seed = WholeField(0, WHOLE_LIMIT, default=0, help_text="Of the draws.")
    max_running = WholeField(
        1, JOBS_LIMIT, default=DEFAULT_MAX_RUNNING, help_text="Most jobs that run at once."
    )


class SweepSubmissionSerializer(SubmissionSerializer):
    """The fields of a job, and the plan of a sweep. Only for the OpenAPI document."""

    sweep = SweepPlanSerializer()


def sweep_plan(given: Any) -> dict[str, Any]:
    """Check the object `sweep` of a request, and draw the settings of its jobs.

    Returns:
        `space`, `num_draws`, `seed`, `settings` and `max_running`.

    Raises:
        InvalidInputError: with messages by field, such as `sweep.space`.
    """
    try:
        given = json.loads(given) if isinstance(given, str) else given  # of a form
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, Mapping):
        raise InvalidInputError.of(sweep="Give an object with a space of settings.")
    serializer = SweepPlanSerializer(data=given)
    if not serializer.is_valid():
        texts = messages_by_field(serializer.errors)
        fields = {f"sweep.{name}": found for name, found in texts.items()}
        raise InvalidInputError("The sweep is not valid.", fields=fields)
    values = dict(serializer.validated_data)
    try:
        space = space_read(values["space"], is_grid=values["num_draws"] is None)
        values["settings"] = settings_drawn(space, values["num_draws"], values["seed"])
    except SpaceError as error:
        raise InvalidInputError.of(**{"sweep.space": str(error)}) from None
    return values


def sweep_request(submission: Submission, plan: Mapping[str, Any]) -> SweepRequest:
    """Combine a checked submission with the plan of a sweep.

    Raises:
        InvalidInputError: the template has no such setting, or settings become too large.
    """
    if template := template_of(submission.code):
        wrong = (text for drawn in plan["settings"] for text in template.settings_wrong(drawn))
        if text := next(wrong, None):
            raise InvalidInputError.of(**{"sweep.space": text})
    if submission.forked_from is not None:
        raise InvalidInputError.of(forked_from="The jobs of a sweep start anew; leave this out.")
    largest = max(plan["settings"], key=lambda drawn: len(str(drawn)))
    try:
        SettingsField().run_validation(settings_with(submission.settings, largest))
    except serializers.ValidationError as error:
        raise InvalidInputError.of(settings=str(error.detail[0])) from None  # type: ignore[index]
    return SweepRequest(submission=submission, **plan)


def sweep_request_of(request: Request) -> SweepRequest:
    """Read a request: the fields of a job, and the object `sweep`.

    Raises:
        InvalidInputError: with messages for every invalid field.
    """
    submission, others = submission_apart(request, ("sweep",))
    return sweep_request(submission, sweep_plan(others.get("sweep")))


class SweepSerializer(serializers.ModelSerializer):
    """A sweep."""

    owner = serializers.CharField(source="owner.username")
    num_jobs = serializers.SerializerMethodField()
    statuses = serializers.SerializerMethodField(help_text="Number of jobs by status.")

    class Meta:
        model = Sweep
        fields = (
            "id",
            "name",
            "owner",
            "template",
            "space",
            "num_draws",
            "seed",
            "max_running",
            "is_paused",
            "num_jobs",
            "statuses",
            "submitted_at",
        )

    def get_num_jobs(self, sweep: Sweep) -> int:
        return sum(self.get_statuses(sweep).values())

    def get_statuses(self, sweep: Sweep) -> dict[str, int]:
        counted: dict[int, dict[str, int]] = self.context["statuses"]
        return counted.get(sweep.pk, {})


class SweepPreviewSerializer(serializers.Serializer):
    """Jobs that a sweep would submit."""

    num_jobs = serializers.IntegerField()
    max_running = serializers.IntegerField()
    settings = serializers.ListField(
        child=serializers.DictField(), help_text="Settings of each job, those of the space alone."
    )


class SweepChangeSerializer(BodySerializer):
    """A change of a sweep."""

    unknown_text = "This cannot be changed; use {}."

    max_running = WholeField(1, JOBS_LIMIT)
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=500)


def statuses_counted(sweeps: Sequence[Sweep] | QuerySet[Sweep]) -> dict[int, dict[str, int]]:
    """Count the jobs of sweeps by status."""
    counted: dict[int, dict[str, int]] = {}
    rows = Job.objects.filter(sweep__in=[sweep.pk for sweep in sweeps]).order_by()
    for sweep_id, status, number in rows.values_list("sweep", "status").annotate(n=Count("id")):
        counted.setdefault(sweep_id, {})[status] = number
    return counted
