"""Output formats of a job, and the bodies of its actions."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable, Mapping, Set
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.core.values.tiers import TIERS
from jobs.api.jobs.submission_fields import NoteField, TagsField
from jobs.api.requests import BodySerializer
from jobs.models import (
    Artifact,
    Job,
    JobForecast,
)
from jobs.selectors.access import Person, is_admin, text_for
from jobs.selectors.best_metrics import best_metric_of
from jobs.selectors.estimates.noise import noise_scale_of
from jobs.selectors.estimates.nonfinite import nonfinite_warning
from jobs.selectors.forecast import expected_end_of, forecast_of
from jobs.selectors.forks import LISTED_FORKS, forks_listed
from jobs.selectors.reproducibility import Reproducibility, kinds_used, reproducibility_of
from jobs.selectors.retention import files_expire_at
from jobs.selectors.selection import examples_chosen, selection_counts
from jobs.selectors.tuning import tuned_of
from jobs.selectors.usage import accelerator_seconds
from jobs.submission import PRIORITY_RANGE, SUBMISSION_COLUMNS


def reader_of(context: Mapping[str, Any]) -> Person:
    """Return whom an answer is for: the `reader` of the context, or the user of its request."""
    return context["reader"] if "reader" in context else context["request"].user


class ReadableText(serializers.CharField):
    """A stored text (`access.text_for`) for the reader of the context."""

    def __init__(self, **more: Any) -> None:
        super().__init__(read_only=True, **more)

    def to_representation(self, value: str) -> str:
        """Return the text for the reader."""
        return text_for(reader_of(self.context), value)


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
    """A job in a list; the context has the reader, or the request (`reader_of`)."""

    owner = serializers.CharField(source="owner.username")
    project = serializers.CharField(
        source="project.name",
        default=None,
        allow_null=True,
        help_text="Name of its project; null: it has none.",
    )
    stop = StopSerializer(source="*")
    num_accelerators = serializers.IntegerField(help_text="Accelerators that it holds now.")
    batch_size = serializers.IntegerField(
        source="batch_size_now", help_text="Examples of a step as it trains now."
    )

    expected_start_earliest_at = serializers.DateTimeField(
        source="forecast.expected_start_earliest_at", allow_null=True, read_only=True
    )
    expected_start_latest_at = serializers.DateTimeField(
        source="forecast.expected_start_latest_at", allow_null=True, read_only=True
    )
    expected_start_changes = serializers.SerializerMethodField()
    expected_start_changed_at = serializers.DateTimeField(
        source="forecast.expected_start_changed_at", allow_null=True, read_only=True
    )
    status_reason = ReadableText()
    policy_reason = ReadableText(
        help_text="Why it holds what it holds; other users' jobs are named for admins alone."
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
            "project",
            "template",
            "status",
            "status_code",
            "status_reason",
            "policy_reason",
            "expected_start_earliest_at",
            "expected_start_latest_at",
            "expected_start_changes",
            "expected_start_changed_at",
            "tier",
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
            "forked_from",
            "trial_of",
            "sweep",
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

    def get_expected_start_changes(self, job: Job) -> int:
        return JobForecast.of(job).expected_start_changes

    def get_warning(self, job: Job) -> str:
        return nonfinite_warning(job)


class ArtifactSerializer(serializers.ModelSerializer):
    """A result file of a job."""

    class Meta:
        model = Artifact
        fields = ("name", "sha256", "size_bytes", "step", "epoch", "at")


class BestMetricSerializer(serializers.Serializer):
    """Best value of the metric that a job is judged by."""

    name = serializers.CharField(help_text="The metric of its stop, or else one of validation.")
    is_higher_better = serializers.BooleanField()
    value = serializers.FloatField()
    epoch = serializers.IntegerField(help_text="Of the best value, from 0.")
    step = serializers.IntegerField(allow_null=True, help_text="Step at the end of that epoch.")
    last = serializers.FloatField(help_text="The newest value.")
    is_last_worse = serializers.BooleanField()


class ExpectedEndSerializer(serializers.Serializer):
    """Times between which a running job ends, at its present speed."""

    earliest_at = serializers.DateTimeField(
        allow_null=True, help_text="Null where the value of a metric may end it at any time."
    )
    latest_at = serializers.DateTimeField()


class JobSerializer(JobSummarySerializer):
    """One job with all fields."""

    best_metric = serializers.SerializerMethodField(
        help_text="Best and newest value of the metric of its stop, or else of one of validation; "
        "null before the end of an epoch."
    )
    expected_end = serializers.SerializerMethodField(
        help_text="When a running job ends, as a range; null while unknown."
    )

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
        "measured; why selection ended early; the examples chosen most often, with their place in "
        'the data, label ("" if it has none that is short) and whether there is an image of it; '
        "null without a selection."
    )
    tuned = serializers.SerializerMethodField(
        help_text="Trials of its tuning, at most 400 and the newest: values, steps, losses, speed, "
        "and why each was kept or not; the job that is a parallel one; share of the job's steps "
        "that trials took; the values kept last; null without tuning."
    )
    forked_at_step = serializers.SerializerMethodField(
        help_text="Step of the state that it starts from; null if it is no fork, or waits for it."
    )
    forks = serializers.SerializerMethodField(
        help_text=f"Numbers of the jobs that start from its states, at most {LISTED_FORKS} and of "
        "those that you may see."
    )
    attained_accelerator_s = serializers.SerializerMethodField(
        help_text="Accelerator-seconds so far, of accelerators that it holds up to this moment."
    )
    reproducibility = serializers.SerializerMethodField(
        help_text="What another run of the same job gives: the same bits, equal within rounding, "
        "or neither."
    )

    class Meta:
        model = Job
        fields = (
            *JobSummarySerializer.Meta.fields,
            *(name for name in SUBMISSION_COLUMNS if name not in JobSummarySerializer.Meta.fields),
            "source_job",
            "forked_at_step",
            "forks",
            "code_sha256",
            "generation",
            "restarts",
            "pause_requested",
            "facts",
            "metrics",
            "best_metric",
            "expected_end",
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
            "tuned",
            "reproducibility",
            "files",
            "files_expire_at",
            "files_deleted_at",
        )

    @staticmethod
    def is_page(chosen: Set[str] | None) -> bool:
        """Return whether chosen fields (None: all) are more than a list shows, as a page is."""
        return chosen is None or not chosen <= {*JobSummarySerializer.Meta.fields}

    @classmethod
    def render(cls, job: Job, chosen: Iterable[str] | None, reader: Person) -> dict[str, Any]:
        """Return the fields of a job; `chosen` are the names of some, None means all."""
        names = None if chosen is None else frozenset(chosen)
        serializer = cls._for_fields(names, is_admin=is_admin(reader))
        rendered: dict[str, Any] = serializer.to_representation(job)
        if "forks" in rendered:
            rendered["forks"] = forks_listed(job, reader)
        return rendered

    @classmethod
    @functools.lru_cache(maxsize=128)
    def _for_fields(cls, names: frozenset[str] | None, *, is_admin: bool) -> JobSerializer:
        """Return a serializer without an instance; making its fields takes longer than using it.

        Its reader is anybody with or without admin rights, so `render` adds the forks.
        """
        return cls(context={"fields": names, "reader": User(is_staff=is_admin)})

    @extend_schema_field(BestMetricSerializer(allow_null=True))
    def get_best_metric(self, job: Job) -> dict[str, Any] | None:
        best = best_metric_of(job)
        return None if best is None else dict(BestMetricSerializer(best).data)

    def get_attained_accelerator_s(self, job: Job) -> float:
        return accelerator_seconds([job], timezone.now())[job.pk]

    @extend_schema_field(ExpectedEndSerializer(allow_null=True))
    def get_expected_end(self, job: Job) -> dict[str, Any] | None:
        end = expected_end_of(job, timezone.now())
        return None if end is None else dict(ExpectedEndSerializer(end).data)

    def get_forked_at_step(self, job: Job) -> int | None:
        return None if job.fork_spec is None else job.fork_spec.step

    def get_forks(self, job: Job) -> list[int]:
        reader = reader_of(self.context)
        return [] if reader.pk is None else forks_listed(job, reader)

    def get_files_expire_at(self, job: Job) -> datetime.datetime | None:
        return files_expire_at(job)

    def get_kinds_used(self, job: Job) -> list[str]:
        return _kinds_used(job)

    def get_noise_scale(self, job: Job) -> dict[str, float | None] | None:
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
            "most_chosen": [dataclasses.asdict(example) for example in examples_chosen(job)],
        }

    def get_tuned(self, job: Job) -> dict[str, Any] | None:
        tuned = tuned_of(job)
        return None if tuned is None else dataclasses.asdict(tuned)

    @extend_schema_field(serializers.ChoiceField(choices=list(Reproducibility)))
    def get_reproducibility(self, job: Job) -> str:
        return reproducibility_of(job, _kinds_used(job))[0].value


def _kinds_used(job: Job) -> list[str]:
    """Return the kinds that a job has trained on, queried once for both fields made of them."""
    kept = vars(job)
    if "kinds_used" not in kept:
        kept["kinds_used"] = kinds_used(job)
    return kept["kinds_used"]


class ReasonSerializer(serializers.Serializer):
    """Reason for an action."""

    reason = serializers.CharField(required=False, max_length=500)


class PrioritySerializer(ReasonSerializer):
    """A new priority, a new tier, or both."""

    priority = serializers.IntegerField(
        min_value=PRIORITY_RANGE[0], max_value=PRIORITY_RANGE[1], required=False
    )
    tier = serializers.ChoiceField(choices=[tier.value for tier in TIERS], required=False)


class DescriptionSerializer(BodySerializer):
    """New tags and note of a job; what is left out stays."""

    unknown_text = "This cannot be changed; use {}."

    tags = TagsField(required=False, help_text="All tags of the job.")
    note = NoteField(required=False)
