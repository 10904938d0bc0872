"""What-if replays over one history side by side: figures, costs and which is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from controlplane.core.values.explanations import counted
from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.models import Replay, ReplayStatus
from jobs.selectors.readings import HOUR_S
from jobs.selectors.usage import accelerator_prices

#: Highest price of an hour that a comparison takes.
PRICE_LIMIT = 1e6

#: Least relative difference of two figures that counts.
_NOTICED = 0.005

Prices = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class ReplayMeasure:
    """A figure of replays; its unit is "s", "%" or empty."""

    key: str
    label: str
    unit: str
    is_higher_better: bool = False


MEASURES = (
    ReplayMeasure("mean_jct_s", "Mean completion time", "s"),
    ReplayMeasure("median_jct_s", "Median completion time", "s"),
    ReplayMeasure("p90_jct_s", "90th percentile of completion times", "s"),
    ReplayMeasure("mean_queueing_s", "Mean time until the first step", "s"),
    ReplayMeasure("median_queueing_s", "Median time until the first step", "s"),
    ReplayMeasure("makespan_s", "Until the last job was done", "s"),
    ReplayMeasure("cost", "Cost of all accelerators until then", ""),
    ReplayMeasure("utilisation", "Accelerators in use", "%", is_higher_better=True),
    ReplayMeasure("resizes_per_job", "Resizes of a job", ""),
    ReplayMeasure("worst_fairness", "Worst finish-time fairness", ""),
)
_TIER_MEASURES = tuple(m for m in MEASURES if m.key in ("mean_jct_s", "mean_queueing_s"))


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one column.

    Attributes:
        factor: over the history replayed unchanged; None: not known, or of another column.
        verdict: "better", "worse" or "same" than that; empty without a factor.
        is_best: whether it is the best of all replays, and not all are the same.
    """

    value: float | None
    factor: float | None = None
    verdict: str = ""
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """A figure as recorded, replayed unchanged, and under each scenario.

    Attributes:
        jobs: the jobs that it is of, such as "2 idle jobs"; empty: all.
    """

    measure: ReplayMeasure
    jobs: str
    recorded: Cell
    as_is: Cell
    scenarios: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class ComparedReplays:
    """Replays over one history, oldest first.

    Attributes:
        prices: of an hour, by number of the replay and kind.
        result: of the first replay that is done; None: none is.
    """

    replays: Sequence[Replay]
    prices: Prices
    result: Mapping[str, Any] | None
    rows: Sequence[MeasureRow]

    @property
    def first(self) -> Replay:
        return self.replays[0]

    @property
    def is_live(self) -> bool:
        """True until all replays have ended."""
        return any(replay.is_live for replay in self.replays)


def replay_summaries() -> QuerySet[Replay]:
    """Return all replays with those who asked for them, without results."""
    return Replay.objects.select_related("requested_by").defer("result")


def replays_compared(replay: Replay) -> QuerySet[Replay]:
    """Return the replays over the same history, this one included."""
    return Replay.objects.filter(start_at=replay.start_at, end_at=replay.end_at)


def comparison_of(replay: Replay, given: Mapping[str, str]) -> ComparedReplays:
    """Compare a replay with those over the same history.

    Args:
        given: prices of an hour by `REPLAY:KIND`, such as "13:cpu"; others are those of now.

    Raises:
        InvalidInputError: a price is not a number within the bounds.
        NotFoundError: the replay was deleted since it was read.
    """
    replays = list(replays_compared(replay).select_related("requested_by").order_by("id"))
    if replay not in replays:
        raise NotFoundError("There is no such replay.")
    present = accelerator_prices()
    prices: Prices = {
        one.pk: {
            kind: price
            for kind in one.accelerators
            if (price := _price(given, f"{one.pk}:{kind}", present.get(kind))) is not None
        }
        for one in replays
    }
    results = [row.result if row.status == ReplayStatus.DONE else {} for row in replays]
    first = next((result for result in results if result), None)
    rows = [] if first is None else _rows(first, results, _costs(replays, first, prices))
    return ComparedReplays(replays, prices, first, rows)


def _price(given: Mapping[str, str], name: str, default: float | None) -> float | None:
    text = given.get(name, "").strip()
    if not text:
        return default
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0.0 <= price <= PRICE_LIMIT:
        text = f"Give a number from 0 to {PRICE_LIMIT:,.0f} for {name}."
        raise InvalidInputError.of(price=text)
    return price


def _costs(
    replays: Sequence[Replay], first: Mapping[str, Any], prices: Prices
) -> list[float | None]:
    """Return the costs as recorded, replayed unchanged, and of each replay."""
    size, present = first["as_is_accelerators"], accelerator_prices()
    costs = [cluster_cost(size, first[name], present) for name in ("recorded", "as_is")]
    return costs + [
        cluster_cost(row.accelerators, row.result.get("changed", {}), prices[row.pk])
        for row in replays
    ]


def cluster_cost(
    accelerators: Mapping[str, int], figures: Mapping[str, Any], prices: Mapping[str, float]
) -> float | None:
    """Return the cost of a whole cluster until the last job is done.

    Args:
        figures: of a replay.
        prices: of an hour, by kind; without one of each kind, the cost is None.
    """
    seconds = figures.get("makespan_s")
    if seconds is None or not prices.keys() >= accelerators.keys():
        return None
    hourly = sum(number * prices[kind] for kind, number in accelerators.items())
    return float(hourly * seconds / HOUR_S)


def _rows(
    first: Mapping[str, Any], results: Sequence[Mapping[str, Any]], costs: Sequence[float | None]
) -> list[MeasureRow]:
    rows = []
    for measure in MEASURES:
        columns = [first["recorded"], first["as_is"], *(r.get("changed", {}) for r in results)]
        values = [column.get(measure.key) for column in columns]
        if measure.key == "cost":
            values = list(costs)
        if any(value is not None for value in values):
            rows.append(_row(measure, "", values))
    for number, tier in enumerate(first.get("tiers", ())):
        jobs = counted(tier["num_jobs"], f"{tier['tier']} job")
        changed = [r["tiers"][number]["changed"] if r else {} for r in results]
        for measure in _TIER_MEASURES:
            columns = [tier["recorded"], tier["as_is"], *changed]
            rows.append(_row(measure, jobs, [column.get(measure.key) for column in columns]))
    return rows


def _row(measure: ReplayMeasure, jobs: str, values: Sequence[float | None]) -> MeasureRow:
    """Build a row from the values of the columns."""
    recorded, as_is, *changed = values
    best = _best([as_is, *changed], is_higher_better=measure.is_higher_better)
    return MeasureRow(
        measure,
        jobs,
        Cell(recorded),
        Cell(as_is, is_best=_is_same(as_is, best)),
        [_cell(measure, as_is, value, best) for value in changed],
    )


def _best(values: Sequence[float | None], *, is_higher_better: bool) -> float | None:
    """Return the best value; None if there are not two that differ."""
    known = [value for value in values if value is not None]
    if not known or all(_is_same(value, known[0]) for value in known):
        return None
    return max(known) if is_higher_better else min(known)


def _cell(
    measure: ReplayMeasure, before: float | None, value: float | None, best: float | None
) -> Cell:
    if value is None or not before:
        return Cell(value, is_best=_is_same(value, best))
    is_better = (value > before) is measure.is_higher_better
    verdict = "same" if _is_same(value, before) else "better" if is_better else "worse"
    return Cell(value, value / before, verdict, _is_same(value, best))


def _is_same(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return False
    return abs(value - other) <= _NOTICED * max(abs(value), abs(other))
