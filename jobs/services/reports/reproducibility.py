"""Event that marks the step from which a job's result is no longer reproducible bit for bit."""

from __future__ import annotations

import datetime

from controlplane.core.protocol.wire import ReductionMode
from jobs.models import Generation, Job
from jobs.selectors.estimates.step_times import kinds_by_place, members_read
from jobs.selectors.reproducibility import kinds_used
from jobs.services.lifecycle.events import event_add

EVENT_KIND = "kinds_mixed"


def reproducibility_note(job: Job, generation: Generation, now: datetime.datetime) -> None:
    """Add the event once, when a locked job first uses a second kind of accelerator."""
    if job.reduction == ReductionMode.FAST:
        return  # a fast reduction is never reproducible bit for bit
    members = members_read(generation, kinds_by_place([generation]))
    kinds = sorted({member.kind for member in members} | set(kinds_used(job)))
    if len(kinds) < 2 or job.events.filter(kind=EVENT_KIND).exists():
        return
    event_add(
        EVENT_KIND,
        f"From step {generation.step} on it has trained on {' and '.join(kinds)}: another run "
        "gives the same within rounding, no longer bit for bit",
        now=now,
        job=job,
        data={"generation": generation.number, "kinds": kinds, "step": generation.step},
    )
