"""Examples that a selecting job has considered, analysed and trained on."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q, Sum

from jobs.models import Job, StepReport


@dataclass(frozen=True)
class SelectionCounts:
    """Numbers of examples over the epochs that select.

    Attributes:
        candidates: examples among which was chosen; one counts in every epoch.
        analysed: candidates whose loss was computed.
        trained: examples of training steps.
    """

    candidates: int
    analysed: int
    trained: int

    @property
    def share(self) -> float | None:
        """Share of the candidates that was trained on; None without any."""
        return self.trained / self.candidates if self.candidates else None


def selection_counts(job: Job) -> SelectionCounts | None:
    """Sum the reports of a job; None for a job that trains on every example."""
    spec = job.selection_spec
    if spec is None:
        return None
    selecting = Q(epoch__gte=spec.start)
    if spec.end is not None:
        selecting &= Q(epoch__lt=spec.end)
    sums = StepReport.objects.filter(job=job).aggregate(
        candidates=Sum("candidates", default=0),
        analysed=Sum("analysed", default=0),
        trained=Sum("examples", filter=selecting, default=0),
    )
    return SelectionCounts(**sums)
