"""Nodes: enrolment, leases, loss and removal."""

from __future__ import annotations

import datetime
import re
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from controlplane.core.protocol.node_messages import EnrolReply, EnrolRequest, HelloRequest
from controlplane.core.protocol.wire import PROTOCOL_VERSION
from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import NodeStatus
from jobs.exceptions import (
    ConflictError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    errors_contained,
)
from jobs.models import (
    Accelerator,
    Allocation,
    AuditAction,
    ClusterSetting,
    EnrolmentToken,
    Node,
)
from jobs.selectors.access import are_users_strangers
from jobs.selectors.nodes import FILTERED, UNFILTERED, unfiltered_nodes
from jobs.services.cluster.agent_tokens import (
    agent_token_set,
    enrolment_token_check,
    enrolment_token_use,
    token_age_check,
    token_for_hello,
)
from jobs.services.cluster.node_shapes import (
    accelerators_write,
    host_check,
    ports_taken,
    shape_check,
)
from jobs.services.cluster.tokens import token_digest, token_make
from jobs.services.failures.exits import rows_release
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_lock
from jobs.services.scheduling.policy import cluster_setting
from jobs.services.submission.validations import validations_of_node_expire

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
#: Text that a database stores: no NUL, no lone surrogates.
_TEXT = re.compile(r"[^\x00\ud800-\udfff]*")
_HOST = re.compile(r"[A-Za-z0-9.:\-\[\]]{1,253}")
ACCELERATORS_LIMIT = 64
ENROLMENT_TOKEN_HOURS = 24
#: How an agent may run jobs: each as a user of its own, or all as the agent's user.
ISOLATIONS = ("uid", "none")
#: Of a removed node's name so much is kept; " (removed N)" is appended.
REMOVED_NAME_CHARACTERS = 40


@transaction.atomic
def enrolment_token_create(
    created_by: User | None,
    now: datetime.datetime,
    *,
    lifetime_s: float = ENROLMENT_TOKEN_HOURS * 3600,
) -> tuple[EnrolmentToken, str]:
    """Create a token that lets one node enrol; only this call returns its text."""
    text = token_make("vfe")
    row = EnrolmentToken.objects.create(
        digest=token_digest(text),
        created_by=created_by,
        expires_at=now + datetime.timedelta(seconds=lifetime_s),
    )
    expires_at = row.expires_at.isoformat()
    audit_add(AuditAction.ENROLMENT_TOKEN_MADE, f"enrolment-token:{row.pk}", expires_at=expires_at)
    return row, text


@transaction.atomic
def enrolment_token_revoke(token_id: int) -> None:
    """Delete a token that no node has used.

    Raises:
        NotFoundError: there is no such token, or it was used.
    """
    row = EnrolmentToken.objects.filter(id=token_id, used_at=None).first()
    if row is None or not EnrolmentToken.objects.filter(id=row.pk, used_at=None).delete()[0]:
        raise NotFoundError("There is no such unused enrolment token.")
    audit_add(AuditAction.ENROLMENT_TOKEN_REVOKED, f"enrolment-token:{token_id}")


def node_enrol(request: EnrolRequest, now: datetime.datetime) -> EnrolReply:
    """Enrol a node and issue credentials for its agent.

    A token that was made for a node (`node_token_replace`), or that has enrolled it just now,
    replaces this node's credentials only.

    Raises:
        InvalidInputError: a field is out of bounds, or the name is taken.
        ForbiddenError: the token is unknown or expired.
        ConflictError: the token was used.
    """
    # First: callers without a token learn nothing of the cluster.
    token = enrolment_token_check(request, now)
    former = token.node
    if not _NAME.fullmatch(request.name):
        raise InvalidInputError.of(
            name="Use lower-case letters, digits, '-' and '.', at most 63 characters."
        )
    _node_check(request)
    host_check(request.host)
    agent_token = token_make("vfa")
    if former is not None:
        with transaction.atomic():
            enrolment_token_use(token, now)
            agent_token_set(former, request.name, agent_token, now)
        return _reply(former, agent_token)
    try:
        with transaction.atomic():
            _enrolments_lock()
            _kinds_check(request)
            if taken := ports_taken(request, now):
                raise InvalidInputError.of(first_port=taken)
            enrolment_token_use(token, now)
            isolation_check(request.isolation)
            node = Node.objects.create(
                name=request.name,
                **_told(request),
                agent_token_digest=token_digest(agent_token),
                last_seen_at=now,
            )
            EnrolmentToken.objects.filter(id=token.pk).update(node=node)
            accelerators_write(node, request.accelerators)
            text = f"{node.name} joined with {counted(len(request.accelerators), 'accelerator')}"
            event_add("node_enrolled", text, now=now, node=node)
            audit_add(
                AuditAction.NODE_ENROLLED,
                f"node:{node.name}",
                actor=f"node:{node.name}",
                by=f"enrolment-token:{token.pk}",
                host=node.host,
            )
            _filter_note(node, request.filters_peers, now)
    except IntegrityError:
        raise InvalidInputError.of(
            name=f"There is a node {request.name!r} already; choose another name."
        ) from None
    return _reply(node, agent_token)


def _enrolments_lock() -> None:
    """Let no other enrolment or hello in until commit: ports and kinds are checked under it."""
    cluster_setting()  # makes the row at the first use of a site
    ClusterSetting.objects.select_for_update(no_key=True).get(id=1)


def node_hello(
    node: Node, request: HelloRequest, agent_token: str, now: datetime.datetime
) -> EnrolReply:
    """Readmit a (re)started agent, with its node's present accelerators.

    Raises:
        InvalidInputError: a field is out of bounds.
        ConflictError: another agent is alive, its ports are taken, or its shape has changed.
        GoneError: the node was removed just now.
    """
    _node_check(request)
    host_check(request.host)
    isolation_check(request.isolation)
    shape_check(node, request, now)
    if node.boot_id != request.boot_id:
        lease_end = node.last_seen_at + datetime.timedelta(seconds=settings.LEASE_S)
        if node.status == NodeStatus.ONLINE and now < lease_end:
            raise ConflictError(
                "Another agent of this node is alive; stop it, or wait until its lease is over.",
                code="node_in_use",
            )
        # A new boot: the trainers of the previous boot are gone.
        node_trainers_lose(node, now)
    with transaction.atomic():
        _enrolments_lock()
        _kinds_check(request, node)
        if taken := ports_taken(request, now, node):
            # Two restarting nodes may request each other's old ports: the agent retries.
            raise ConflictError(taken, code="ports_taken")
        was_lost = node.status == NodeStatus.LOST
        rows = Node.objects.filter(id=node.pk, removed_at=None)
        if not rows.update(**_told(request), last_seen_at=now, status=NodeStatus.ONLINE):
            raise GoneError("This node was removed; stop everything.", code="node_removed")
        accelerators_write(node, request.accelerators)
        if was_lost:
            event_add("node_back", f"{node.name} is back", now=now, node=node)
        _filter_note(node, request.filters_peers, now)
    return _reply(node, token_for_hello(node, agent_token, now))


def _told(request: HelloRequest) -> dict[str, Any]:
    """Return the columns of a node that its agent tells."""
    names = ("host", "first_port", "last_port", "boot_id", "isolation")
    return {name: getattr(request, name) for name in names}


def _filter_note(node: Node, filters_peers: bool, now: datetime.datetime) -> None:
    """Add an event if the agent's word about its trainers' socket filters has changed."""
    if filters_peers == (node.pk not in unfiltered_nodes()):
        return
    kind, text = (
        (FILTERED, "trainers drop packets from outside their job")
        if filters_peers
        else (UNFILTERED, "every machine can reach trainers, as its operator wants")
    )
    event_add(kind, f"{node.name}: {text}", now=now, node=node, actor=f"node:{node.name}")


def isolation_check(isolation: str) -> None:
    """Refuse nodes that run all jobs as one user on a site with several users.

    Raises:
        InvalidInputError: not isolated, and no admin has said that users trust each other.
    """
    if isolation not in ISOLATIONS:
        raise InvalidInputError.of(isolation=f"Give one of {', '.join(ISOLATIONS)}.")
    if isolation == "none" and are_users_strangers():
        raise InvalidInputError.of(
            isolation="The site has several active accounts, whose jobs could read and change each "
            "other on this node. Start the agent with --isolation uid, as root; or, if all users "
            "trust each other, an admin sets VIRTUALFLOW_USERS_TRUST_EACH_OTHER=1 for the site."
        )


def node_heartbeat(node: Node, boot_id: str, now: datetime.datetime) -> None:
    """Renew a node's lease.

    Raises:
        ConflictError: the lease expired or belongs to another agent, or the token is old; the
            agent must say hello again.
    """
    token_age_check(node, now)
    holder = Node.objects.filter(id=node.pk, boot_id=boot_id, status=NodeStatus.ONLINE)
    if not _TEXT.fullmatch(boot_id) or not holder.update(last_seen_at=now):
        raise ConflictError("The node's lease was lost; say hello again.", code="lease_lost")


def nodes_expire(now: datetime.datetime) -> tuple[set[int], set[int]]:
    """Mark nodes with an expired lease as lost and recover their jobs.

    Returns:
        The lost nodes, and the changed jobs.
    """
    lease_start = now - datetime.timedelta(seconds=settings.LEASE_S)
    lost: set[int] = set()
    changed: set[int] = set()
    for node in Node.objects.filter(status=NodeStatus.ONLINE, last_seen_at__lt=lease_start):
        silent = Node.objects.filter(
            id=node.pk, status=NodeStatus.ONLINE, last_seen_at__lt=lease_start
        )
        with transaction.atomic():
            if not silent.update(status=NodeStatus.LOST):
                continue  # a heartbeat renewed the lease just now
            event_add("node_lost", f"{node.name} is not heard of any more", now=now, node=node)
        changed |= validations_of_node_expire(node, now)
        lost.add(node.pk)
    # A process that marked a node as lost may have ended before it released all trainers.
    still_held = Allocation.objects.filter(released_at=None).values("accelerator__node")
    for node in Node.objects.filter(status=NodeStatus.LOST, id__in=still_held):
        changed |= node_trainers_lose(node, now)
    return lost, changed


def node_trainers_lose(node: Node, now: datetime.datetime) -> set[int]:
    """Release all accelerators of a node whose trainers are gone; return the affected jobs.

    A job that cannot be recovered is logged, and tried again by the next `nodes_expire`: it keeps
    neither the node nor the other jobs there.
    """
    rows = Allocation.objects.filter(accelerator__node=node, released_at=None)
    jobs = set(rows.values_list("job_id", flat=True))
    for job_id in sorted(jobs):
        what = f"does not recover from the loss of {node.name}"
        with errors_contained(job_id, what), transaction.atomic():
            job = job_lock(job_id)
            gone = list(rows.filter(job_id=job_id).order_by("slot"))
            rows_release(job, gone, now, lost_code="node_lost")
    return jobs


def node_remove(node: Node, now: datetime.datetime, *, actor: str, reason: str = "") -> set[int]:
    """Remove a node for good: its agent gets the order to stop, its jobs recover elsewhere.

    The node's name becomes free; its history stays. Returns the jobs that ran there.
    """
    name = f"{node.name[:REMOVED_NAME_CHARACTERS]} (removed {node.pk})"
    with transaction.atomic():
        rows = Node.objects.filter(id=node.pk, removed_at=None)
        if not rows.update(removed_at=now, status=NodeStatus.LOST, name=name):
            return set()
        text = f"{node.name} was removed" + (f": {reason}" if reason else "")
        event_add("node_removed", text, now=now, node=node, actor=actor, data={"reason": reason})
        audit_add(AuditAction.NODE_REMOVED, f"node:{node.name}", actor=actor, reason=reason)
    jobs = node_trainers_lose(node, now)
    return jobs | validations_of_node_expire(node, now)


def _node_check(request: HelloRequest) -> None:
    fields: dict[str, list[str]] = {}
    if request.protocol != PROTOCOL_VERSION:
        fields["protocol"] = [f"This control plane speaks version {PROTOCOL_VERSION}; update it."]
    if not _HOST.fullmatch(request.host):
        fields["host"] = ["Give a host name or an address."]
    if not 1 <= request.first_port <= request.last_port <= 65535:
        fields["last_port"] = ["Give a port range within 1..65535, the first not above the last."]
    if not 1 <= len(request.boot_id) <= 64 or not _TEXT.fullmatch(request.boot_id):
        fields["boot_id"] = ["Give 1 to 64 characters, without NUL and lone surrogates."]
    count = len(request.accelerators)
    if count > ACCELERATORS_LIMIT:
        fields["accelerators"] = [f"At most {ACCELERATORS_LIMIT} accelerators a node."]
    indices = sorted(info.index for info in request.accelerators)
    if indices != sorted(set(indices)) or any(not 0 <= i < 1000 for i in indices):
        fields["accelerators"] = ["Give each accelerator an index of its own, 0 to 999."]
    elif indices and request.last_port - request.first_port < max(indices):
        fields["last_port"] = ["Give at least one port for each accelerator."]
    if any(not 1 <= len(info.kind) <= 40 for info in request.accelerators):
        fields["accelerators"] = ["Give each accelerator a kind of 1 to 40 characters."]
    texts = [text for row in request.accelerators for text in (row.kind, row.name, row.uuid)]
    if not all(text.isprintable() for text in texts):
        fields["accelerators"] = ["Give text of printable characters."]
    if fields:
        raise InvalidInputError("The node's description is not valid.", fields=fields)


def _kinds_check(request: HelloRequest, node: Node | None = None) -> None:
    """Require one CPU thread count per kind: only equal counts give bitwise equal results.

    Raises:
        InvalidInputError: an accelerator of the same kind has another number of threads.
    """
    others = Accelerator.objects.filter(
        is_present=True, node__removed_at=None, kind__in={row.kind for row in request.accelerators}
    )
    if node is not None:
        others = others.exclude(node=node)
    threads = dict(others.values_list("kind", "threads"))
    for info in request.accelerators:
        known = threads.setdefault(info.kind, info.threads)
        if known != info.threads:
            raise InvalidInputError.of(
                accelerators=f"Kind {info.kind!r} stands for {known} CPU threads in this cluster, "
                f"not {info.threads}; start the agent with --threads {known} or another --kind."
            )


def _reply(node: Node, agent_token: str) -> EnrolReply:
    return EnrolReply(
        node_id=node.pk,
        agent_token=agent_token,
        heartbeat_s=float(settings.HEARTBEAT_S),
        lease_s=float(settings.LEASE_S),
    )
