"""Filter of jobs by query parameters, the same for REST and for the job page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import django_filters
from django import forms
from django.core.exceptions import ValidationError
from django.db.models import FilteredRelation, Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field

from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.tiers import TIERS
from jobs.models import Job
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.query_values import whole_read
from jobs.selectors.filter_fields import FilterForm, FlagFilter, IdFilter, TimeFilter
from jobs.selectors.job_order import DEFAULT_ORDER, ORDERS
from jobs.selectors.readings import idle_held
from jobs.selectors.settings_values import value_text

#: Names for several statuses.
STATUS_GROUPS: Mapping[str, tuple[JobStatus, ...]] = {
    "live": LIVE_JOB_STATUSES,
    "waiting": (JobStatus.VALIDATING, JobStatus.PENDING, JobStatus.PAUSED),
    "active": (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING),
    "ended": tuple(status for status in JobStatus if status not in LIVE_JOB_STATUSES),
}
_STATUSES = [*STATUS_GROUPS, *(status.value for status in JobStatus)]
#: Most times that a parameter may be repeated.
REPEATS_LIMIT = 5
#: Most characters of one of its values.
_LENGTH_LIMIT = 300
_TEXT = {"type": "string", "maxLength": _LENGTH_LIMIT}
TEXTS = {"type": "array", "items": _TEXT, "maxItems": REPEATS_LIMIT}
#: `\s` of JSON Schema has fewer characters than `str.strip`.
_SETTING = r"^[^=\x00]*[^=\s\x00-\x1f\x85][^=\x00]*=[^\x00]*$"
_METRIC = re.compile(
    r"(?P<name>[^<>=]{1,100}?)\s*(?:(?P<sign>>=|<=|>|<|=)\s*(?P<value>[-+0-9.eE]{1,30}))?"
)
#: Words of Python, which submissions take, too, in JSON.
_WORDS = {"True": "true", "False": "false", "None": "null"}
#: Floats below this are all whole numbers there are.
_EXACT_LIMIT = 2**53
_LOOKUPS = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt", "=": "exact"}


class TextsField(forms.Field):
    """Texts of a parameter that may be repeated; empty ones are left out."""

    widget = forms.MultipleHiddenInput

    def __init__(self, *, read: Callable[[str], Any], **options: Any) -> None:
        super().__init__(**options)
        self._read = read

    def clean(self, value: Any) -> list[Any]:
        texts = [text.strip() for text in value or () if text.strip()]
        if len(texts) > REPEATS_LIMIT:
            raise ValidationError(f"Give this at most {REPEATS_LIMIT} times.")
        if any("\0" in text or len(text) > _LENGTH_LIMIT for text in texts):
            raise ValidationError(f"Give text of at most {_LENGTH_LIMIT} characters, no NUL.")
        return [self._read(text) for text in texts]


class TextsFilter(django_filters.Filter):
    """`?tag=a&tag=b`; the filter's method gets the list."""

    field_class = TextsField


#: Filters whose parameters may be repeated.
REPEATABLE = (TextsFilter, django_filters.MultipleChoiceFilter)


def metric_read(text: str) -> tuple[str, str, float | None]:
    """Read `val_accuracy>0.9` or `val_accuracy` into a name, a lookup and a bound.

    Raises:
        ValidationError: the text is neither.
    """
    match = _METRIC.fullmatch(text)
    try:
        if match is not None and match["sign"] is None:
            return match["name"], "isnull", None
        if match is not None:
            return match["name"], _LOOKUPS[match["sign"]], float(match["value"])
    except ValueError:
        pass
    raise ValidationError(
        "Give the name of a metric, also with a bound of its best value: val_accuracy>0.9."
    )


def setting_read(text: str) -> set[str]:
    """Read `hidden_units=128` into the terms of jobs that have it, however JSON is written.

    Raises:
        ValidationError: there is no name or no value.
    """
    name, sign, value = text.partition("=")
    if not name.strip() or not sign:
        raise ValidationError("Give the name of a setting and its value: hidden_units=128.")
    return {f"setting={name.strip()}={one}" for one in _written(value.strip())}


def _written(text: str) -> set[str]:
    """Return how `search_rows` may have written a value: 1e-3 as 0.001, 1 also as 1.0."""
    try:
        value = json.loads(_WORDS.get(text, text))
        ways = {text, text if isinstance(value, str) else value_text(value)}
        "".join(ways).encode()  # a lone surrogate is in no setting, and no database takes it
    except (ValueError, RecursionError):
        return {text}
    if type(value) in (int, float) and abs(value) < _EXACT_LIMIT and value == int(value):
        ways |= {str(int(value)), str(float(value))}
    return ways


class JobFilterForm(FilterForm):
    """Rules between parameters."""

    def clean(self) -> dict[str, Any]:
        """Require a metric for its order."""
        values = self.cleaned_data
        if values.get("order", "").endswith("metric") and not values.get("metric"):
            self.add_error("metric", "Name the metric to sort by, such as val_accuracy.")
        return values


class JobFilter(django_filters.FilterSet):
    """`?status=live&status=failed&owner=ada&q=cnn&metric=val_accuracy>0.9&order=-metric`."""

    q = django_filters.CharFilter(
        method="filter_text", max_length=100, label="part of the name, or the job's number"
    )
    status = django_filters.MultipleChoiceFilter(
        choices=[(name, name) for name in _STATUSES],
        method="filter_status",
        label=f"a status, or a group of them: {', '.join(STATUS_GROUPS)}",
    )
    tier = django_filters.MultipleChoiceFilter(choices=[(tier.value, tier.value) for tier in TIERS])
    owner = django_filters.CharFilter(field_name="owner__username", max_length=150)
    project = django_filters.CharFilter(field_name="project__name", max_length=40)
    name = django_filters.CharFilter(lookup_expr="icontains", max_length=100)
    template = django_filters.CharFilter(max_length=60)
    forked_from = IdFilter("forked_from_id", label="forks of the job with this number")
    sweep = IdFilter("sweep_id", label="jobs of the sweep with this number")
    trial_of = IdFilter(
        "trial_of_id",
        label="parallel trials of the job with this number; without it trials are not listed",
    )
    tag = TextsFilter(method="filter_tags", read=str, label="a tag")
    metric = TextsFilter(
        method="filter_metrics",
        read=metric_read,
        label="a metric of its epochs, also with a bound of the best value: val_accuracy>0.9",
    )
    setting = TextsFilter(
        method="filter_settings", read=setting_read, label="a setting's value: hidden_units=128"
    )
    submitted_after = TimeFilter("submitted_at", lookup_expr="gte")
    submitted_before = TimeFilter("submitted_at", lookup_expr="lt")
    idle = FlagFilter(
        method="filter_idle", label="whether the job holds accelerators that it hardly uses"
    )
    order = django_filters.ChoiceFilter(
        choices=[(name, name) for order in ORDERS for name in (order, f"-{order}")],
        method="filter_order",
        empty_label=None,
        label=f"sorted by this, with - from the largest on; {DEFAULT_ORDER} by default. The order "
        "of `metric` is that of the best values of the first `metric` parameter",
    )

    class Meta:
        model = Job
        fields = ("status", "tier", "owner", "project", "name", "template")
        form = JobFilterForm

    def filter_queryset(self, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Apply all filters; trials of tuned jobs are listed only as those of their job."""
        if self.form.cleaned_data["trial_of"] is None:
            queryset = queryset.filter(trial_of=None)
        return super().filter_queryset(queryset)

    def filter_status(self, jobs: QuerySet[Job], _name: str, names: Sequence[str]) -> QuerySet[Job]:
        """Select jobs with one of the statuses or groups; no name selects all."""
        if not names:
            return jobs
        groups = [STATUS_GROUPS.get(name, (name,)) for name in names]
        return jobs.filter(status__in=[str(status) for group in groups for status in group])

    def filter_text(self, jobs: QuerySet[Job], _name: str, text: str) -> QuerySet[Job]:
        """Select jobs by a part of their name, or one by its number."""
        found = Q(name__icontains=text)
        if number := whole_read(text.removeprefix("#")):
            found |= Q(pk=number)
        return jobs.filter(found)

    @extend_schema_field(TEXTS)
    def filter_tags(self, jobs: QuerySet[Job], _name: str, tags: Sequence[str]) -> QuerySet[Job]:
        return _with_terms(jobs, [{f"tag={tag}"} for tag in tags])

    @extend_schema_field(TEXTS | {"items": _TEXT | {"pattern": _SETTING}})
    def filter_settings(
        self, jobs: QuerySet[Job], _name: str, settings: Sequence[set[str]]
    ) -> QuerySet[Job]:
        return _with_terms(jobs, settings)

    @extend_schema_field(TEXTS)
    def filter_metrics(
        self, jobs: QuerySet[Job], _name: str, bounds: Sequence[tuple[str, str, float | None]]
    ) -> QuerySet[Job]:
        """Select jobs by the best values of metrics; `metric_0__best` is that of the first."""
        for place, (name, lookup, bound) in enumerate(bounds):
            key = f"metric_{place}"
            relation = FilteredRelation("metric_values", condition=Q(metric_values__name=name))
            value = False if bound is None else bound
            jobs = jobs.annotate(**{key: relation}).filter(**{f"{key}__best__{lookup}": value})
        return jobs

    def filter_idle(self, jobs: QuerySet[Job], _name: str, is_idle: bool) -> QuerySet[Job]:
        """Select jobs that hold accelerators without using them, or all others."""
        found = Q(pk__in={one.job_id for one in idle_held(timezone.now())})
        return jobs.filter(found if is_idle else ~found)

    def filter_order(self, jobs: QuerySet[Job], _name: str, _order: str) -> QuerySet[Job]:
        """Leave the jobs as they are: the pages are cut in this order."""
        return jobs


def _with_terms(jobs: QuerySet[Job], terms: Sequence[set[str]]) -> QuerySet[Job]:
    for ways in terms:
        jobs = jobs.filter(search_terms__term__in=ways)
    return jobs
