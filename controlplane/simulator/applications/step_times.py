"""True step times of one application on any placement, interpolated between measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Accelerators of a job on each of its nodes, in the order of the nodes; no zeros.
Placement = tuple[int, ...]

#: Largest measured number of nodes, and of accelerators on each; beyond, the edge counts.
MOST_NODES, MOST_PER_NODE = 16, 4


def packed(num_accelerators: int, per_node: int) -> Placement:
    """Return the placement on as few nodes as possible."""
    whole, rest = divmod(num_accelerators, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def spread(num_accelerators: int, num_nodes: int) -> Placement:
    """Return the most even placement on that many nodes."""
    whole, rest = divmod(num_accelerators, num_nodes)
    return (whole + 1,) * rest + (whole,) * (num_nodes - rest)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured step: its total `step_s`, including `sync_s` for the exchange of gradients."""

    num_nodes: int
    num_accelerators: int
    local_batch: int
    step_s: float
    sync_s: float


class PlacementStepTimes:
    """Seconds of a step and of its exchange, by placement and examples per accelerator."""

    def __init__(
        self,
        placed: Mapping[Placement, Iterable[tuple[int, float, float]]],
        spread: Iterable[Measurement],
    ) -> None:
        """Build the interpolation tables.

        Args:
            placed: placement -> (local batch, step_s, sync_s) for exactly known ones.
            spread: more measurements, of which only the numbers of nodes and accelerators are
                known.
        """
        self._placed = {
            placement: np.array(sorted(rows), dtype=float).T for placement, rows in placed.items()
        }
        self._points, self._seconds = _grid(self._placed, spread)
        self._linear: scipy.interpolate.LinearNDInterpolator | None = None
        self._nearest: scipy.interpolate.NearestNDInterpolator | None = None
        self._local_range = (float(self._points[:, 2].min()), float(self._points[:, 2].max()))

    def seconds(self, placement: Placement, local_batches: NDArray[np.int64]) -> Floats:
        """Return (step_s, sync_s) for each local batch. Shape (2, len(local_batches)).

        A measured placement is interpolated over the local batch, any other over the numbers of
        nodes and accelerators and the local batch, like Pollux' simulator.
        """
        turned = smallest_rotation(placement)
        table = self._placed.get(turned)
        if table is not None:
            local = np.clip(local_batches, table[0, 0], table[0, -1])
            if np.array_equal(local, local_batches):
                return np.stack([np.interp(local, table[0], row) for row in table[1:]])
        return self._spread_seconds(turned, local_batches)

    def _spread_seconds(self, placement: Placement, local_batches: NDArray[np.int64]) -> Floats:
        count = min(sum(placement), MOST_NODES * MOST_PER_NODE)
        nodes = min(max(len(placement), -(-count // MOST_PER_NODE)), MOST_NODES, count)
        local = np.clip(local_batches.astype(float), *self._local_range)
        asked = np.column_stack([np.full(local.size, nodes), np.full(local.size, count), local])
        if self._nearest is None:
            self._nearest = scipy.interpolate.NearestNDInterpolator(
                self._points, self._seconds, rescale=True
            )
            try:
                self._linear = scipy.interpolate.LinearNDInterpolator(self._points, self._seconds)
            except scipy.spatial.QhullError:
                self._linear = None  # too few points for a volume: only the nearest counts
        found = np.full((local.size, 2), np.nan) if self._linear is None else self._linear(asked)
        outside = np.isnan(found[:, 0])
        if outside.any():
            found[outside] = self._nearest(asked[outside])
        return np.asarray(found.T, dtype=float)


def smallest_rotation(placement: Placement) -> Placement:
    """Return the lexicographically smallest rotation of a placement, as rings are symmetric."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def _grid(
    placed: Mapping[Placement, Floats], spread: Iterable[Measurement]
) -> tuple[Floats, Floats]:
    """Average the placed measurements by nodes, accelerators and local batch; add the others."""
    sums: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for placement, table in placed.items():
        for local, step_s, sync_s in table.T:
            key = (len(placement), sum(placement), int(local))
            sums.setdefault(key, []).append((float(step_s), float(sync_s)))
    points: list[tuple[int, int, int]] = sorted(sums)
    seconds = [tuple(np.mean(sums[key], axis=0)) for key in points]
    for row in spread:
        points.append((row.num_nodes, row.num_accelerators, row.local_batch))
        seconds.append((row.step_s, row.sync_s))
    return np.array(points, dtype=float), np.array(seconds, dtype=float)
