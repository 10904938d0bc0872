"""An HTML page that compares reports and works without a network."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from controlplane.simulator.engine.report import Report

#: Number of times at which allocation and queue are drawn.
NUM_MOMENTS = 500

#: Largest number of bands of applications; the smaller ones are drawn together.
MOST_BANDS = 8

#: Figure -> (title, decimals, unit).
FIGURES = {
    "mean_jct_s": ("mean completion", 0, " s"),
    "median_jct_s": ("median", 0, " s"),
    "p90_jct_s": ("90 %", 0, " s"),
    "p99_jct_s": ("99 %", 0, " s"),
    "makespan_s": ("makespan", 0, " s"),
    "mean_queued_s": ("mean wait", 0, " s"),
    "median_queued_s": ("median wait", 0, " s"),
    "utilisation": ("utilisation", 3, ""),
    "resizes_per_job": ("resizes per job", 2, ""),
    "restarts_per_job": ("restarts per job", 2, ""),
    "worst_fairness": ("worst fairness", 2, ""),
    "unfair_share": ("unfair share", 3, ""),
    "mean_quality": ("mean quality", 3, ""),
    "decision_p50_ms": ("decision", 1, " ms"),
    "decision_p99_ms": ("decision 99 %", 1, " ms"),
}

_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;"
    "color:#1c1c1e}table{border-collapse:collapse}td,th{padding:.3rem .7rem;text-align:right;"
    "border-bottom:1px solid #ddd;white-space:nowrap}th:first-child{text-align:left}"
    ".figure{height:24rem}"
    ".wide{overflow-x:auto}"
)


def page_make(reports: Sequence[Report], script: str) -> str:
    """Return the page as HTML.

    Args:
        script: the text of plotly.min.js, which is embedded in the page.
    """
    figures = [*_allocations(reports), _completion(reports), _queue(reports), _quality(reports)]
    names = ", ".join(report.policy for report in reports)
    drawn = json.dumps(figures).replace("</", "<\\/")
    places = "".join(
        f'<h2>{html.escape(figure["title"])}</h2><div class="figure" id="figure{number}" '
        f'role="img" aria-label="{html.escape(figure["title"])}"></div>'
        for number, figure in enumerate(figures)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Simulation: {html.escape(names)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Simulation: {html.escape(names)}</h1>{_settings(reports)}{_table(reports)}{places}"
        f"<script>{script}</script><script>const figures={drawn};"
        "figures.forEach((figure,number)=>Plotly.newPlot('figure'+number,figure.data,"
        "figure.layout,{responsive:true,displaylogo:false}));</script></body></html>\n"
    )


def _settings(reports: Sequence[Report]) -> str:
    settings = dict(reports[0].settings)
    kinds = ", ".join(f"{number} {kind}" for kind, number in settings.pop("kinds").items())
    notes = str(settings.pop("notes", ""))
    settings.pop("batch")  # differs between policies
    settings["asked"] = f"every {settings.pop('round_s'):g} s, at arrivals and ends"
    shown = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in settings.items())
    return (
        f"<p>{len(reports[0].jobs)} jobs on {html.escape(kinds)}. {html.escape(shown)}.</p>"
        f"<p>{html.escape(notes)}</p>"
    )


def _table(reports: Sequence[Report]) -> str:
    """Build a row for each figure: there are more of them than policies, and pages are narrow."""

    def row(title: str, cells: Sequence[str], tag: str = "td") -> str:
        shown = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr><th>{html.escape(title)}</th>{shown}</tr>"

    rows = [
        row("policy", [report.policy for report in reports], "th"),
        row("batch sizes", [str(report.settings["batch"]) for report in reports]),
    ]
    for name, (title, decimals, unit) in FIGURES.items():
        values = [getattr(report, name) for report in reports]
        rows.append(row(title, [f"{value:,.{decimals}f}{unit}" for value in values]))
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _figure(title: str, data: list[dict[str, Any]], across: str, up: str) -> dict[str, Any]:
    return {
        "title": title,
        "data": data,
        "layout": {
            "margin": {"t": 20, "r": 20},
            "xaxis": {"title": {"text": across}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": up}, "rangemode": "tozero"},
            "legend": {"orientation": "h", "y": -0.25},
            "hovermode": "x unified",
        },
    }


def _moments(reports: Sequence[Report]) -> np.ndarray[Any, np.dtype[np.float64]]:
    last = max((job.ended_at for report in reports for job in report.jobs), default=1.0)
    return np.linspace(0.0, last, NUM_MOMENTS)


def _allocations(reports: Sequence[Report]) -> list[dict[str, Any]]:
    moments = _moments(reports)
    order = applications_order(reports)
    return [
        _figure(
            f"Accelerators held over time: {report.policy}",
            [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "stackgroup": "held",
                    "line": {"width": 0.5, "shape": "hv"},
                    "name": html.escape(name),
                    "x": _hours(moments),
                    "y": counts.tolist(),
                }
                for name, counts in bands(report, moments, order).items()
            ],
            "hours",
            "accelerators",
        )
        for report in reports
    ]


def applications_order(reports: Sequence[Report]) -> list[str]:
    """List the applications by accelerator time, descending, so that all reports share colours."""
    used: dict[str, float] = {}
    for report in reports:
        for job in report.jobs:
            used[job.application] = used.get(job.application, 0.0) + job.accelerator_s
    return sorted(used, key=lambda name: (-used[name], name))


def bands(
    report: Report, moments: np.ndarray[Any, np.dtype[np.float64]], apart: Sequence[str]
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the accelerators held at each moment, for the first of `apart` and "others"."""
    names = set(apart if len(apart) <= MOST_BANDS else apart[: MOST_BANDS - 1])
    band_of = {job.id: job.application if job.application in names else "others"
               for job in report.jobs}  # fmt: skip
    found = {name: np.zeros(moments.size) for name in [*apart, "others"] if name in names}
    if len(names) < len(apart):
        found["others"] = np.zeros(moments.size)
    had: dict[int, int] = {}
    for at, job_id, count in report.held:
        band = found[band_of[job_id]]
        band[np.searchsorted(moments, at) :] += count - had.get(job_id, 0)
        had[job_id] = count
    return found


def _completion(reports: Sequence[Report]) -> dict[str, Any]:
    data = []
    for report in reports:
        rows = sorted(job.completion_s for job in report.jobs)
        share = [100.0 * (number + 1) / len(rows) for number in range(len(rows))]
        hours = [0.0, *(round(row / 3600.0, 4) for row in rows)]
        data.append(_line(report.policy, hours, [0.0, *share]) | {"line": {"shape": "hv"}})
    return _figure("Jobs that are complete this long after submission", data, "hours", "% of jobs")


def _queue(reports: Sequence[Report]) -> dict[str, Any]:
    moments = _moments(reports)
    data = []
    for report in reports:
        come = np.sort([job.submitted_at for job in report.jobs])
        gone = np.sort([job.started_at for job in report.jobs])
        waiting = np.searchsorted(come, moments, "right") - np.searchsorted(gone, moments, "right")
        data.append(_line(report.policy, _hours(moments), waiting.tolist()))
    return _figure("Jobs that have not started", data, "hours", "jobs")


def _quality(reports: Sequence[Report]) -> dict[str, Any]:
    data = [
        _line(
            report.policy,
            [round(at / 3600.0, 4) for at, _ in report.qualities],
            [round(value, 4) for _, value in report.qualities],
        )
        for report in reports
    ]
    return _figure("Mean quality of the jobs in the system", data, "hours", "of the final quality")


def _line(name: str, x: list[float], y: list[float]) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": html.escape(name), "x": x, "y": y}


def _hours(moments: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    return [round(float(moment) / 3600.0, 4) for moment in moments]
