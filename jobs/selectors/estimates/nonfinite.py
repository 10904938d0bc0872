"""Non-finite losses and metrics of a job, past and present: `Job.nonfinite`."""

from __future__ import annotations

from controlplane.core.protocol.nonfinite import Nonfinite, nonfinite_read
from jobs.models import Job

#: Most sentences of one warning; further metrics are only counted.
_SENTENCES_LIMIT = 3


def nonfinite_states(job: Job) -> list[Nonfinite]:
    """List the newest non-finite state of each loss and metric, the loss first."""
    return [nonfinite_read(state) for _, state in sorted(job.nonfinite.items())]


def nonfinite_warning(job: Job) -> str:
    """Describe the values that are not finite now; empty if there are none."""
    return nonfinite_text([state for state in nonfinite_states(job) if state.until_step is None])


def nonfinite_text(states: list[Nonfinite]) -> str:
    """Describe since when, or from when to when, each value is not finite."""
    texts = [state.state_text for state in states[:_SENTENCES_LIMIT]]
    if len(states) > _SENTENCES_LIMIT:
        texts.append(f"So it is with {len(states) - _SENTENCES_LIMIT} more.")
    return " ".join(texts)


def loss_nonfinite(job: Job) -> Nonfinite | None:
    """Return the present non-finite state of the step loss; None while it is finite."""
    states = (state for state in nonfinite_states(job) if state.metric is None)
    return next((state for state in states if state.until_step is None), None)
