"""The two classes of curves that losses follow (SLAQ, SoCC 2017), and their fit.

    sublinear:   f(x) = height / (a*u^2 + b*u + 1) + floor     first-order methods
    exponential: f(x) = height * e^(-rate*u) + floor           linear rate and faster

with u = x - `at` >= 0 and no parameter but the floor negative. A point's residual weighs
`DECAY`^age. A fit starts from the older curve or from the best of a grid of shapes, whichever is
closer: height and floor of a shape follow in closed form, so that a grid costs little and no fit
gets stuck.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Base of a residual's weight, raised to the point's age in reports.
DECAY = 0.8

#: Evaluations of one curve in one fit, and its tolerance.
EVALUATIONS, TOLERANCE = 30, 1e-5

#: Start shapes of a fit, where the fitted points lie in 0 <= u <= 1.
_STEPS = np.append(0.0, np.logspace(-1.0, 4.0, 11))
_GRID_A, _GRID_B = (grid.ravel() for grid in np.meshgrid(_STEPS, _STEPS))
_GRID_RATE = np.logspace(-1.0, 2.5, 24)


class CurveClass(StrEnum):
    """Class of an optimizer's convergence."""

    SUBLINEAR = "sublinear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class SublinearCurve:
    """f(x) = height / (a*u^2 + b*u + 1) + floor, u = x - at."""

    height: float
    a: float
    b: float
    floor: float
    at: float

    def __call__(self, x: float) -> float:
        """Return the loss at x, not before `at`."""
        u = max(x - self.at, 0.0)
        return self.height / (self.a * u * u + self.b * u + 1.0) + self.floor

    def moved(self, at: float) -> SublinearCurve:
        """Return the same curve with a later origin."""
        by = max(at - self.at, 0.0)
        c = self.a * by * by + self.b * by + 1.0
        slope = self.b + 2.0 * self.a * by
        return SublinearCurve(self.height / c, self.a / c, slope / c, self.floor, at)


@dataclass(frozen=True, slots=True)
class ExponentialCurve:
    """f(x) = height * e^(-rate*u) + floor, u = x - at."""

    height: float
    rate: float
    floor: float
    at: float

    def __call__(self, x: float) -> float:
        """Return the loss at x, not before `at`."""
        return self.height * math.exp(-self.rate * max(x - self.at, 0.0)) + self.floor

    def moved(self, at: float) -> ExponentialCurve:
        """Return the same curve with a later origin."""
        height = self.height * math.exp(-self.rate * max(at - self.at, 0.0))
        return ExponentialCurve(height, self.rate, self.floor, at)


@dataclass(frozen=True, slots=True)
class Curves:
    """One fit of each class."""

    sublinear: SublinearCurve
    exponential: ExponentialCurve

    def of(self, curve_class: CurveClass) -> SublinearCurve | ExponentialCurve:
        return self.sublinear if curve_class is CurveClass.SUBLINEAR else self.exponential


@dataclass(frozen=True, slots=True)
class _Points:
    """Shifted, scaled points: u from 0 to 1, v 0 at the newest, curves linear in two of four.

    Attributes:
        weights: of the residuals.
        at, width: x = at + width*u.
        bottom, scale: y = bottom + scale*v.
    """

    u: Floats
    v: Floats
    weights: Floats
    at: float
    width: float
    bottom: float
    scale: float

    def inward(self, height: float, floor: float) -> tuple[float, float]:
        """Return height and floor of a curve in v."""
        return height / self.scale, (floor - self.bottom) / self.scale

    def start(
        self, shapes: Floats, warm: tuple[Floats, float, float] | None
    ) -> tuple[int | None, float, float]:
        """Choose the start of a fit.

        Args:
            shapes: values at the points, (shapes, points).
            warm: shape at the points, height and floor of the older curve.

        Returns:
            The row of the best shape (None: the older curve is closer), its height >= 0 and floor.
        """
        weights = self.weights * self.weights
        weights = weights / weights.sum()
        mean, v_mean = shapes @ weights, float(self.v @ weights)
        centred, v_centred = shapes - mean[:, None], self.v - v_mean
        own = np.maximum((centred * centred) @ weights, np.finfo(float).tiny)
        heights = np.maximum(centred @ (weights * v_centred) / own, 0.0)
        left = heights[:, None] * centred - v_centred
        costs = (left * left) @ weights
        row = int(np.argmin(costs))
        if warm is not None:
            shape, height, floor = warm
            left = height * shape + floor - self.v
            if (left * left) @ weights <= costs[row]:
                return None, height, floor
        height = float(heights[row])
        return row, height, v_mean - height * float(mean[row])


def curves_fit(x: Floats, y: Floats, warm: Curves | None) -> Curves:
    """Fit both classes to points in rising order of x, the newest last; at least two of them."""
    spread = float(y.max() - y.min())
    points = _Points(
        u=(x - x[0]) / (x[-1] - x[0]),
        v=(y - y[-1]) / (spread if spread > 0.0 else 1.0),
        weights=DECAY ** np.arange(len(x) - 1, -1, -1, dtype=float),
        at=float(x[0]),
        width=float(x[-1] - x[0]),
        bottom=float(y[-1]),
        scale=spread if spread > 0.0 else 1.0,
    )
    return Curves(
        _sublinear_fit(points, None if warm is None else warm.sublinear.moved(points.at)),
        _exponential_fit(points, None if warm is None else warm.exponential.moved(points.at)),
    )


def _sublinear_fit(points: _Points, warm: SublinearCurve | None) -> SublinearCurve:
    """Fit p0²/(p1²u² + p2²u + 1) + p3: the squares keep height, a and b from falling below 0."""
    u, v, weights = points.u, points.v, points.weights
    u_square = u * u
    older = None
    if warm is not None:
        a, b = warm.a * points.width**2, warm.b * points.width
        shape = 1.0 / (a * u_square + b * u + 1.0)
        older = (shape, *points.inward(warm.height, warm.floor))
    shapes = 1.0 / (_GRID_A[:, None] * u_square + _GRID_B[:, None] * u + 1.0)
    row, height, floor = points.start(shapes, older)
    if row is not None:
        a, b = float(_GRID_A[row]), float(_GRID_B[row])

    def errors(p: Floats) -> Floats:
        below = p[1] * p[1] * u_square + p[2] * p[2] * u + 1.0
        left: Floats = (p[0] * p[0] / below + p[3] - v) * weights
        return left

    def slopes(p: Floats) -> Floats:
        shape = 1.0 / (p[1] * p[1] * u_square + p[2] * p[2] * u + 1.0)
        by_height = 2.0 * p[0] * shape * weights
        by_below = -p[0] * shape * by_height
        return np.array([by_height, p[1] * u_square * by_below, p[2] * u * by_below, weights])

    p = _least_squares(errors, slopes, np.array([*np.sqrt([height, a, b]), floor]))
    return SublinearCurve(
        float(p[0] ** 2) * points.scale,
        float(p[1] ** 2) / points.width**2,
        float(p[2] ** 2) / points.width,
        points.bottom + points.scale * float(p[3]),
        points.at,
    )


def _exponential_fit(points: _Points, warm: ExponentialCurve | None) -> ExponentialCurve:
    """Fit p0²*e^(-p1²u) + p2."""
    u, v, weights = points.u, points.v, points.weights
    older = None
    if warm is not None:
        rate = warm.rate * points.width
        older = (np.exp(-rate * u), *points.inward(warm.height, warm.floor))
    row, height, floor = points.start(np.exp(-_GRID_RATE[:, None] * u), older)
    if row is not None:
        rate = float(_GRID_RATE[row])

    def errors(p: Floats) -> Floats:
        left: Floats = (p[0] * p[0] * np.exp(-p[1] * p[1] * u) + p[2] - v) * weights
        return left

    def slopes(p: Floats) -> Floats:
        falling = 2.0 * p[0] * np.exp(-p[1] * p[1] * u) * weights
        return np.array([falling, -p[0] * p[1] * u * falling, weights])

    p = _least_squares(errors, slopes, np.array([*np.sqrt([height, rate]), floor]))
    return ExponentialCurve(
        float(p[0] ** 2) * points.scale,
        float(p[1] ** 2) / points.width,
        points.bottom + points.scale * float(p[2]),
        points.at,
    )


def _least_squares(
    errors: Callable[[Floats], Floats], slopes: Callable[[Floats], Floats], start: Floats
) -> Floats:
    found = scipy.optimize.leastsq(
        errors,
        start,
        Dfun=slopes,
        col_deriv=True,
        maxfev=EVALUATIONS,
        ftol=TOLERANCE,
        xtol=TOLERANCE,
        full_output=True,
    )[0]
    return found if np.isfinite(found).all() else start
