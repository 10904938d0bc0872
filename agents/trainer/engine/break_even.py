"""The guard and the control arm of a job that selects, in one membership of a trainer."""

from __future__ import annotations

import math
from dataclasses import replace

from agents.trainer.model.progress import NO_GUARD, Activity, Progress
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.selection.cost import ExampleTimes
from controlplane.core.selection.guard import NOT_MEASURED, EpochFall, GuardVerdict, control_verdict


class BreakEven:
    """Decides whether a selection by losses still pays; the evidence is in the progress.

    Every trainer decides the same: losses and the leader's times are the same in all of them.

    Attributes:
        times: measured by the leader and not sent to all trainers yet.
    """

    def __init__(
        self,
        spec: SelectionSpec,
        generation: int,
        *,
        is_leader: bool,
        tunes_selection: bool = False,
    ) -> None:
        """Begin a membership, whose first pass and first step are not measured.

        Args:
            tunes_selection: trials choose other shares, so the evidence begins anew after them.
        """
        self._spec = spec
        self._generation = generation
        self._is_leader = is_leader
        self._tunes_selection = tunes_selection
        self._begun: set[Activity] = set()
        self.times = NOT_MEASURED

    def after_batch(
        self,
        progress: Progress,
        sent: ExampleTimes,
        num_examples: int,
        seconds: float,
        chosen: int | None = None,
    ) -> Progress:
        """Add the times that the leader has sent to the guard; as the leader, take this batch's.

        Args:
            progress: the cursor before it is moved past the batch.
            chosen: of a pass that has computed losses; None: another batch.
        """
        if self._is_leader:
            self.times = self._times_of(progress.activity, seconds / num_examples)
        if self._tunes_selection and progress.is_trying:
            return replace(progress, guard=NO_GUARD)
        candidates = 0 if chosen is None else num_examples
        guard = progress.guard.after_batch(
            self._spec, self._generation, sent, candidates=candidates, chosen=chosen or 0
        )
        return replace(progress, guard=guard)

    def _times_of(self, activity: Activity, example_s: float) -> ExampleTimes:
        is_first = activity not in self._begun
        self._begun.add(activity)
        if is_first or activity is Activity.VALIDATE:
            return NOT_MEASURED
        if activity is Activity.SELECT:
            return ExampleTimes(loss_s=example_s, step_s=0.0)
        return ExampleTimes(loss_s=0.0, step_s=example_s)

    def verdict(self, progress: Progress) -> GuardVerdict | None:
        """Return that selection does not pay, in an epoch that selects; None if it does.

        Control epochs are compared with the first step of each epoch.
        """
        if progress.selection_end is not None:
            return None
        if self._spec.guard and progress.guard.verdict is not None:
            return progress.guard.verdict
        if self._spec.control_every is None or progress.trained:
            return None
        rows = [
            EpochFall(row.logs.get("val_loss", math.nan), row.logs.get("selected_share"))
            for row in progress.history
        ]
        return control_verdict(self._spec, rows, progress.guard.quotient)
