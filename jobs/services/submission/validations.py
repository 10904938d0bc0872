"""Validation: building a job's code once on a node before the job is queued."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Case, Count, F, Min, Q, QuerySet, When

from controlplane.core.protocol.node_messages import BUSY_FACTOR, ValidationReport
from controlplane.core.values.lifecycle import JobStatus, NodeStatus, ValidationStatus
from jobs.models import Allocation, Job, Node, Validation
from jobs.models.validations import OPEN_STATUSES, WAITS_FOR_NODE
from jobs.selectors.access import are_users_strangers
from jobs.selectors.estimates.memory import memory_shortage
from jobs.selectors.maintenance import closed_by_window
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_lock, job_rows_lock, status_change

#: Seconds beyond the validation's own time limit: fetching the code and reporting back.
TIME_LIMIT_GRACE_S = 20.0
#: Validations of one user's jobs that run at a time, per online node.
USER_RUNNING_PER_NODE = 2
#: Codes of refusals that the agent gives where the build did not end by itself.
_DOUBTFUL = ("timeout", "crashed")
_DOUBT_EVENT = "node_doubted"
_AT_ONCE = 100
_TEXT_LIMIT = 20_000


def validation_start(validation: Validation, now: datetime.datetime) -> bool:
    """Assign a waiting validation to the least busy online node, preferably not its last one.

    Two callers may assign at once; the conditional update lets one of them through.

    Returns:
        Whether it was assigned; False without an online node, if it does not wait, or if as many
        jobs of its owner are being validated as may be at a time.
    """
    owner_id = validation.owner_id
    nodes = _nodes_in_turn(now)
    if not nodes:
        return False
    if validation.job_id is not None and not _num_free([owner_id], len(nodes))[owner_id]:
        return False
    held = _held_nodes(owner_id)
    own = [node for node in nodes if node.pk in held]
    nodes = own if len(own) >= _most_nodes(len(nodes)) else nodes
    node = next((node for node in nodes if node.pk != validation.node_id), nodes[0])
    waiting = Validation.objects.filter(id=validation.pk, status=ValidationStatus.WAITING)
    return _assign(waiting, node, now, attempt=F("attempt") + 1)


def _assign(
    awaited: QuerySet[Validation], node: Node, now: datetime.datetime, **changes: Any
) -> bool:
    """Give one validation to a node, unless it has left `awaited`."""
    text = f"Its code is being built once on {node.name}."
    shown = {"status_code": "validating", "status_reason": text}
    changes |= {"status": ValidationStatus.RUNNING, "node": node, "deadline_at": _deadline(now)}
    return _change(awaited, shown, **shown, **changes)


def _change(awaited: QuerySet[Validation], shown: Mapping[str, str], **changes: Any) -> bool:
    """Change one validation, and what its job shows, unless it has left `awaited`."""
    with transaction.atomic():
        # The job is locked first, as by everything that changes jobs.
        Job.objects.filter(validation__in=awaited, status=JobStatus.VALIDATING).update(
            version=F("version") + 1, **shown
        )
        is_changed = awaited.update(**changes)
        transaction.set_rollback(not is_changed)
    return bool(is_changed)


def _deadline(now: datetime.datetime) -> datetime.datetime:
    """Return until when a node has to report on a validation that it starts now."""
    seconds = BUSY_FACTOR * settings.VALIDATION_TIMEOUT_S + TIME_LIMIT_GRACE_S
    return now + datetime.timedelta(seconds=seconds)


def _most_nodes(num_nodes: int) -> int:
    """Return on how many of `num_nodes` one user's code is built at a time.

    Code that never ends holds a node until its time is over. So one node is left to others, if
    there are any: several nodes, and other active accounts.
    """
    has_others = User.objects.filter(is_active=True)[:2].count() > 1
    return max(1, num_nodes - 1) if has_others else num_nodes


def _held_nodes(owner_id: int) -> Counter[int | None]:
    """Count the running validations of a user by node."""
    running = Validation.objects.filter(status=ValidationStatus.RUNNING, owner=owner_id)
    return Counter(running.values_list("node", flat=True))


def _nodes_in_turn(now: datetime.datetime) -> list[Node]:
    """Return the nodes that build code now, the least busy first.

    Nodes that are closed, cordoned or quarantined do so only where there is no better one.
    """
    nodes: list[Any] = list(_nodes_by_load(now))

    def standing(node: Any) -> tuple[int, bool, datetime.datetime | None]:
        return node.is_closed, node.is_cordoned, node.quarantined_until

    return [node for node in nodes if standing(node) == standing(nodes[0])]


def _nodes_by_load(now: datetime.datetime) -> Any:
    """Select the nodes that may build code, the least busy first, with what orders them."""
    running = Count(
        "validations", filter=Q(validations__status=ValidationStatus.RUNNING), distinct=True
    )
    trainers = Count(
        "accelerators__allocations",
        filter=Q(accelerators__allocations__released_at=None)
        & Q(accelerators__allocations__isnull=False),
        distinct=True,
    )
    is_closed = Case(When(closed_by_window(now), then=1), default=0)
    nodes = Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None)
    if are_users_strangers():
        nodes = nodes.exclude(isolation="none")
    counted = nodes.annotate(num_validations=running, num_trainers=trainers, is_closed=is_closed)
    return counted.order_by(
        "is_closed",
        "is_cordoned",
        F("quarantined_until").asc(nulls_first=True),
        "num_validations",
        "num_trainers",
        "id",
    )


def validations_start_waiting(now: datetime.datetime) -> set[int]:
    """Assign validations that wait for a node; return the jobs of those assigned, or told why not.

    Of each user only a few run at a time, so that nobody waits for all code of somebody else. Of
    the own ones those of sweeps come last.
    """
    waiting = Validation.objects.filter(status=ValidationStatus.WAITING)
    in_turn = waiting.order_by(F("job__sweep").asc(nulls_first=True), "id")
    by_owner = waiting.order_by().values("owner").annotate(oldest=Min("id")).order_by("oldest")
    owner_ids = list(by_owner.values_list("owner", flat=True))
    if not owner_ids:
        return set()
    num_nodes = len(_nodes_in_turn(now))
    free = [(owner, number) for owner, number in _num_free(owner_ids, num_nodes).items() if number]
    chosen = [
        validation
        for owner_id, number in free[:_AT_ONCE]
        for validation in in_turn.filter(owner=owner_id)[:number]
    ]
    started = _jobs_of(validation for validation in chosen if validation_start(validation, now))
    return started | _waits_explain(num_nodes)


def _waits_explain(num_nodes: int) -> set[int]:
    """Say of jobs that wait to be validated why they do; return those whose reason is new."""
    shown = dict(WAITS_FOR_NODE)
    if num_nodes:
        most = USER_RUNNING_PER_NODE * _most_nodes(num_nodes)
        shown["status_code"] = "validations_limit"
        shown["status_reason"] = (
            f"Waits for other jobs of its owner: of one user, the code of at most {most} jobs is "
            "built at a time."
        )
    elif Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None).exists():
        shown["status_reason"] = (
            "Waits for a node to build its code on: on those that are online all jobs share a "
            "user, and the site has several active accounts."
        )
    # Between this and an assignment the status code decides: an assigned one keeps its reason.
    waits = (
        Job.objects.filter(status=JobStatus.VALIDATING, validation__status=ValidationStatus.WAITING)
        .exclude(status_code="validating")
        .exclude(**shown)
    )
    ids = set(waits.order_by("id").values_list("pk", flat=True)[:_AT_ONCE])
    with transaction.atomic():
        job_rows_lock(Job.objects.filter(pk__in=ids))
        waits.filter(pk__in=ids).update(version=F("version") + 1, **shown)
    return ids


def validations_spread(now: datetime.datetime) -> set[int]:
    """Move validations that wait behind another one to nodes that build none; return their jobs.

    A node builds one after another, so code that takes long would keep the others waiting. A move
    is no new attempt: the former node's answer is dropped as it comes from another node.
    """
    trusted = Q(quarantined_until=None) | Q(quarantined_until__lte=now)
    nodes = _nodes_by_load(now).filter(trusted, is_closed=0, is_cordoned=False)
    idle = list(nodes.filter(num_validations=0)[:_AT_ONCE])
    most = _most_nodes(nodes.count()) if idle else 0
    building, moved = set(), []
    running = Validation.objects.filter(status=ValidationStatus.RUNNING)
    for validation in running.order_by("deadline_at", "id")[:_AT_ONCE] if idle else ():
        if validation.node_id not in building:
            building.add(validation.node_id)
        elif idle and _may_move(validation, most):
            behind = running.filter(
                id=validation.pk, node=validation.node_id, attempt=validation.attempt
            )
            if _assign(behind, idle.pop(0), now):
                moved.append(validation)
    return _jobs_of(moved)


def _may_move(validation: Validation, most: int) -> bool:
    """Tell whether its owner's code is built on at most `most` nodes after a move to a new one."""
    held = _held_nodes(validation.owner_id)
    return len(held) + (held[validation.node_id] > 1) <= most


def _num_free(owner_ids: Collection[int], num_nodes: int) -> dict[int, int]:
    """Return how many more jobs of each user may be validated now on so many nodes."""
    running = Validation.objects.filter(
        status=ValidationStatus.RUNNING, owner__in=owner_ids, job__isnull=False
    )
    counts = dict(running.order_by().values_list("owner").annotate(number=Count("id")))
    most = USER_RUNNING_PER_NODE * _most_nodes(num_nodes)
    return {owner_id: max(0, most - counts.get(owner_id, 0)) for owner_id in owner_ids}


def validation_take(
    node: Node, report: ValidationReport, now: datetime.datetime
) -> Validation | None:
    """Take a validation's result; return None if it is not awaited from this node.

    What a node refuses without being able to build (`_is_doubted`) is built elsewhere.
    """
    awaited = Validation.objects.filter(
        id=report.validation_id,
        status=ValidationStatus.RUNNING,
        node=node,
        attempt=report.attempt,
    )
    validation = None if report.ok else awaited.first()
    if validation is not None and _is_doubted(validation, node, report, now):
        if not _put_back(awaited):
            return None
        _doubt_note(node, report, now)
        validation_start(validation, now)
        return validation
    with transaction.atomic():
        return _settle(awaited, report, now)


def _doubt_note(node: Node, report: ValidationReport, now: datetime.datetime) -> None:
    """Add an event about a node that builds no code, once in a quarantine window."""
    since = now - datetime.timedelta(seconds=settings.QUARANTINE_WINDOW_S)
    if node.events.filter(kind=_DOUBT_EVENT, at__gt=since).exists():
        return
    text = f"{node.name} may be broken: it did not build the code of a job"
    event_add(_DOUBT_EVENT, text, now=now, node=node, data={"code": report.code})


def _is_doubted(
    validation: Validation, node: Node, report: ValidationReport, now: datetime.datetime
) -> bool:
    """Return whether a refusal may be the node's fault, so that another one is to build the code.

    A node with a broken disk refuses at once, and so is the least busy one. On one that is half
    dead the build hangs or crashes, as it does with bad code: that counts only where code was
    built or a trainer came up lately, or from a second node.
    """
    if report.code == "internal" and report.field is None:
        return validation.attempt < settings.VALIDATION_ATTEMPTS_LIMIT
    if report.code not in _DOUBTFUL or validation.attempt > 1 or validation.job_id is None:
        return False
    since = now - datetime.timedelta(seconds=settings.QUARANTINE_WINDOW_S)
    passed = Validation.objects.filter(node=node, status=ValidationStatus.PASSED)
    ready = Allocation.objects.filter(accelerator__node=node)
    if passed.filter(ended_at__gt=since).exists() or ready.filter(ready_at__gt=since).exists():
        return False
    return any(other != node for other in _nodes_in_turn(now))


def validations_extend(node: Node, now: datetime.datetime) -> None:
    """Give those that wait on a node their time from now on: it has just ended another one."""
    others = Validation.objects.filter(node=node, status=ValidationStatus.RUNNING)
    with transaction.atomic():
        # Rows that somebody else changes now have a deadline from that.
        free = list(
            others.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True)
        )
        others.filter(pk__in=free).update(deadline_at=_deadline(now))


def _settle(
    awaited: QuerySet[Validation], report: ValidationReport, now: datetime.datetime
) -> Validation | None:
    """End a validation, unless it has left `awaited`, and queue or reject its job."""
    validation = awaited.first()
    if validation is None:
        return None
    # The job is locked first, as by everything that changes jobs.
    job = None if validation.job_id is None else job_lock(validation.job_id)
    result: dict[str, Any] = {"status_code": "passed", "status_reason": "Code validated."}
    if not report.ok:
        result = {
            "status_code": (report.code or "invalid")[:40],
            "status_reason": report.message[:2000] or "Its code does not build.",
            "error_field": (report.field or "")[:60],
            "error_traceback": report.traceback[-_TEXT_LIMIT:],
        }
    status = ValidationStatus.PASSED if report.ok else ValidationStatus.FAILED
    facts = report.facts if job is None else {}  # a job keeps its own
    if not awaited.update(status=status, ended_at=now, deadline_at=None, facts=facts, **result):
        return None
    if job is not None and job.status == JobStatus.VALIDATING:
        if report.ok:
            job_queue(job, report.facts, now)
        else:
            status_change(job, JobStatus.INVALID, ended_at=now, facts=report.facts, **result)
            data = {"code": job.status_code, "field": report.field}
            event_add("invalid", job.status_reason, now=now, job=job, data=data)
    return validation


def job_queue(
    job: Job, facts: dict[str, Any], now: datetime.datetime, *, text: str = "Code validated"
) -> None:
    """Queue a locked job that passed validation."""
    shortage = memory_shortage(job, facts)
    status_change(
        job,
        JobStatus.PENDING,
        pending_since=now,
        facts=facts,
        status_code="waiting",
        status_reason=f"Waits for accelerators. {shortage}".strip(),
    )
    event_add("validated", text, now=now, job=job, data=facts)
    if shortage:
        event_add("memory_short", shortage, now=now, job=job)


def validations_cancel(
    validations: QuerySet[Validation], now: datetime.datetime, *, code: str, reason: str
) -> None:
    """Cancel those of `validations` that have not ended."""
    validations.filter(status__in=OPEN_STATUSES).update(
        status=ValidationStatus.CANCELLED,
        ended_at=now,
        deadline_at=None,
        status_code=code,
        status_reason=reason,
    )


def unsubmitted_cancel(jobs: Sequence[Job], now: datetime.datetime) -> None:
    """Cancel the running validations without a job that newer ones, of `jobs`, replace.

    These are those of the same owner, name and file of code. All jobs have one owner and file.
    """
    reason = "A newer submission of yours with the same name replaced it."
    first = jobs[0]
    replaced = Validation.objects.filter(
        owner=first.owner,
        job=None,
        job_fields__name__in=[job.name for job in jobs],
        job_fields__code_name=first.code_name,
    )
    validations_cancel(replaced, now, code="replaced", reason=reason)


def validations_expire(now: datetime.datetime) -> set[int]:
    """Retry overdue validations on another node, or fail them; return the changed jobs."""
    return _expire(Validation.objects.filter(deadline_at__lt=now), now)


def validations_of_node_expire(node: Node, now: datetime.datetime) -> set[int]:
    """Expire a lost node's validations at once; return the changed jobs."""
    return _expire(Validation.objects.filter(node=node), now)


def _expire(validations: QuerySet[Validation], now: datetime.datetime) -> set[int]:
    running = validations.filter(status=ValidationStatus.RUNNING)
    return _jobs_of(validation for validation in running if _expire_one(validation, now))


def _expire_one(validation: Validation, now: datetime.datetime) -> bool:
    awaited = Validation.objects.filter(
        id=validation.pk, status=ValidationStatus.RUNNING, attempt=validation.attempt
    )
    # Without a job its user is waiting and can ask again.
    attempts = 1 if validation.job_id is None else settings.VALIDATION_ATTEMPTS_LIMIT
    if validation.attempt < attempts:
        if not _put_back(awaited):
            return False
        validation_start(validation, now)
        return True
    text = f"No node said in time whether it builds, {validation.attempt} times."
    if validation.job_id is None:
        text = "No node measured it in time. Try again, or submit it as it is."
    report = ValidationReport(ok=False, code="validation_lost", message=text)
    with transaction.atomic():
        return _settle(awaited, report, now) is not None


def _put_back(awaited: QuerySet[Validation]) -> bool:
    """Let a validation wait for another node, unless it has left `awaited`."""
    return _change(awaited, WAITS_FOR_NODE, status=ValidationStatus.WAITING, deadline_at=None)


def _jobs_of(validations: Iterable[Validation]) -> set[int]:
    return {found.job_id for found in validations if found.job_id is not None}
