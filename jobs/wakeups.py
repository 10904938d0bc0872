"""What to do after a change: wake those who watch, and ask for a cycle. Called by views and tasks."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from jobs import nudges
from jobs.tasks import allocate_cluster


def after_change(
    job_ids: Iterable[int] = (), *, cycle: bool = False, cluster: bool = False
) -> None:
    """Say that jobs changed, once the transaction is in.

    Args:
        cycle: what agents shall do may have changed, and a cycle may find something to do.
        cluster: nodes or the policy changed.
    """
    nudges.jobs_changed(job_ids, orders=cycle, cluster=cluster)
    if cycle:
        transaction.on_commit(_cycle_ask)


def _cycle_ask() -> None:
    # One that waits in the queue will see this change too.
    if nudges.cycle_claim():
        allocate_cluster.delay()
