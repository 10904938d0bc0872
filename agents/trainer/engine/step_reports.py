"""Reports of finished steps and epochs, and of phases.

Steps are aggregated into STEPS reports: two a second, or fewer if the control plane asks for that,
and each membership's first step. Phases are reported as seldom. An epoch is a line in the job's
log.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable
from dataclasses import replace

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.model.history import EpochRow
from agents.trainer.model.recent_steps import StepsDone
from agents.trainer.step.outcomes import StepOutcome
from controlplane.core.estimates.noise_scale import GradientNoise
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind


class StepReports:
    """The leader's step statistics of one membership; a report is of steps of one batch size."""

    def __init__(
        self,
        reports: ReportWriter,
        learning_rate: Callable[[], float | None],
        report_every_s: Callable[[], float],
    ) -> None:
        """Begin a membership.

        Args:
            learning_rate: called at each report; returns the rate after the reported steps.
            report_every_s: called after each step; returns the time between two reports.
        """
        self._reports = reports
        self._learning_rate = learning_rate
        self._report_every_s = report_every_s
        self._reported_at = -math.inf  # the first step is reported at once: it ends the resize
        self._is_nonfinite: Nonfinite | None = None
        self._clear()

    def _clear(self) -> None:
        self._done: StepsDone | None = None
        self._losses = self._last_loss = 0.0
        self._busy: dict[int, tuple[float, int]] = {}
        self._noises: list[GradientNoise] = []
        self._was_nonfinite: Nonfinite | None = None

    def add(self, done: StepsDone, outcome: StepOutcome, found: Nonfinite | None = None) -> None:
        """Record a finished step.

        Args:
            found: since which step the loss is not finite; None if it is.
        """
        if self._done is not None and done.batch_size != self._done.batch_size:
            self.flush()
        self._done = done if self._done is None else self._done.joined(done)
        self._losses += done.loss
        self._last_loss = done.loss
        if found is None and self._is_nonfinite is not None:
            self._was_nonfinite = replace(self._is_nonfinite, until_step=done.last_step)
        self._is_nonfinite = found
        for slot, value in outcome.busy_s.items():
            if value > 0.0:
                total, count = self._busy.get(slot, (0.0, 0))
                self._busy[slot] = (total + value, count + 1)
        if outcome.noise is not None:
            self._noises.append(outcome.noise.at_batch_size(done.examples, done.batch_size))
        if time.monotonic() - self._reported_at >= self._report_every_s():
            self.flush()

    def flush(self) -> None:
        """Report the steps recorded since the last report."""
        done = self._done
        if done is None:
            return
        mean_loss = self._losses / (done.last_step - done.first_step + 1)
        self._reports.write(
            ReportKind.STEPS,
            done._replace(loss=mean_loss).report()
            | {
                "last_loss": self._last_loss if math.isfinite(self._last_loss) else None,
                "nonfinite": encode(self._is_nonfinite or self._was_nonfinite),
                "learning_rate": self._learning_rate(),
                "compute_s": {
                    str(slot): total / count for slot, (total, count) in self._busy.items()
                },
                "noise": self._mean_noise(),
            },
        )
        self._reports.last_step = done.last_step
        self._reported_at = time.monotonic()
        self._clear()

    def _mean_noise(self) -> dict[str, float] | None:
        """Average the noise over the steps that measured it; None if none did."""
        if not self._noises:
            return None
        return {
            "sqr": sum(noise.sqr for noise in self._noises) / len(self._noises),
            "var": sum(noise.var for noise in self._noises) / len(self._noises),
        }


class PhaseReports:
    """The leader's phases after the first one of a membership, without those that soon end."""

    def __init__(
        self, reports: ReportWriter, phase: str, report_every_s: Callable[[], float]
    ) -> None:
        """Begin with a phase that has been reported."""
        self._reports = reports
        self._report_every_s = report_every_s
        self._phase = self._reported = phase
        self._reported_at = -math.inf

    def begin(self, phase: str) -> None:
        """Begin a phase; it is reported now, or by `settle`."""
        self._phase = phase
        self.settle()

    def settle(self) -> None:
        """Report the present phase if it is time for that. Called after each batch."""
        now = time.monotonic()
        if self._phase == self._reported or now - self._reported_at < self._report_every_s():
            return
        self._reports.phase(self._phase)
        self._reported, self._reported_at = self._phase, now


def epoch_line(
    row: EpochRow, stop: StopCondition, num_accelerators: int, at: datetime.datetime
) -> str:
    """Describe a finished epoch: when it ended, its metrics, its time and its speed."""
    stamp = at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_by_steps = stop.kind is StopKind.STEPS
    epoch = f"epoch {row.epoch + 1}" + ("" if is_by_steps else f"/{stop.limit}")
    step = f"step {row.step}" + (f"/{stop.limit}" if is_by_steps else "")
    facts = [f"{name} {value:.6g}" for name, value in row.logs.items()]
    facts += [
        f"{row.seconds:.2f} s",
        f"{row.examples_per_s:,.0f} examples/s",
        f"{num_accelerators} accelerator" + "s" * (num_accelerators != 1),
    ]
    return f"{stamp} {epoch}, {step}: {', '.join(facts)}"
