"""Context shared by the report handlers: the locked job and follow-up checks."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from functools import cache

from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES
from jobs.models import Allocation, EpochReport, Generation, Job, Node
from jobs.selectors.prepared import PreparedObjects
from jobs.services.lifecycle.missed_reports import start_of

#: Age of a batch from which on its node's clock counts as behind: a slow link may explain less.
_BEHIND_S = 60.0
#: Stand-ins of `_generation_query`.
_JOB, _NUMBER = 1, 2


@dataclass(slots=True)
class ReportContext:
    """Reports of one batch about one locked job.

    Attributes:
        away_s: seconds in which the node could not report.
        behind_s: seconds by which the node's clock is behind; 0 for up to a minute.
        is_loss_due: a trainer may be lost; check once all reports are in.
        is_stalled: trainers wait for others; check again after the grace period.
        is_settle_due: a trainer has exited, maybe the last one.
        crashed: trainers that exited unexpectedly.
        epochs: reported epochs that are not written yet, by number.
    """

    job: Job
    node: Node
    now: datetime.datetime
    away_s: float = 0.0
    behind_s: float = 0.0
    is_loss_due: bool = False
    is_stalled: bool = False
    is_settle_due: bool = False
    crashed: list[Allocation] = field(default_factory=list)
    epochs: dict[int, EpochReport] = field(default_factory=dict)
    _generations: dict[int, Generation | None] = field(default_factory=dict)
    _starts: dict[int, Generation | None] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.job.status not in ENDED_JOB_STATUSES

    def generation(self, number: int) -> Generation | None:
        """Return a generation of the job; it is read once for each report."""
        if number not in self._generations:
            found = _generation_query().first({_JOB: self.job.pk, _NUMBER: number})
            if found is not None:
                found.job = self.job
            self._generations[number] = found
        return self._generations[number]

    def start_of(self, number: int) -> Generation | None:
        """Return the job's newest start up to a generation; it is read once for each report."""
        generation = self.generation(number)
        if generation is not None and generation.is_start:
            return generation
        if number not in self._starts:
            self._starts[number] = start_of(self.job, number)
        return self._starts[number]

    def forget_generations(self) -> None:
        """Read generations again: a report may change them."""
        self._generations.clear()
        self._starts.clear()


@cache
def _generation_query() -> PreparedObjects[Generation]:
    return PreparedObjects(Generation.objects.filter(job=_JOB, number=_NUMBER))


def behind_s(sent_at: float, now: datetime.datetime) -> float:
    """Return by how much the clock is behind that says when a batch was sent; 0 for little."""
    age_s = now.timestamp() - sent_at
    return age_s if age_s > _BEHIND_S else 0.0


def time_read(context: ReportContext, report: TrainerReport) -> datetime.datetime:
    """Return a report's time by the node's clock, corrected if that is behind.

    It is never before the job's submission, nor later than now.
    """
    try:
        at = datetime.datetime.fromtimestamp(report.at + context.behind_s, tz=datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return context.now
    return min(max(at, context.job.submitted_at), context.now)
