"""Forecast of a job's loss: SLAQ's two classes of curves (SoCC 2017), fitted as the job trains.

Each report fits both classes to the last points, starting from the older fit (`loss_curves`); the
class is selected by how well earlier fits predicted later losses. x counts useful examples, or
iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.estimates.loss_curves import CurveClass, Curves, Floats, curves_fit

#: Largest number of points fitted, the newest ones, and least number required.
POINTS_LIMIT, POINTS_LEAST = 100, 5

#: Age in reports of the fit whose prediction is compared with the newest loss ...
FORESEEN_REPORTS = 3

#: ... weight of the newest comparison ...
JUDGEMENT_WEIGHT = 0.3

#: ... and factor by which the exponential curve's error must be smaller for it to be selected, as
#: most optimizers are first-order methods.
EXPONENTIAL_CLOSER = 2.0


@dataclass(frozen=True, slots=True)
class LossFit:
    """A `LossForecast`, with the state from which the next fit continues.

    Attributes:
        curves: the newest fits.
        last_x: x of the newest point.
        num_points: reports so far, including those that are no longer fitted.
        normaliser: the largest change between two reports so far, > 0.
        is_positive: whether no loss was ever negative, so that none is predicted.
        earlier: the previous fits, oldest first, at most `FORESEEN_REPORTS`.
        errors: moving average of the prediction errors of earlier fits by class; None: no
            comparison.
    """

    curves: Curves
    last_x: float
    num_points: int
    normaliser: float
    is_positive: bool
    earlier: tuple[Curves, ...] = ()
    errors: tuple[float, float] | None = None

    @property
    def curve_class(self) -> CurveClass:
        if self.errors is None or self.errors[0] <= EXPONENTIAL_CLOSER * self.errors[1]:
            return CurveClass.SUBLINEAR
        return CurveClass.EXPONENTIAL

    def loss(self, examples: float) -> float:
        """Predict the loss `examples` after the newest point; 0: the curve there, without noise."""
        value = self.curves.of(self.curve_class)(self.last_x + max(examples, 0.0))
        return max(value, 0.0) if self.is_positive else value


@dataclass(frozen=True, slots=True)
class NoForecast:
    """A `LossForecast` of a loss that is nan or infinite, which no work lowers.

    No history is needed: `num_points` is more than any policy requires.
    """

    num_points: int = 1_000_000
    normaliser: float = 1.0

    def loss(self, examples: float) -> float:  # noqa: ARG002  the same after any number
        """Return 0, independently of `examples`."""
        return 0.0


def loss_fit(points: Sequence[tuple[float, float]], warm: LossFit | None = None) -> LossFit | None:
    """Fit the losses of a job; None while there are fewer than `POINTS_LEAST` points.

    Args:
        points: (x, loss) in the order of x, all or the last `POINTS_LIMIT`; call once per report.
        warm: result of the last report; makes the fit faster and holds the errors of earlier fits.

    Raises:
        ValueError: x does not rise, or something is not finite.
    """
    if len(points) < POINTS_LEAST:
        return None
    recent = np.array(points[-POINTS_LIMIT:], dtype=float)
    x, y = recent[:, 0], recent[:, 1]
    if not np.isfinite(recent).all() or not (np.diff(x) > 0.0).all():
        raise ValueError("points must be finite and in rising order of x, each x once")
    changes = np.abs(np.diff(y))
    if warm is None:
        normaliser, num_points = float(changes.max()), len(points)
        earlier, errors = _rehearsed(x, y)
        curves = curves_fit(x, y, earlier[-1] if earlier else None)
        is_positive = bool((y >= 0.0).all())
    else:
        is_new = x > warm.last_x
        num_points = warm.num_points + int(is_new.sum())
        normaliser = max(warm.normaliser, float(changes[is_new[1:]].max(initial=0.0)))
        earlier = (*warm.earlier, warm.curves)[-FORESEEN_REPORTS:]
        errors = _judged(warm.errors, earlier[0], float(x[-1]), float(y[-1]))
        curves = curves_fit(x, y, warm.curves)
        is_positive = warm.is_positive and bool((y >= 0.0).all())
    return LossFit(
        curves,
        float(x[-1]),
        num_points,
        max(normaliser, np.finfo(float).tiny),
        is_positive,
        earlier,
        errors,
    )


def _rehearsed(x: Floats, y: Floats) -> tuple[tuple[Curves, ...], tuple[float, float] | None]:
    """Fit without the last fifth of the points and compare with these, where there are enough."""
    num_left = len(x) - max(1, len(x) // 5)
    if num_left < POINTS_LEAST:
        return (), None
    curves = curves_fit(x[:num_left], y[:num_left], None)
    errors = None
    for at, loss in zip(x[num_left:], y[num_left:], strict=True):
        errors = _judged(errors, curves, float(at), float(loss))
    return (curves,), errors


def _judged(
    before: tuple[float, float] | None, predicted: Curves, x: float, loss: float
) -> tuple[float, float]:
    now = abs(predicted.sublinear(x) - loss), abs(predicted.exponential(x) - loss)
    if before is None:
        return now
    return (
        before[0] + JUDGEMENT_WEIGHT * (now[0] - before[0]),
        before[1] + JUDGEMENT_WEIGHT * (now[1] - before[1]),
    )
