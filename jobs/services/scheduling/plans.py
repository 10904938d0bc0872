"""Application of a plan: active transitions, each by compare-and-set.

The snapshot behind a plan is outdated by the time the plan is applied. So every resize begins with
a conditional update on the generation in the snapshot; zero updated rows mean that another writer
was first, and the next cycle decides again. This module uses neither the network nor a solver.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping

from django.db import IntegrityError, transaction
from django.db.models import F

from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES
from controlplane.core.values.types import Plan
from jobs.models import Job
from jobs.services.lifecycle.events import event_add
from jobs.services.scheduling.resizes import StaleError, resize_apply

logger = logging.getLogger(__name__)


def plan_apply(
    plan: Plan, generations: Mapping[int, int], now: datetime.datetime, *, actor: str
) -> set[int]:
    """Apply the parts of a plan that are still valid, but no reasons; return the changed jobs.

    Args:
        generations: each job's generation at the time of the snapshot.
        actor: author of the decision, as recorded in events ("policy:fifo").
    """
    changed: set[int] = set()
    for resize in plan.resizes:
        try:
            with transaction.atomic():
                resize_apply(resize, generations[resize.job_id], now, actor=actor)
        except (StaleError, IntegrityError) as error:
            fields = {"job": resize.job_id, "generation": generations[resize.job_id]}
            logger.info("resize of job %s was overtaken: %s", resize.job_id, error, extra=fields)
        else:
            changed.add(resize.job_id)
    return changed | _mixes_report(plan, now, actor)


def _mixes_report(plan: Plan, now: datetime.datetime, actor: str) -> set[int]:
    """Add an event for each job whose finding about mixing accelerator kinds has changed."""
    changed = set()
    for job_id, note in plan.mixes.items():
        with transaction.atomic():
            rows = Job.objects.filter(id=job_id, status__in=[*SCHEDULABLE_JOB_STATUSES])
            key = note.key[:200]
            if rows.exclude(mix_finding=key).update(mix_finding=key, version=F("version") + 1):
                event_add(
                    "mixing",
                    note.sentence,
                    now=now,
                    job=Job.objects.get(id=job_id),
                    actor=actor,
                    data={"finding": key},
                )
                changed.add(job_id)
    return changed
