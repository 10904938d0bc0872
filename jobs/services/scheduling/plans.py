"""Carrying out a plan: the active transitions, each by compare-and-set.

A plan was made from a snapshot that is old by the time it is applied. So every resize begins with a
conditional update on the generation that the snapshot saw; zero rows mean that somebody else was
first, and the next cycle looks again. No network and no solver in here.
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
from jobs.services.scheduling.explanations import reasons_save
from jobs.services.scheduling.resizes import StaleError, resize_apply

logger = logging.getLogger(__name__)


def plan_apply(
    plan: Plan, generations: Mapping[int, int], now: datetime.datetime, *, actor: str
) -> set[int]:
    """Carry out what can be carried out; give the jobs that changed.

    Args:
        generations: the generation of each job at the time of the snapshot.
        actor: who decided, as it stands in events ("policy:fifo").
    """
    changed: set[int] = set()
    for resize in plan.resizes:
        try:
            with transaction.atomic():
                resize_apply(resize, generations[resize.job_id], now, actor=actor)
        except (StaleError, IntegrityError) as error:
            logger.info("resize of job %s was overtaken: %s", resize.job_id, error)
        else:
            changed.add(resize.job_id)
    return changed | reasons_save(plan, now) | _mixes_tell(plan, now, actor)


def _mixes_tell(plan: Plan, now: datetime.datetime, actor: str) -> set[int]:
    """Write an event when what was found about mixing kinds in a job has changed."""
    told = set()
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
                told.add(job_id)
    return told
