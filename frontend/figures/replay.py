"""Figures of a replay: completion times of each job, unchanged and with the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frontend.figures.parts import Figure, label, legend_entry, plotly_text, table
from frontend.palette import pattern

#: Most jobs with bars: those whose completion time changes most.
MAX_BARS = 40
_MINUTE_S = 60.0


def completion_figure(jobs: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the completion time of each job, replayed unchanged and with the change.

    Args:
        jobs: rows with `id`, `name`, `recorded_s`, `as_is_s` and `changed_s`; times may be None.
    """
    both = [job for job in jobs if job["as_is_s"] is not None and job["changed_s"] is not None]
    both.sort(key=lambda job: (-abs(job["changed_s"] - job["as_is_s"]), job["id"]))
    shown = sorted(both[:MAX_BARS], key=lambda job: job["id"])
    data = [
        _bars(shown, "as_is_s", "as it was", "--muted", 0),
        _bars(shown, "changed_s", "what if", "--accent", 1),
    ]
    return {
        "data": data if shown else [],
        "layout": {
            "barmode": "group",
            "bargap": 0.25,
            "xaxis": {"type": "category"},
            "yaxis": {"rangemode": "tozero", "title": {"text": "minutes to completion"}},
            "hovermode": "x unified",
        },
        "legend": [
            legend_entry("as it was", "--muted"),
            legend_entry("what if", "--accent", mark="/6"),
        ],
        "table": table(
            ["Job", "Recorded, s", "Replayed, s", "What if, s", "Change"],
            [
                [
                    label(job["id"], job["name"]),
                    *(_seconds(job[name]) for name in ("recorded_s", "as_is_s", "changed_s")),
                    change_text(job["as_is_s"], job["changed_s"]),
                ]
                for job in jobs
            ],
        ),
    }


def change_text(before: float | None, after: float | None) -> str:
    """Format the change to `after`: in per cent, or as a factor from 2 on; a dash if unknown."""
    if before is None or after is None or before <= 0.0:
        return "\N{EN DASH}"
    if after >= 2.0 * before:
        return f"\N{MULTIPLICATION SIGN}{after / before:.3g}"
    return f"{after / before - 1.0:+.0%}"


def _bars(
    jobs: Sequence[Mapping[str, Any]], field: str, name: str, colour: str, place: int
) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": [plotly_text(f"#{job['id']}") for job in jobs],
        "y": [round(job[field] / _MINUTE_S, 2) for job in jobs],
        "name": name,
        "marker": {"color": colour, "pattern": pattern(colour, place)},
        "hovertemplate": f"%{{y:.1f}} min {name}<extra></extra>",
    }


def _seconds(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.0f}"
