"""The page of jobs side by side, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend.figures.comparison import AXES, JobStyle, comparison_figure
from frontend.figures.metrics import metric_key
from frontend.figures.parts import Figure
from frontend.palette import colours_apart, job_colour_token
from frontend.views.changes import words
from frontend.views.pages import figures_response
from jobs.exceptions import ControlPlaneError, InvalidInputError, NotFoundError
from jobs.models import Job
from jobs.query_values import whole_read
from jobs.selectors.access import jobs_seen_among
from jobs.selectors.comparison import (
    COMPARED_LIMIT,
    SERIES_LIMIT,
    Comparison,
    compared_jobs,
    jobs_compared,
    points_limit,
    series_compared,
    series_names,
)
from jobs.services.lifecycle.audit import reads_audit

#: Weights of the moving average in the address, and how the form names them.
SMOOTHING = {"0": "none", "0.6": "weight 0.6", "0.9": "weight 0.9", "0.97": "weight 0.97"}
SCALES = {"linear": "linear", "log": "logarithmic"}
ROWS = {"different": "that differ", "all": "all"}


class CompareForm(forms.Form):
    """Parameters of the page; the jobs are read apart, as their parameter is repeated."""

    x = forms.ChoiceField(label="Against", choices=list(AXES.items()), required=False)
    y = forms.ChoiceField(label="Scale", choices=list(SCALES.items()), required=False)
    smooth = forms.ChoiceField(label="Smoothing", choices=list(SMOOTHING.items()), required=False)
    settings = forms.ChoiceField(label="Settings", choices=list(ROWS.items()), required=False)


def _jobs(request: HttpRequest) -> list[Job]:
    """Find the jobs of the address.

    Raises:
        InvalidInputError: a number is none, or there are too many.
        NotFoundError: one of them is not there.
    """
    texts = [text.strip().removeprefix("#") for text in request.GET.getlist("job")]
    numbers = []
    for text in filter(None, texts):
        if (number := whole_read(text)) is None:
            raise InvalidInputError.of(job=f"{text:.20} is no number of a job.")
        numbers.append(number)
    return compared_jobs(request.user, numbers)


def _form(request: HttpRequest) -> CompareForm:
    form = CompareForm(request.GET)
    known_names = ("job", *form.fields, "tables")
    unknown = [name for name in request.GET if name not in known_names]
    if unknown:
        known = ", ".join(known_names)
        raise InvalidInputError.of(**{unknown[0]: f"There is no “{unknown[0]}”; use {known}."})
    if not form.is_valid():
        raise InvalidInputError(
            "", fields={name: [*map(str, e)] for name, e in form.errors.items()}
        )
    return form


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Show jobs side by side; the address holds jobs, axis, scale and smoothing.

    With `tables` in it the charts' tables are filled in, for browsers without JavaScript.
    """
    try:
        form, jobs = _form(request), _jobs(request)
    except (InvalidInputError, NotFoundError) as error:
        return _refusal(request, error)
    reads_audit(request.user, jobs, "page")
    found = jobs_compared(jobs)
    for job, colour in zip(jobs, colours_apart([job.colour for job in jobs]), strict=True):
        job.colour = colour  # as in the charts; never saved
    shows_all = form.cleaned_data["settings"] == "all"
    query = request.GET.copy()
    return render(
        request,
        "frontend/compare.html",
        {
            "form": CompareForm(initial={**form.cleaned_data}),
            "jobs": jobs,
            "rows": [_row(request, found, place) for place in range(len(jobs))],
            "settings": [row for row in found.settings if shows_all or not row.is_equal],
            "num_settings": found.num_settings,
            "metrics": [
                (row, list(zip(row.best, row.best_epoch, row.last, row.winners, strict=True)))
                for row in found.metrics
            ],
            "num_metrics": found.num_metrics,
            "charts": [(metric_key(name), name) for name in series_names(jobs)],
            "figures_query": query.urlencode(),
            "figures": _figures(jobs, form) if "tables" in query else None,
            "tables_query": f"{query.urlencode()}&tables=1",
            "smooth": form.cleaned_data["smooth"],
            "compared_limit": COMPARED_LIMIT,
            "points_limit": points_limit(len(jobs)),
            "series_limit": SERIES_LIMIT,
        },
    )


def _refusal(request: HttpRequest, error: ControlPlaneError) -> HttpResponse:
    """Say what is wrong with the address; the form keeps those of its jobs that are there."""
    texts = request.GET.getlist("job")[:COMPARED_LIMIT]
    numbers = [whole_read(text.strip().removeprefix("#")) or 0 for text in texts]
    seen = jobs_seen_among(request.user, numbers)
    context = {
        "error": words(error),
        "kept": [number for number in dict.fromkeys(numbers) if number in seen],
        "compared_limit": COMPARED_LIMIT,
    }
    return render(request, "frontend/compare.html", context, status=error.status)


def _row(request: HttpRequest, found: Comparison, place: int) -> dict[str, Any]:
    job = found.jobs[place]
    others = [str(other.pk) for other in found.jobs if other.pk != job.pk]
    kept = {name: request.GET[name] for name in request.GET if name != "job"}
    return {
        "job": job,
        "accelerator_hours": found.accelerator_hours[place],
        "without": urlencode({"job": others, **kept}, doseq=True),
    }


@require_safe
def compare_figures(request: HttpRequest) -> HttpResponse:
    """Return the page's figures as JSON."""
    try:
        form, jobs = _form(request), _jobs(request)
    except InvalidInputError as error:
        return JsonResponse({"detail": words(error)}, status=400)
    return figures_response(request, _figures(jobs, form))


def _figures(jobs: Sequence[Job], form: CompareForm) -> dict[str, Figure]:
    colours = colours_apart([job.colour for job in jobs])
    styles = {
        job.pk: JobStyle(job.pk, job.name, job_colour_token(colour), place)
        for place, (job, colour) in enumerate(zip(jobs, colours, strict=True))
    }
    chosen = form.cleaned_data
    return {
        metric_key(name): comparison_figure(
            name,
            series,
            styles,
            axis=chosen["x"] or "steps",
            is_log=chosen["y"] == "log",
            smoothing=float(chosen["smooth"] or 0),
        )
        for name, series in series_compared(jobs).items()
    }
