"""Figure of the timeline: a bar for each stay of a job on an accelerator, and marks on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from controlplane.core.values.explanations import counted
from frontend.figures.parts import (
    MAX_TABLE_ROWS,
    Figure,
    label,
    legend_entry,
    milliseconds,
    plotly_text,
    table,
    time_axis,
    vertical_line,
)
from frontend.figures.rows import HIDDEN_JOB_ID
from frontend.palette import OTHER_JOBS_TOKEN, job_colour_token, text_on

#: Most jobs of the legend, the newest.
MAX_LEGEND = 24
#: Most numbers of jobs inside bars, the widest: drawing one takes as long as drawing ten bars.
MAX_TEXTS = 500
#: Parts of the time shown: of a bar with room for a number, of one with room for an edge beside its
#: colour, and of marks of a kind on a row that cover each other. A wide chart has 2,000 pixels.
_TEXT_PART, _EDGE_PART, _MARK_PART = 1 / 48, 1 / 400, 1 / 256
#: Row above the accelerators, for what concerns the whole cluster.
CLUSTER_ROW = "cluster"
_ROW_PIXELS, _EDGE_PIXELS, _LEAST_ROWS = 26, 60, 5
#: Kind of a mark -> name, symbol, colour.
MARKS: Mapping[str, tuple[str, str, str]] = {
    "resize": ("resize", "diamond", "--text"),
    "preemption": ("preemption", "triangle-down", "--warn"),
    "failure": ("failure", "x", "--bad"),
    "node": ("cordon, drain, maintenance, return", "square", "--info"),
    "policy": ("policy switch", "star", "--accent"),
}


class Bar(NamedTuple):
    """A job on the accelerator of a row, between two times; `is_open`: it still holds it."""

    row: str
    job_id: int
    job_name: str
    colour: int
    start_at: float
    end_at: float
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A mark of a kind of `MARKS` on some rows; on none, it is put on the row of the cluster."""

    kind: str
    at: float
    text: str
    rows: tuple[str, ...] = ()


def timeline_figure(
    rows: Sequence[str],
    bars: Sequence[Bar],
    marks: Sequence[TimelineMark],
    start_at: float,
    end_at: float,
) -> Figure:
    """Draw rows from the top on; bars are cut to the time shown, and marks are in time order."""
    data, legend, note = _bars(bars, start_at, end_at)
    switches: list[int] = []
    for kind, (name, symbol, colour) in MARKS.items():
        chosen = [mark for mark in marks if mark.kind == kind]
        if chosen:
            near_ms = max(1, milliseconds((end_at - start_at) * _MARK_PART))
            data.append(_mark_trace(chosen, name, symbol, colour, near_ms))
            if kind == "policy":
                switches = data[-1]["x"]
            legend.append(legend_entry(f"{_GLYPHS[kind]} {name}", colour))
    height = max(len(rows) + 1, _LEAST_ROWS) * _ROW_PIXELS + _EDGE_PIXELS
    return {
        "data": data,
        "layout": {
            "xaxis": {**time_axis(start_at, end_at), "fixedrange": False},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [CLUSTER_ROW, *rows][::-1],
                "range": [-0.6, len(rows) + 0.6],
                "showgrid": False,
            },
            "barmode": "overlay",
            "bargap": 0.25,
            "dragmode": "zoom",
            "height": height,
            "shapes": [vertical_line(at) for at in sorted({*switches})],
        },
        "legend": legend,
        "note": note,
        "table": table(
            ["Time", "Where", "What"], _table_rows(bars, marks), num_rows=len(bars) + len(marks)
        ),
    }


_GLYPHS = {"resize": "◆", "preemption": "▼", "failure": "✕", "node": "■", "policy": "★"}


def _bars(
    bars: Sequence[Bar], start_at: float, end_at: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Return one trace of all bars, which is drawn fast, the legend of their jobs, and a note."""
    if not bars:
        return [], [], ""
    entries = {bar.job_id: bar for bar in bars}
    names = {job_id: plotly_text(_name(bar)) for job_id, bar in entries.items()}
    colours = {job_id: _colour(bar) for job_id, bar in entries.items()}
    on_colours = {job_id: text_on(colour) for job_id, colour in colours.items()}
    starts = [milliseconds(max(bar.start_at, start_at)) for bar in bars]
    ends = [milliseconds(min(bar.end_at, end_at)) for bar in bars]
    lengths = [max(1, end - start) for start, end in zip(starts, ends, strict=True)]
    shown_ms = milliseconds(end_at - start_at)
    roomy = [
        place
        for place, length in enumerate(lengths)
        if bars[place].job_id and length >= shown_ms * _TEXT_PART
    ]
    texts = [""] * len(bars)
    for place in sorted(roomy, key=lengths.__getitem__)[-MAX_TEXTS:]:
        # Beside the mark of a resize, which is at the start of a stay.
        texts[place] = f"\u2002#{bars[place].job_id}"
    trace = {
        "type": "bar",
        "orientation": "h",
        "base": starts,
        "x": lengths,
        "y": [bar.row for bar in bars],
        "text": texts,
        "textposition": "inside",
        "insidetextanchor": "start",
        "insidetextfont": {"color": [on_colours[bar.job_id] for bar in bars]},
        "textangle": 0,
        "customdata": [f"{names[bar.job_id]}<br>{bar.row}, {_duration(bar)}" for bar in bars],
        "name": "jobs",
        "marker": {
            "color": [colours[bar.job_id] for bar in bars],
            "line": {
                "width": [int(length >= shown_ms * _EDGE_PART) for length in lengths],
                "color": "--surface",
            },
        },
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    named = sorted(entries.keys() - {HIDDEN_JOB_ID})
    shown = [*(entries.keys() & {HIDDEN_JOB_ID}), *named[-MAX_LEGEND:]]
    legend = [
        legend_entry(_name(entries[job_id]), colours[job_id], job_id or None) for job_id in shown
    ]
    if num_older := len(entries) - len(shown):
        legend.append(legend_entry(counted(num_older, "older job"), ""))
    is_cut = len(roomy) > MAX_TEXTS
    return [trace], legend, f"Only the {MAX_TEXTS} widest bars have numbers." if is_cut else ""


def _colour(bar: Bar) -> str:
    return OTHER_JOBS_TOKEN if bar.job_id == HIDDEN_JOB_ID else job_colour_token(bar.colour)


def _mark_trace(
    marks: Sequence[TimelineMark], name: str, symbol: str, colour: str, near_ms: int
) -> dict[str, Any]:
    """Return a trace with one mark, the newest, for those of a row that are `near_ms` together."""
    places: dict[tuple[str, int], list[TimelineMark]] = {}
    for mark in marks:
        for row in mark.rows or (CLUSTER_ROW,):
            places.setdefault((row, milliseconds(mark.at) // near_ms), []).append(mark)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [milliseconds(near[-1].at) for near in places.values()],
        "y": [row for row, _ in places],
        "text": [_text(near) for near in places.values()],
        "name": name,
        "marker": {
            "symbol": symbol,
            "size": 9,
            "color": colour,
            "line": {"width": 1.5, "color": "--surface"},
        },
        "hovertemplate": "%{x}<br>%{text}<extra></extra>",
    }


def _text(near: Sequence[TimelineMark]) -> str:
    text = plotly_text(near[-1].text[:160])
    return text if len(near) == 1 else f"{text}<br>and {len(near) - 1} more shortly before"


def _table_rows(bars: Sequence[Bar], marks: Sequence[TimelineMark]) -> list[list[Any]]:
    """Return the newest rows in time order, bars before marks of the same time."""
    newest_bars = sorted(bars, key=attrgetter("start_at"))[-MAX_TABLE_ROWS:]
    newest_marks = sorted(marks, key=attrgetter("at"))[-MAX_TABLE_ROWS:]
    rows = [
        [milliseconds(bar.start_at), bar.row, f"{_name(bar)}, {_duration(bar)}"]
        for bar in newest_bars
    ]
    rows += [
        [
            milliseconds(mark.at),
            _where(mark.rows),
            f"{MARKS[mark.kind][0].capitalize()}: {mark.text}",
        ]
        for mark in newest_marks
    ]
    return sorted(rows, key=itemgetter(0))


def _where(rows: Sequence[str]) -> str:
    shown = ", ".join(rows[:3]) or CLUSTER_ROW
    return shown if len(rows) <= 3 else f"{shown} and {len(rows) - 3} more"


def _name(bar: Bar) -> str:
    return "other people's jobs" if bar.job_id == HIDDEN_JOB_ID else label(bar.job_id, bar.job_name)


def _duration(bar: Bar) -> str:
    minutes, seconds = divmod(round(bar.end_at - bar.start_at), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds} s"
    if hours or minutes:
        text = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
    return f"for {text} so far" if bar.is_open else f"for {text}"
