"""Figures and tables of `benchmarks.policies`, and their place in the documents."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.policy_cases import DRAWN, LOADS, OURS, TUNING_SEEDS, WORKLOAD_6, Row

DOCS = Path(__file__).resolve().parents[1] / "docs"

#: Page with the tables, the one with a summary of them, and the rows that they are made from.
PAGE, SUMMARY_PAGE = DOCS / "benchmarks.md", DOCS / "policies" / "goodput_fair.md"
STORED = DOCS / "benchmarks-policies.json"

#: Longest line of text on the page.
LINE = 100

#: Lines between which tables stand on a page.
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
    "| equal 30 s | worst at 30 s | resizes | older |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)

_SUMMARY_HEAD = (
    "| workloads | ours over | system | equal measured | equal 30 s |",
    "|---|---|---:|---:|---:|",
)

#: Workload, kinds, load.
World = tuple[str, int, float]

#: Figure -> its world, peer and comparison.
RATIOS: Mapping[str, tuple[World, str, str]] = {
    "ours_over_pollux": ((DRAWN, 1, 1.0), "pollux", "system"),
    "ours_over_pollux_equal_measured": ((DRAWN, 1, 1.0), "pollux", "equal measured"),
    "ours_over_pollux_equal_cost": ((DRAWN, 1, 1.0), "pollux", "equal 30 s"),
    "ours_over_sia": ((DRAWN, 1, 1.0), "sia", "system"),
    "ours_over_sia_equal_measured": ((DRAWN, 1, 1.0), "sia", "equal measured"),
    "ours_over_sia_equal_cost": ((DRAWN, 1, 1.0), "sia", "equal 30 s"),
    "ours_over_sia_three_kinds_equal_cost": ((DRAWN, 3, 1.0), "sia", "equal 30 s"),
}


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
        version: that of the code of our own rows; "" without any.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.version = next((row.version for row in rows if row.case.policy == OURS), "")
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
        return [ours.mean_s / other.mean_s for ours, other in self._pairs(world, peer, comparison)]

    def num_older(self, world: World, peer: str, comparison: str) -> int:
        """Count the ratios whose peer was run with another version of the code than ours."""
        pairs = self._pairs(world, peer, comparison)
        return sum(ours.version != other.version for ours, other in pairs)

    def policies(self, world: World) -> list[str]:
        """Return the policies with rows of a world, ours and its main peers first."""
        return sorted({row.case.policy for row in self.rows if row.case.world == world}, key=_place)

    def _pairs(self, world: World, peer: str, comparison: str) -> list[tuple[Row, Row]]:
        mine, theirs = COMPARISONS[comparison]
        ours, others = self.of(world, OURS, mine), self.of(world, peer, theirs)
        return [(ours[seed], others[seed]) for seed in sorted(ours) if seed in others]


def figures_of(rows: Sequence[Row]) -> dict[str, object]:
    """Compute the figures that the head of `benchmarks.policies` names; null without its rows.

    Raises:
        ValueError: a row is of TUNING_SEEDS.
    """
    if any(row.case.seed in TUNING_SEEDS for row in rows):
        raise ValueError("figures are not made from TUNING_SEEDS; run draws of REPORTING_SEEDS")
    results = Results(rows)
    usual, crowded = (DRAWN, 1, 1.0), (DRAWN, 1, 2.0)
    fitted, true = (results.of(usual, OURS, "measured", how) for how in ("fitted", "true"))
    values = {
        **{name: results.ratios(*asked) for name, asked in RATIOS.items()},
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
    return {
        **figures,
        "num_draws": {**counts, "worst_fairness": len(ours)},
        "num_older": {name: results.num_older(*asked) for name, asked in RATIOS.items()},
    }


def _rounded(combine: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return round(combine(values), 4) if values else None


def tables(rows: Sequence[Row]) -> list[str]:
    """Return a table for each world in Markdown: means over the draws that each policy ran."""
    results = Results([row for row in rows if row.case.knowledge == "fitted"])
    lines: list[str] = []
    for world in results.worlds:
        lines += ["", f"{_name(world)}:", "", *_HEAD]
        lines += [_line(results, world, policy) for policy in results.policies(world)]
    return lines


def summary(rows: Sequence[Row]) -> list[str]:
    """Return one table in Markdown: ours over each peer in each world, with numbers of draws."""
    results = Results(rows)
    lines = [*_SUMMARY_HEAD]
    for world in results.worlds:
        for peer in results.policies(world):
            ratios = [results.ratios(world, peer, comparison) for comparison in COMPARISONS]
            if peer != OURS and any(ratios):
                cells = [f"{fmean(found):.3f} ({len(found)})" if found else "-" for found in ratios]
                lines.append(f"| {' | '.join((_name(world), peer, *cells))} |")
    return lines


def _name(world: World) -> str:
    workload, kinds, load = world
    name = "workload-6" if workload == WORKLOAD_6 else f"{load:g} times the published load"
    return f"{name}, {'one kind' if kinds == 1 else 'three kinds'}"


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
    cells.append(str(sum(row.version != results.version for found in by_cost for row in found)))
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
    counts, older = figures.pop("num_draws"), figures.pop("num_older")
    assert isinstance(counts, dict)
    assert isinstance(older, dict)
    shown = ["| figure | value | draws | older |", "|---|---:|---:|---:|"]
    for name, value in figures.items():
        base = name.removesuffix("_worst_draw")
        cells = ("not run" if value is None else value, counts.get(base, 0), older.get(base, 0))
        shown.append(f"| `{name}` | {' | '.join(map(str, cells))} |")
    versions = textwrap.wrap(f"Version of the code: {named}.", LINE)
    return [BEGIN, *versions, "", *shown, *tables(rows), "", END]


def summary_make(rows: Sequence[Row]) -> list[str]:
    """Return the part of the policy's page between its markers."""
    return [BEGIN, *summary(rows), "", END]


def page_write(rows: Sequence[Row]) -> None:
    """Store the rows beside the pages, and replace what stands between the markers of both."""
    rows_write(rows, STORED)
    for page, lines in ((PAGE, page_make(rows)), (SUMMARY_PAGE, summary_make(rows))):
        before, rest = page.read_text().split(BEGIN)
        after = rest.split(END)[1]
        page.write_text(before + "\n".join(lines) + after)
