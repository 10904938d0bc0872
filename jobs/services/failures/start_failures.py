"""Cool-down of accelerators on which a job's trainers crash or fail to start.

A first crash may be an accident, and a retry fails fast: the accelerator stays available to the
job. From the second crash in a row on, without a trainer that got ready in between, the accelerator
is withheld from the job for a time that doubles. The same applies to a first failure that took long
to detect: a trainer that was unreachable, or not ready in time.

Where trainers did not come up several times in a row, and all that failed were on one node, it may
be the node that is broken. The job is not given up then, but excludes the node, if it can start on
others. Two times are enough where all were late: each takes minutes.
"""

from __future__ import annotations

import datetime
from collections import Counter
from itertools import groupby, islice

from django.conf import settings
from django.db.models import Q

from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import Accelerator, Allocation, Job, Node, StartFailure
from jobs.services.lifecycle.transitions import job_restart

#: Losses that the agent detects at once.
_CRASHES = frozenset({"crash", "memory_kill", "internal", "port_in_use", "peer_lost"})
#: Doublings after which the cool-down has reached its maximum.
_DOUBLINGS_LIMIT = 16
_LATE_LIMIT = 2


def start_failure_note(row: Allocation, now: datetime.datetime) -> None:
    """Count one more crash or failed start of a job on an accelerator.

    Earlier ones are forgotten when the last cool-down ended more than the longest cool-down ago.
    """
    failure, _ = StartFailure.objects.get_or_create(
        job_id=row.job_id, accelerator_id=row.accelerator_id, defaults={"until_at": now}
    )
    if failure.until_at < now - datetime.timedelta(seconds=settings.START_COOL_DOWN_LIMIT_S):
        failure.count = 0
    failure.count = min(failure.count + 1, _DOUBLINGS_LIMIT)
    cool_down_s = _cool_down_s(failure.count, is_crash=row.lost_code in _CRASHES)
    failure.until_at = now + datetime.timedelta(seconds=cool_down_s)
    failure.save(update_fields=["count", "until_at"])


def _cool_down_s(count: int, *, is_crash: bool) -> float:
    """Return the cool-down in seconds after `count` failures in a row: 0 after a first crash."""
    doublings = count - 2 if is_crash else count - 1
    if doublings < 0:
        return 0.0
    return min(settings.START_COOL_DOWN_S * 2.0**doublings, settings.START_COOL_DOWN_LIMIT_S)


def start_failure_forget(row: Allocation) -> None:
    """Reset the count after a trainer of the job got ready on the accelerator."""
    StartFailure.objects.filter(job_id=row.job_id, accelerator_id=row.accelerator_id).delete()


def job_start_again(
    job: Job, now: datetime.datetime, *, code: str, reason: str, actor: str, is_counted: bool
) -> None:
    """Restart a job whose trainers were lost, on other nodes where one node seems broken.

    Args:
        code, reason, actor, is_counted: as of `job_restart`; without the node, it is not counted.
    """
    failed = _failed_tries(job)
    node = _broken_node(job, failed, now) if is_counted else None
    if node is not None:
        until_at = now + datetime.timedelta(seconds=settings.START_COOL_DOWN_LIMIT_S)
        for device in node.accelerators.all():
            StartFailure.objects.update_or_create(
                job=job, accelerator=device, defaults={"until_at": until_at}
            )
        reason = (
            f"{reason}. {len(failed)} times in a row trainers did not come up on "
            f"{node.name}: starts on other nodes for "
            f"{settings.START_COOL_DOWN_LIMIT_S / 60:.0f} min"
        )
        is_counted = False
    job_restart(job, now, code=code, reason=reason, actor=actor, is_counted=is_counted)


def _failed_tries(job: Job) -> list[list[Allocation]]:
    """Return the losses of a job's newest tries, enough of them in a row to blame a node; or none.

    All trainers that were requested together are one try, even if the start was reduced by some of
    them first.
    """
    requested_at = dict(job.generations.values_list("number", "requested_at"))
    rows = job.allocations.order_by("-id").select_related("accelerator__node")
    tries = groupby(rows.iterator(), key=lambda row: requested_at.get(row.granted_generation))
    lost = [
        [row for row in members if row.lost_code]
        for _, members in islice(tries, settings.RESTART_LIMIT)
    ]
    newest = lost[:_LATE_LIMIT]
    are_late = all(row.lost_code == "timeout" for members in newest for row in members)
    if are_late and len(newest) == _LATE_LIMIT and all(newest):
        return newest
    return lost if len(lost) == settings.RESTART_LIMIT and all(lost) else []


def _broken_node(job: Job, failed: list[list[Allocation]], now: datetime.datetime) -> Node | None:
    """Return the node of all losses of failed tries, if the job can do without it.

    None of the trainers that were lost had come up.
    """
    rows = [row for members in failed for row in members]
    nodes = {row.accelerator.node for row in rows}
    if len(nodes) != 1 or any(row.ready_at for row in rows):
        return None
    (node,) = nodes
    withheld = job.start_failures.filter(until_at__gt=now)
    others = Accelerator.objects.filter(
        is_present=True,
        node__status=NodeStatus.ONLINE,
        node__removed_at=None,
        node__is_cordoned=False,
        node__quarantined_until=None,
    ).exclude(Q(node=node) | Q(id__in=withheld.values("accelerator")))
    if job.accepted_kinds:
        others = others.filter(kind__in=job.accepted_kinds)
    num_by_kind = Counter(others.values_list("kind", flat=True))
    num = num_by_kind.total() if job.allow_mixed_kinds else max(num_by_kind.values(), default=0)
    return node if num >= job.min_accelerators else None
