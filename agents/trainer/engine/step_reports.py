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
from agents.trainer.model.progress import NO_PASSES, Progress, SelectionPasses
from agents.trainer.step.stepper import StepOutcome
from controlplane.core.estimates.noise_scale import GradientNoise
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.protocol.wire import REPORT_EVERY_S, ReportKind, StopCondition, StopKind


class StepReports:
    """The leader's step statistics of one membership; a report is of steps of one batch size."""

    def __init__(
        self,
        reports: ReportWriter,
        num_accelerators: int,
        learning_rate: Callable[[], float | None],
        report_every_s: Callable[[], float] = lambda: REPORT_EVERY_S,
    ) -> None:
        """Begin a membership.

        Args:
            learning_rate: called at each report; returns the rate after the reported steps.
            report_every_s: called after each step; returns the time between two reports.
        """
        self._reports = reports
        self._batch_size = 0
        self._learning_rate = learning_rate
        self._report_every_s = report_every_s
        self._num_accelerators = num_accelerators
        self._reported_at = -math.inf  # the first step is reported at once: it ends the resize
        self._is_nonfinite: Nonfinite | None = None
        self._clear()

    def _clear(self) -> None:
        self._num_steps = 0
        self._examples = 0
        self._candidates = 0
        self._analysed = 0
        self._pass_s = 0.0
        self._seconds = 0.0
        self._losses = self._last_loss = 0.0
        self._step = 0
        self._epoch = 0
        self._busy: dict[int, tuple[float, int]] = {}
        self._noises: list[GradientNoise] = []
        self._was_nonfinite: Nonfinite | None = None

    def add(
        self,
        progress: Progress,
        examples: int,
        seconds: float,
        outcome: StepOutcome,
        batch_size: int,
        passed: SelectionPasses = NO_PASSES,
    ) -> None:
        """Record a finished step (`progress` is already past it).

        Args:
            batch_size: examples of a full batch, which the last one of an epoch may not be.
            seconds: of the step and of the selection passes before it.
            passed: these selection passes.
        """
        if batch_size != self._batch_size:
            self.flush()
            self._batch_size = batch_size
        self._num_steps += 1
        self._candidates += passed.candidates
        self._analysed += passed.analysed
        self._pass_s += passed.seconds
        self._examples += examples
        self._seconds += seconds
        self._losses += outcome.loss
        self._last_loss = outcome.loss
        self._step = progress.step
        self._epoch = progress.epoch
        self._note_losses(progress)
        for slot, value in outcome.busy_s.items():
            if value > 0.0:
                total, count = self._busy.get(slot, (0.0, 0))
                self._busy[slot] = (total + value, count + 1)
        if outcome.noise is not None:
            self._noises.append(outcome.noise.at_batch_size(examples, self._batch_size))
        if time.monotonic() - self._reported_at >= self._report_every_s():
            self.flush()

    def flush(self) -> None:
        """Report the steps recorded since the last report."""
        if not self._num_steps:
            return
        mean_loss = self._losses / self._num_steps
        self._reports.write(
            ReportKind.STEPS,
            {
                "first_step": self._step - self._num_steps + 1,
                "last_step": self._step,
                "epoch": self._epoch,
                "examples": self._examples,
                "candidates": self._candidates,
                "analysed": self._analysed,
                "pass_s": self._pass_s,
                "seconds": self._seconds,
                "loss": mean_loss if math.isfinite(mean_loss) else None,
                "last_loss": self._last_loss if math.isfinite(self._last_loss) else None,
                "nonfinite": encode(self._is_nonfinite or self._was_nonfinite),
                "num_accelerators": self._num_accelerators,
                "batch_size": self._batch_size,
                "learning_rate": self._learning_rate(),
                "compute_s": {
                    str(slot): total / count for slot, (total, count) in self._busy.items()
                },
                "noise": self._mean_noise(),
            },
        )
        self._reports.last_step = self._step
        self._reported_at = time.monotonic()
        self._clear()

    def _note_losses(self, progress: Progress) -> None:
        """Record since which step the loss is not finite, or the range of steps where it was."""
        found = progress.losses.finding
        if found is None and self._is_nonfinite is not None:
            self._was_nonfinite = replace(self._is_nonfinite, until_step=progress.step)
        self._is_nonfinite = found

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
