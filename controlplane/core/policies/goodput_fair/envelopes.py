"""Concave envelopes, for methods that take the steepest ascent first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.goodput_fair.rate_tables import Counts, Floats


@dataclass(frozen=True)
class Envelopes:
    """Concave envelopes of N rows of points, from (0, 0) on, with at most H vertices.

    Attributes:
        counts, values: the vertices; the last one is repeated. Shape (N, H).
    """

    counts: Floats
    values: Floats


def envelopes_of(counts: Counts, values: Floats) -> Envelopes:
    """Take the concave envelope of each row, as far as it rises. Shapes (N, G), counts ascending.

    Each row starts at its first point. The next vertex is the furthest of the points with the
    steepest slope from the present one.
    """
    rows, width = np.arange(counts.shape[0]), counts.shape[1]
    at = np.zeros(counts.shape[0], dtype=np.int64)
    vertices = [at]
    for _ in range(width):
        if not rows.size:
            break
        run = counts - counts[rows, at][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(run > 0, (values - values[rows, at][:, None]) / run, 0.0)
        best = slopes.max(axis=1)
        steepest = slopes >= best[:, None] * (1.0 - 1e-9)
        furthest = width - 1 - np.argmax(steepest[:, ::-1], axis=1)
        following = np.where(best > 0.0, furthest, at)
        if np.array_equal(following, at):
            break
        at = following
        vertices.append(at)
    chosen = np.stack(vertices, axis=1)
    return Envelopes(
        np.take_along_axis(counts, chosen, axis=1).astype(float),
        np.take_along_axis(values, chosen, axis=1),
    )
