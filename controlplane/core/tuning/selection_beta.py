"""Check of whether a job can tune the exponent of its selection."""

from __future__ import annotations

from controlplane.core.protocol.selection import SelectionMethod
from controlplane.core.protocol.wire import StopKind


def selection_beta_conflict(
    method: SelectionMethod,
    stop_kind: StopKind,
    *,
    has_end: bool,
    has_controls: bool,
    is_parallel: bool,
) -> str | None:
    """Return why a job cannot tune the exponent of its selection, and the fix; None if it can.

    Args:
        method: `NONE` of a job without a selection.
        has_end: the selection has an `end`.
        has_controls: the selection has control epochs.
    """
    where = "tuning.space.selection_beta"
    if not method.needs_losses:
        return (
            f"{where} needs a selection by losses; give selection.method selective_backprop or "
            "stale_selective_backprop, or leave selection_beta out"
        )
    if is_parallel:
        return (
            f"{where} cannot be searched with tuning.parallel, whose trials are compared by the "
            "losses of their steps; leave out one of them"
        )
    if stop_kind is StopKind.STEPS:
        return (
            f"{where} makes a step no fixed amount of work; stop after epochs or at a metric, or "
            "leave selection_beta out"
        )
    if has_end:
        return (
            f"{where} cannot be searched with selection.end, at which a search would have nothing "
            "to compare any more; leave out one of them"
        )
    if has_controls:
        return (
            f"{where} cannot be searched with selection.control_every, whose epochs choose at "
            "random; leave out one of them"
        )
    return None
