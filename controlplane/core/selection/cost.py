"""Cost of a selection of examples, compared with training on all of them.

Seconds of both kinds are per example: an epoch of N candidates takes N·step_s if all are trained
on, and N·(loss_s·a + step_s·s) if the losses of the share a are computed and the share s is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec


@dataclass(frozen=True, slots=True)
class ExampleTimes:
    """Seconds per example: of a selection pass that computes losses, and of a training step."""

    loss_s: float
    step_s: float

    @property
    def backward_per_forward(self) -> float:
        """Time of a backward pass, in forward passes (r)."""
        return self.step_s / self.loss_s - 1.0


def relative_cost(spec: SelectionSpec, times: ExampleTimes, share: float) -> float:
    """Return the time of an epoch that trains on `share` of its candidates, over a plain one."""
    is_stale = spec.method is SelectionMethod.STALE_SELECTIVE_BACKPROP
    analysed = 1.0 / spec.stale_every if is_stale else float(spec.needs_losses)
    return analysed * times.loss_s / times.step_s + share


def predicted_speed_up(spec: SelectionSpec, times: ExampleTimes | None) -> float | None:
    """Return how many times faster than a plain epoch one that selects is expected to be.

    Args:
        times: None if not measured, which matters only to a method that computes losses.
    """
    if not spec.needs_losses:
        return 1.0 / spec.expected_share
    return None if times is None else 1.0 / relative_cost(spec, times, spec.expected_share)


def expected_cost(spec: SelectionSpec, times: ExampleTimes | None) -> float:
    """Return the expected time of an epoch that selects, over a plain one.

    Without `times` the selection passes are left out.
    """
    speed_up = predicted_speed_up(spec, times)
    return spec.expected_share if speed_up is None else 1.0 / speed_up


@dataclass(frozen=True, slots=True)
class SelectionTotals:
    """Sums over steps and selection passes of epochs that select, on the same accelerators."""

    candidates: int
    trained: int
    pass_s: float
    step_s: float


def measured_speed_up(parts: list[SelectionTotals]) -> float | None:
    """Return how many times longer plain training on all candidates would have taken.

    Plain training is taken to need the time of the part's own steps per example, so a job may
    change its accelerators between the parts. None without a step and the time of a pass.
    """
    used = [part for part in parts if part.trained and part.candidates and part.pass_s > 0.0]
    plain_s = sum(part.candidates * part.step_s / part.trained for part in used)
    seconds = sum(part.pass_s + part.step_s for part in used)
    return plain_s / seconds if seconds > 0.0 else None
