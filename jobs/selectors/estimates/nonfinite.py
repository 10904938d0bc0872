"""The losses and metrics of a job that are or were not finite: `Job.nonfinite`."""

from __future__ import annotations

from controlplane.core.protocol.nonfinite import Nonfinite, nonfinite_read
from jobs.models import Job

#: Sentences of one warning; of more metrics only the number is told.
_SENTENCES_LIMIT = 3


def nonfinite_states(job: Job) -> list[Nonfinite]:
    """List all that was ever not finite, the loss first, as it was the last time."""
    return [nonfinite_read(state) for _, state in sorted(job.nonfinite.items())]


def nonfinite_warning(job: Job) -> str:
    """Say what is not finite now; empty while all is finite."""
    return nonfinite_text([state for state in nonfinite_states(job) if state.until_step is None])


def nonfinite_text(states: list[Nonfinite]) -> str:
    """Say of each since when it is not finite, or from when to when it was."""
    texts = [state.state_text for state in states[:_SENTENCES_LIMIT]]
    if len(states) > _SENTENCES_LIMIT:
        texts.append(f"So it is with {len(states) - _SENTENCES_LIMIT} more.")
    return " ".join(texts)


def loss_nonfinite(job: Job) -> Nonfinite | None:
    """Give since when the loss of the steps is not finite; None while it is."""
    states = (state for state in nonfinite_states(job) if state.metric is None)
    return next((state for state in states if state.until_step is None), None)
