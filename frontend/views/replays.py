"""What-if replays: request form and results. For admins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.core.policies import POLICIES
from frontend.charts import replay_charts
from frontend.figures.replay import change_text
from frontend.views.admin import admin_or_404
from frontend.views.changes import person
from frontend.views.pages import figures_response
from jobs.exceptions import ControlPlaneError
from jobs.models import Replay, ReplayStatus
from jobs.selectors.readings import HOUR_S
from jobs.selectors.usage import accelerator_prices
from jobs.services.cluster.replays import (
    HOURS_RANGE,
    accelerators_present,
    replay_ask,
    replay_cancel,
)
from jobs.services.scheduling.policy import cluster_setting

_SHOWN_REPLAYS = 20
_DEFAULT_HOURS = 24
#: Rows of the comparison: key of the summaries, label, unit.
_MEASURES = (
    ("mean_jct_s", "Mean completion time", "s"),
    ("median_jct_s", "Median completion time", "s"),
    ("p90_jct_s", "90th percentile of completion times", "s"),
    ("mean_queueing_s", "Mean time until the first step", "s"),
    ("makespan_s", "Until the last job was done", "s"),
    ("utilisation", "Accelerators in use", "%"),
    ("resizes_per_job", "Resizes of a job", ""),
    ("worst_fairness", "Worst finish-time fairness", ""),
)
_MAKESPAN_ROW = [key for key, _, _ in _MEASURES].index("makespan_s")
#: Rows of a tier: key of the summaries, label.
_TIER_MEASURES = (
    ("mean_jct_s", "mean completion time"),
    ("mean_queueing_s", "mean time until the first step"),
)


@login_required
@require_safe
def what_if(request: HttpRequest) -> HttpResponse:
    """Show the form for a replay, and the replays so far."""
    admin_or_404(request)
    return _page(request, {"policy": cluster_setting().policy, "hours": str(_DEFAULT_HOURS)}, {})


@login_required
@require_POST
def ask(request: HttpRequest) -> HttpResponse:
    """Request a replay; show the form again with messages at its invalid fields."""
    admin_or_404(request)
    given = {name: str(value)[:40] for name, value in request.POST.items()}
    accelerators = {
        kind: _whole(text)
        for kind in accelerators_present()
        if (text := given.get(f"kind-{kind}", "").strip())
    }
    try:
        replay = replay_ask(
            person(request),
            policy=given.get("policy", ""),
            accelerators=accelerators,
            hours=_whole(given.get("hours", "")),
            now=timezone.now(),
        )
    except ControlPlaneError as error:
        errors = {name: " ".join(texts) for name, texts in error.fields.items()}
        return _page(request, given, errors or {"form": error.detail})
    return redirect("replay", replay_id=replay.pk)


@login_required
@require_safe
def replay(request: HttpRequest, replay_id: int) -> HttpResponse:
    """Show one replay: its progress, or both simulations side by side."""
    admin_or_404(request)
    row = get_object_or_404(Replay.objects.select_related("requested_by"), pk=replay_id)
    context: dict[str, Any] = {"replay": row, "percent": round(100 * row.progress)}
    if row.status == ReplayStatus.DONE:
        context |= {"rows": _comparison(row), "result": row.result}
    return render(request, "frontend/replay.html", context)


@login_required
@require_safe
def replay_figures(request: HttpRequest, replay_id: int) -> HttpResponse:
    """Return the figures of a result as JSON; empty ones before the result."""
    admin_or_404(request)
    row = get_object_or_404(Replay, pk=replay_id)
    return figures_response(request, replay_charts(row, request.user))


@login_required
@require_POST
def cancel(request: HttpRequest, replay_id: int) -> HttpResponse:
    """Cancel a live replay, or delete an ended one."""
    admin_or_404(request)
    try:
        replay_cancel(replay_id, timezone.now())
    except ControlPlaneError as error:
        raise Http404(str(error)) from error
    messages.success(request, f"Replay {replay_id} is gone.", extra_tags="good")
    return redirect("what_if")


def _page(request: HttpRequest, given: dict[str, str], errors: dict[str, str]) -> HttpResponse:
    present, prices = accelerators_present(), accelerator_prices()
    context = {
        "policies": list(POLICIES),
        "given": given,
        "errors": errors,
        "kinds": [
            (kind, number, given.get(f"kind-{kind}", str(number)))
            for kind, number in present.items()
        ],
        "hours_low": HOURS_RANGE[0],
        "hours_high": HOURS_RANGE[1],
        "replays": _scenarios(prices),
        "prices": prices,
        "currency": settings.CURRENCY,
    }
    return render(request, "frontend/what_if.html", context, status=400 if errors else 200)


def _scenarios(prices: Mapping[str, float]) -> list[tuple[Replay, dict[str, str]]]:
    """Return the newest replays with their main figures; none before the result."""
    rows = Replay.objects.select_related("requested_by").defer("result")
    rows = rows.annotate(changed=F("result__changed"), num_jobs=F("result__num_jobs"))
    found: list[tuple[Replay, dict[str, str]]] = []
    for row in rows[:_SHOWN_REPLAYS]:
        figures = {}
        if row.status == ReplayStatus.DONE:
            makespan_s = row.changed["makespan_s"]
            cost = _cost(row.accelerators, makespan_s, prices)
            figures = {
                "num_jobs": str(row.num_jobs),
                "mean": _shown(row.changed["mean_jct_s"], "s"),
                "makespan": _shown(makespan_s, "s"),
                "cost": _shown(cost, ""),
            }
        found.append((row, figures))
    return found


def _cost(
    accelerators: Mapping[str, int], seconds: float | None, prices: Mapping[str, float]
) -> float | None:
    """Return the price of a whole cluster for a time; None unless each kind has a price."""
    if seconds is None or not prices.keys() >= accelerators.keys():
        return None
    return sum(number * prices[kind] for kind, number in accelerators.items()) * seconds / HOUR_S


def _comparison(replay: Replay) -> list[dict[str, str]]:
    """List the figures recorded, replayed unchanged, and replayed with the change."""
    result, prices = replay.result, accelerator_prices()
    rows = [_compared(result, key, text, unit) for key, text, unit in _MEASURES]
    if prices:
        sizes = dict.fromkeys(("recorded", "as_is"), result["as_is_accelerators"])
        sizes["changed"] = replay.accelerators
        costs = {
            name: {"cost": _cost(size, result[name].get("makespan_s"), prices)}
            for name, size in sizes.items()
        }
        text = "Cost of all accelerators until then"
        text += f", {settings.CURRENCY}" if settings.CURRENCY else ""
        rows.insert(_MAKESPAN_ROW + 1, _compared(costs, "cost", text, ""))
    for tier in result.get("tiers", ()):
        number = tier["num_jobs"]
        name = f"{number} {tier['tier']} job{'' if number == 1 else 's'}"
        rows += [_compared(tier, key, f"{name}: {text}", "s") for key, text in _TIER_MEASURES]
    return rows


def _compared(result: dict[str, Any], key: str, text: str, unit: str) -> dict[str, str]:
    values = {name: result[name].get(key) for name in ("recorded", "as_is", "changed")}
    return {name: _shown(value, unit) for name, value in values.items()} | {
        "label": text,
        "change": change_text(values["as_is"], values["changed"]),
    }


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "\N{EN DASH}"
    if unit == "%":
        return f"{value:.0%}"
    return f"{value:,.0f} s" if unit == "s" else f"{value:,.2f}"


def _whole(text: str) -> object:
    """Read a whole number; return other text unchanged, for the service to reject."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else text
