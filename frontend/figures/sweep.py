"""Figure of a sweep: jobs as lines over parallel axes, one a setting and the last the metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from controlplane.core.values.metrics import is_higher_better
from frontend.figures.parts import Figure, label, legend_entry, plotly_text, table
from jobs.selectors.settings_values import value_text
from jobs.selectors.sweeps import SweepRow, SweepTable

#: Ranks of lines, from the best jobs: share of the jobs, name, colour, width and opacity.
_RANKS = (
    (0.1, "best tenth", "--second", 3.0, 1.0),
    (0.5, "better half", "--accent", 1.5, 0.75),
    (1.0, "the others", "--other-jobs", 1.0, 0.8),
)
#: Ratio of the largest to the smallest number from which an axis is logarithmic.
_LOG_RATIO = 50.0
#: Numbers that are larger are shown as texts.
_PLACED_LIMIT = 1e300
#: Most values that are named on an axis of texts.
_NAMED_LIMIT = 8
_CUT = 18


class _Axis:
    """Places of values on an axis, 0 to 1, and what is written beside it."""

    def __init__(self, title: str, values: Sequence[Any], *, may_be_log: bool = True) -> None:
        self.title = title
        numbers = [value for value in values if _is_number(value)]
        self._is_numeric = bool(numbers) and len(numbers) == len(values)
        self._words: list[str] = []
        if self._is_numeric:
            low, high = min(numbers), max(numbers)
            self._is_log = may_be_log and low > 0 and high / low >= _LOG_RATIO
            self._low, self._high = self._scaled(low), self._scaled(high)
            self.marks = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")]
            if low == high:
                self.marks = [(0.5, f"{low:.4g}")]
        else:
            self._words = sorted({value_text(value) for value in values})
            named = self._words if len(self._words) <= _NAMED_LIMIT else []
            self.marks = [(self._place_of(word), word) for word in named]

    def place(self, value: Any) -> float:
        if not self._is_numeric:
            return self._place_of(value_text(value))
        if self._high == self._low:
            return 0.5
        return (self._scaled(value) - self._low) / (self._high - self._low)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._is_log else float(value)

    def _place_of(self, word: str) -> float:
        if len(self._words) == 1:
            return 0.5
        return self._words.index(word) / (len(self._words) - 1)


def _is_number(value: Any) -> bool:
    """Return whether a value has a place on an axis: whole numbers may be too large for any."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and abs(value) < _PLACED_LIMIT


def sweep_figure(found: SweepTable) -> Figure:
    """Draw the jobs that have a value of the metric; the best ones last and thickest."""
    rows = found.ranked
    axes = [
        _Axis(name, [row.settings[place] for row in rows]) for place, name in enumerate(found.names)
    ]
    axes.append(_Axis(found.metric, [row.best for row in rows], may_be_log=False))
    return {
        "data": _traces(rows, axes) if rows else [],
        "layout": {
            "xaxis": {
                "tickvals": list(range(len(axes))),
                "ticktext": [_short(axis.title) for axis in axes],
                "range": [-0.35, len(axes) - 0.65],
                "showgrid": True,
            },
            "yaxis": {"visible": False, "range": [-0.14, 1.14]},
            "annotations": [
                _mark(place, at, text, len(axes) - 1)
                for place, axis in enumerate(axes)
                for at, text in axis.marks
            ],
        },
        "legend": [legend_entry(name, colour) for _, name, colour, _, _ in _RANKS] if rows else [],
        "table": table(
            ["Job", *found.names, found.metric],
            [
                [f"#{row.job.pk}", *map(value_text, row.settings), f"{row.best:.6g}"]
                for row in reversed(rows)
            ],
        )
        | {"note": f"{'Highest' if is_higher_better(found.metric) else 'Lowest'} is best."},
    }


def _traces(rows: Sequence[SweepRow], axes: Sequence[_Axis]) -> list[dict[str, Any]]:
    """Return one trace a rank: the lines of its jobs, with gaps between them."""
    traces, begin = [], 0
    for share, name, colour, width, opacity in _RANKS:
        end = max(math.ceil(share * len(rows)), begin)
        xs: list[float | None] = []
        ys: list[float | None] = []
        texts: list[str] = []
        for row in rows[begin:end]:
            values = [*row.settings, row.best]
            xs += [*range(len(axes)), None]
            ys += [*(axis.place(v) for axis, v in zip(axes, values, strict=True)), None]
            texts += [_hover(row, axes)] * (len(axes) + 1)
        begin = end
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": xs,
                "y": ys,
                "text": texts,
                "name": name,
                "line": {"color": colour, "width": width},
                "marker": {"color": colour, "size": 5},
                "opacity": opacity,
                "connectgaps": False,
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return traces[::-1]


def _hover(row: SweepRow, axes: Sequence[_Axis]) -> str:
    values = [*map(value_text, row.settings), f"{row.best:.4g}"]
    lines = [f"{axis.title}: {text}" for axis, text in zip(axes, values, strict=True)]
    return "<br>".join(plotly_text(one) for one in (label(row.job.pk, row.job.name), *lines))


def _mark(place: int, at: float, text: str, last: int) -> dict[str, Any]:
    """Write a value beside its axis, or beyond the end of it, where no line is."""
    mark = {
        "x": place,
        "y": at,
        "text": _short(text),
        "showarrow": False,
        "font": {"size": 11, "color": "--text"},
        "bgcolor": "--surface",
    }
    if at not in (0.0, 1.0):
        return mark | {"xanchor": "left", "xshift": 6}
    anchor = {0: "left", last: "right"}.get(place, "center")
    side, shift = ("bottom", 5) if at else ("top", -5)
    return mark | {"xanchor": anchor, "yanchor": side, "yshift": shift}


def _short(text: str) -> str:
    return plotly_text(text if len(text) <= _CUT else text[: _CUT - 1] + "…")
