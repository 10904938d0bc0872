"""Figures and tables of `benchmarks.policies`, and their place in the documents."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.policy_cases import DRAWN, LOADS, OURS, TUNING_SEEDS, WORKLOAD_6, Row

DOCS = Path(__file__).resolve().parents[1] / "docs"

#: Page with the tables, and the rows that they are made from.
PAGE, STORED = DOCS / "benchmarks.md", DOCS / "benchmarks-policies.json"

#: Longest line of text on the page.
LINE = 100

#: Lines between which the tables stand on the page.
BEGIN = "<!-- benchmarks.policies: written by python -m benchmarks.policies --write -->"
END = "<!-- benchmarks.policies: end -->"

#: Comparison -> costs of ours and of the peer.
COMPARISONS: Mapping[str, tuple[str, str]] = {
    "system": ("measured", "30 s"),
    "equal measured": ("measured", "measured"),
    "equal 30 s": ("30 s", "30 s"),
}

_HEAD = (
    "| policy | draws | mean at 30 s | mean, measured | ours over it: system | equal measured "
    "| equal 30 s | worst at 30 s | resizes |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
)

#: Workload, kinds, load.
World = tuple[str, int, float]


def rows_write(rows: Sequence[Row], path: Path) -> None:
    """Write rows as JSON, a line each, replacing the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row.to_dict()) for row in rows)
    part = path.with_suffix(".part")
    part.write_text(f"[\n{lines}\n]\n")
    part.replace(path)


class Results:
    """Rows by world, policy and cost.

    Attributes:
        worlds: those of the rows, drawn workloads first.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.worlds = sorted(
            {row.case.world for row in rows},
            key=lambda world: (world[0], world[1], LOADS.index(world[2])),
        )
        self._by_key = {
            (*c.world, c.policy, c.cost, c.knowledge, c.seed): row
            for row in rows
            for c in [row.case]
        }

    def of(self, world: World, policy: str, cost: str, knowledge: str = "fitted") -> dict[int, Row]:
        """Return the rows of a policy by seed."""
        asked = (*world, policy, cost, knowledge)
        return {key[-1]: row for key, row in self._by_key.items() if key[:-1] == asked}

    def ratios(self, world: World, peer: str, comparison: str) -> list[float]:
        """Return ours over a peer by mean completion time, of each draw that both have run."""
        mine, theirs = COMPARISONS[comparison]
        ours, others = self.of(world, OURS, mine), self.of(world, peer, theirs)
        return [ours[seed].mean_s / others[seed].mean_s for seed in sorted(ours) if seed in others]


def figures_of(rows: Sequence[Row]) -> dict[str, object]:
    """Compute the figures that the head of `benchmarks.policies` names; null without its rows.

    Raises:
        ValueError: a row is of TUNING_SEEDS.
    """
    if any(row.case.seed in TUNING_SEEDS for row in rows):
        raise ValueError("figures are not made from TUNING_SEEDS; run draws of REPORTING_SEEDS")
    results = Results(rows)
    usual, mixed, crowded = (DRAWN, 1, 1.0), (DRAWN, 3, 1.0), (DRAWN, 1, 2.0)
    fitted, true = (results.of(usual, OURS, "measured", how) for how in ("fitted", "true"))
    values = {
        "ours_over_pollux": results.ratios(usual, "pollux", "system"),
        "ours_over_pollux_equal_cost": results.ratios(usual, "pollux", "equal 30 s"),
        "ours_over_sia": results.ratios(usual, "sia", "system"),
        "ours_over_sia_equal_cost": results.ratios(usual, "sia", "equal 30 s"),
        "ours_over_sia_three_kinds_equal_cost": results.ratios(mixed, "sia", "equal 30 s"),
        "resizes_per_job_overload": [
            row.resizes for row in results.of(crowded, OURS, "30 s").values()
        ],
        "regret_over_oracle": [
            fitted[seed].mean_s / true[seed].mean_s - 1.0 for seed in sorted(fitted) if seed in true
        ],
    }
    figures: dict[str, object] = {name: _rounded(fmean, found) for name, found in values.items()}
    for peer in ("pollux", "sia"):
        name = f"ours_over_{peer}_equal_cost"
        figures[f"{name}_worst_draw"] = _rounded(max, values[name])
    ours = [row.fairness for row in rows if row.case.policy == OURS and row.case.workload == DRAWN
            and row.case.knowledge == "fitted"]  # fmt: skip
    figures["worst_fairness"] = _rounded(max, ours)
    counts = {name: len(found) for name, found in values.items()}
    return {**figures, "num_draws": {**counts, "worst_fairness": len(ours)}}


def _rounded(combine: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return round(combine(values), 4) if values else None


def tables(rows: Sequence[Row]) -> list[str]:
    """Return a table for each world in Markdown: means over the draws that each policy ran."""
    results = Results([row for row in rows if row.case.knowledge == "fitted"])
    lines: list[str] = []
    for world in results.worlds:
        workload, kinds, load = world
        name = "workload-6" if workload == WORKLOAD_6 else f"{load:g} times the published load"
        lines += ["", f"{name}, {'one kind' if kinds == 1 else 'three kinds'}:", "", *_HEAD]
        policies = {row.case.policy for row in rows if row.case.world == world}
        lines += [_line(results, world, policy) for policy in sorted(policies, key=_place)]
    return lines


def _place(policy: str) -> tuple[int, str]:
    first = (OURS, "pollux", "sia")
    return (first.index(policy) if policy in first else len(first), policy)


def _line(results: Results, world: World, policy: str) -> str:
    by_cost = [list(results.of(world, policy, cost).values()) for cost in ("30 s", "measured")]
    flat = by_cost[0]
    cells = [policy, "/".join(str(len(found)) for found in by_cost)]
    cells += [_mean([row.mean_s for row in found], ",.0f") for found in by_cost]
    cells += [
        "" if policy == OURS else _mean(results.ratios(world, policy, comparison), ".3f")
        for comparison in COMPARISONS
    ]
    cells.append(f"{max(row.fairness for row in flat):.2f}" if flat else "-")
    cells.append(_mean([row.resizes for row in flat], ".1f"))
    return f"| {' | '.join(cells)} |"


def _mean(values: Sequence[float], how: str) -> str:
    return f"{fmean(values):{how}}" if values else "-"


def page_make(rows: Sequence[Row]) -> list[str]:
    """Return the part of the page between its markers."""
    policies: dict[str, dict[str, None]] = {}
    for row in sorted(rows, key=lambda row: _place(row.case.policy)):
        policies.setdefault(row.version, {})[row.case.policy] = None
    named = ", ".join(f"{one} ({', '.join(names)})" for one, names in policies.items()) or "none"
    figures = figures_of(rows)
    counts = figures.pop("num_draws")
    assert isinstance(counts, dict)
    shown = ["| figure | value | draws |", "|---|---:|---:|"]
    for name, value in figures.items():
        count = counts.get(name.removesuffix("_worst_draw"), 0)
        shown.append(f"| `{name}` | {'not run' if value is None else value} | {count} |")
    versions = textwrap.wrap(f"Version of the code: {named}.", LINE)
    return [BEGIN, *versions, "", *shown, *tables(rows), "", END]


def page_write(rows: Sequence[Row]) -> None:
    """Store the rows beside the page, and replace what stands between its markers."""
    rows_write(rows, STORED)
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + "\n".join(page_make(rows)) + after)
