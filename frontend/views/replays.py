"""What-if replays: request form and results. For admins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.db.models import F
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.core.policies import POLICIES
from controlplane.core.values.explanations import percent
from controlplane.simulator.settings import MOST_COST_S
from frontend.charts import replay_charts
from frontend.views.admin import admin_or_404
from frontend.views.changes import person, words
from frontend.views.pages import figures_response
from jobs.exceptions import ControlPlaneError, NotFoundError
from jobs.models import Replay, ReplayStatus
from jobs.query_values import number_read, whole_read
from jobs.selectors.projects import accelerators_by_kind
from jobs.selectors.readings import HOUR_S
from jobs.selectors.replays import (
    Cell,
    ComparedReplays,
    MeasureRow,
    cluster_cost,
    comparison_of,
    replay_summaries,
    replays_compared,
)
from jobs.selectors.usage import accelerator_prices
from jobs.services.cluster.replays import (
    HOURS_RANGE,
    SCENARIOS_LIMIT,
    Scenario,
    replay_cancel,
    replays_ask,
)
from jobs.services.scheduling.policy import cluster_setting

_SHOWN_REPLAYS = 20
_DEFAULT_HOURS = 24
#: Fields of a scenario -> names of their inputs, without the scenario's number.
_FIELD_NAMES = {"policy": "policy", "accelerators": "kind", "resize_cost_s": "resize-cost"}
#: Most characters of a value that the form takes.
_LENGTH_LIMIT = 40


@require_safe
def what_if(request: HttpRequest) -> HttpResponse:
    """Show the form for replays, filled from the address, and the replays so far."""
    admin_or_404(request)
    given = {"policy-1": cluster_setting().policy, "hours": str(_DEFAULT_HOURS)}
    return _page(request, given | _given(request.GET), {})


@require_POST
def ask(request: HttpRequest) -> HttpResponse:
    """Request replays of the scenarios; show the form again with messages at invalid fields."""
    admin_or_404(request)
    given = _given(request.POST)
    numbers = [n for n in range(1, SCENARIOS_LIMIT + 1) if n == 1 or given.get(f"policy-{n}")]
    kinds = list(accelerators_by_kind())
    scenarios = [
        Scenario(
            given.get(f"policy-{number}", ""),
            {kind: _whole(text) for kind in kinds if (text := given.get(f"kind-{number}-{kind}"))},
            _number(given.get(f"resize-cost-{number}", "")),
        )
        for number in numbers
    ]
    hours = _whole(given.get("hours", ""))
    try:
        replays = replays_ask(person(request), scenarios, hours=hours, now=timezone.now())
    except ControlPlaneError as error:
        return _page(request, given, _errors(error, numbers) or {"form": error.detail})
    present = accelerator_prices()
    prices = {
        f"price-{replay.pk}:{kind}": price
        for number, replay in zip(numbers, replays, strict=True)
        for kind in kinds
        if (price := given.get(f"price-{number}-{kind}")) and price != str(present.get(kind))
    }
    query = f"?{urlencode(prices)}" if prices else ""
    return redirect(reverse("replay", args=[replays[0].pk]) + query)


def _given(values: QueryDict) -> dict[str, str]:
    return {name: str(value).strip()[:_LENGTH_LIMIT] for name, value in values.items()}


def _errors(error: ControlPlaneError, numbers: Sequence[int]) -> dict[str, str]:
    """Return the messages by field of the form, such as `policy-1`, `kind-1` or `hours`."""
    found = {}
    for name, texts in error.fields.items():
        *place, field = name.split(".")
        number = numbers[int(place[1])] if place else numbers[0]
        if field in _FIELD_NAMES:
            field = f"{_FIELD_NAMES[field]}-{number}"
        found[field] = " ".join(texts)
    return found


@require_safe
def replay(request: HttpRequest, replay_id: int) -> HttpResponse:
    """Show a replay beside those over the same history: progress, figures and charts."""
    admin_or_404(request)
    row = get_object_or_404(Replay, pk=replay_id)
    prices, error = _prices(request.GET), ""
    try:
        comparison = comparison_of(row, prices)
    except ControlPlaneError as invalid:
        comparison, error = comparison_of(row, {}), words(invalid)
    replays = comparison.replays
    columns = ["as recorded", "replayed unchanged", *(one.title for one in replays)]
    kinds = list(accelerators_by_kind())
    context = {
        "comparison": comparison,
        "replays": replays,
        "error": error,
        "percent": round(100 * min(one.progress for one in replays)),
        "columns": columns,
        "rows": [_row(one, columns) for one in comparison.rows],
        "kinds": kinds,
        "scenarios": [
            {
                "replay": one,
                "prices": _priced(one, kinds, comparison.prices[one.pk]),
                "chart": f"replay-{one.pk}",
                "title": f"Accelerators, {one.title}",
            }
            for one in replays
        ],
        "empty": "Shown when the simulation is done and accelerators were allocated.",
        "currency": settings.CURRENCY,
        "form_query": _form_query(comparison, kinds),
        "tables_query": urlencode({"tables": 1} | {f"price-{k}": v for k, v in prices.items()}),
        "figures": None,
    }
    if "tables" in request.GET:
        context["figures"] = replay_charts(replays, request.user)
    return render(request, "frontend/replay.html", context)


@require_safe
def replay_figures(request: HttpRequest, replay_id: int) -> HttpResponse:
    """Return the figures of a comparison as JSON; empty ones before the results."""
    admin_or_404(request)
    row = get_object_or_404(Replay, pk=replay_id)
    return figures_response(
        request, replay_charts(list(replays_compared(row).order_by("id")), request.user)
    )


@require_POST
def cancel(request: HttpRequest, replay_id: int) -> HttpResponse:
    """Cancel the live replays of a comparison, or delete all once they have ended."""
    admin_or_404(request)
    rows = list(replays_compared(get_object_or_404(Replay, pk=replay_id)))
    live = [row for row in rows if row.is_live]
    for row in live or rows:
        with suppress(NotFoundError):  # deleted in another window
            replay_cancel(row.pk, timezone.now())
    text = "The simulation is cancelled." if live else "The simulation is deleted."
    messages.success(request, text)
    return redirect("what_if")


def _page(request: HttpRequest, given: dict[str, str], errors: dict[str, str]) -> HttpResponse:
    present, prices = accelerators_by_kind(), accelerator_prices()
    scenarios = [
        {
            "number": number,
            "policy": given.get(f"policy-{number}", ""),
            "policy_error": errors.get(f"policy-{number}"),
            "kinds_error": errors.get(f"kind-{number}"),
            "resize_cost": given.get(f"resize-cost-{number}", ""),
            "resize_cost_error": errors.get(f"resize-cost-{number}"),
            "kinds": [
                {
                    "name": kind,
                    "number": count,
                    "value": given.get(f"kind-{number}-{kind}", str(count)),
                    "price": given.get(f"price-{number}-{kind}", prices.get(kind, "")),
                }
                for kind, count in present.items()
            ],
        }
        for number in range(1, SCENARIOS_LIMIT + 1)
    ]
    context = {
        "policies": list(POLICIES),
        "given": given,
        "errors": errors,
        "present": present,
        "scenarios": scenarios,
        "hours_low": HOURS_RANGE[0],
        "hours_high": HOURS_RANGE[1],
        "cost_high": int(MOST_COST_S),
        "replays": _past(prices),
        "prices": prices,
        "currency": settings.CURRENCY,
    }
    return render(request, "frontend/what_if.html", context, status=400 if errors else 200)


def _past(prices: Mapping[str, float]) -> list[tuple[Replay, dict[str, str]]]:
    """Return the newest replays with their main figures; none before the result."""
    rows = replay_summaries().annotate(changed=F("result__changed"), num_jobs=F("result__num_jobs"))
    found: list[tuple[Replay, dict[str, str]]] = []
    for row in rows[:_SHOWN_REPLAYS]:
        figures = {}
        if row.status == ReplayStatus.DONE:
            figures = {
                "num_jobs": str(row.num_jobs),
                "mean": _shown(row.changed["mean_jct_s"], "s"),
                "makespan": _shown(row.changed["makespan_s"], "s"),
                "cost": _shown(cluster_cost(row.accelerators, row.changed, prices), ""),
            }
        found.append((row, figures))
    return found


def _row(row: MeasureRow, columns: Sequence[str]) -> dict[str, Any]:
    """Return a row of the comparison as texts."""
    label = row.measure.label
    if row.measure.key == "cost" and settings.CURRENCY:
        label += f", {settings.CURRENCY}"
    if row.jobs:
        label = f"{row.jobs}: {label[0].lower()}{label[1:]}"
    cells = zip(columns, [row.recorded, row.as_is, *row.scenarios], strict=True)
    return {"label": label, "cells": [_cell(name, cell, row.measure.unit) for name, cell in cells]}


#: Factors outside of this come of figures next to nothing, and only their direction says anything.
_TELLING = (0.001, 1000)


def _cell(column: str, cell: Cell, unit: str) -> dict[str, Any]:
    is_telling = cell.factor is not None and _TELLING[0] <= cell.factor < _TELLING[1]
    change = f"\N{MULTIPLICATION SIGN}{cell.factor:.3g} " if is_telling else ""
    return {
        "column": column,
        "value": _shown(cell.value, unit),
        "change": cell.verdict if cell.verdict == "same" else change + cell.verdict,
        "is_best": cell.is_best,
    }


def _priced(
    replay: Replay, kinds: Sequence[str], prices: Mapping[str, float]
) -> list[tuple[str, str, float | str]]:
    """Return the price of each kind with the name of its field; no name without accelerators."""
    return [
        (kind, f"price-{replay.pk}:{kind}" if kind in replay.accelerators else "",
         prices.get(kind, ""))
        for kind in kinds
    ]  # fmt: skip


def _prices(given: QueryDict) -> dict[str, str]:
    """Read the prices of an address: `price-REPLAY:KIND`, such as `price-13:cpu`."""
    prefix = "price-"
    return {
        name.removeprefix(prefix): value
        for name, value in _given(given).items()
        if name.startswith(prefix)
    }


def _form_query(comparison: ComparedReplays, kinds: Sequence[str]) -> str:
    """Return the query of the form with the scenarios of a comparison."""
    first = comparison.first
    hours = round((first.end_at - first.start_at).total_seconds() / HOUR_S)
    values: dict[str, object] = {"hours": hours}
    for number, row in enumerate(comparison.replays, start=1):
        values[f"policy-{number}"] = row.policy
        if row.resize_cost_s is not None:
            values[f"resize-cost-{number}"] = row.resize_cost_s
        values |= {f"kind-{number}-{kind}": row.accelerators.get(kind, 0) for kind in kinds}
        prices = comparison.prices[row.pk]
        values |= {f"price-{number}-{kind}": price for kind, price in prices.items()}
    return urlencode(values)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "\N{EN DASH}"
    if unit == "%":
        return percent(value)
    return f"{value:,.0f} s" if unit == "s" else f"{value:,.2f}"


def _number(text: str) -> object:
    """Read a number; None without text, other text unchanged, for the service to reject."""
    if not text:
        return None
    number = number_read(text)
    return text if number is None else number


def _whole(text: str) -> object:
    """Read a whole number; return other text unchanged, for the service to reject."""
    number = whole_read(text)
    return text if number is None else number
