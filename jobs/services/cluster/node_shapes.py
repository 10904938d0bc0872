"""Shape of a node: its accelerators, host and ports, pinned at enrolment.

An agent's token is readable for the jobs of its node, so a `hello` cannot give the node another
shape, with which it would be given other jobs. The new shape is kept until an admin accepts it.
"""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from django.conf import settings
from django.db import transaction

from controlplane.core.protocol.node_messages import HelloRequest
from controlplane.core.protocol.wire import AcceleratorInfo, decode, encode
from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import NodeStatus
from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import Accelerator, AuditAction, Event, Node
from jobs.services.cluster.tokens import values_digest
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import event_add

#: Share by which the memory of an accelerator may differ, after an update of its driver.
_MEMORY_SHARE = 0.05
#: Bounds of what an agent tells of an accelerator.
_MEMORY_LIMIT, _THREADS_LIMIT = 2**60, 4096
_NAME_CHARACTERS, _UUID_CHARACTERS = 120, 80
#: Events of one node about other shapes within an hour; a hostile agent has many.
CHANGES_AN_HOUR = 10
RESOLVE_LIMIT_S = 3.0
#: Addresses at which clouds serve credentials, besides the link-local ones.
_METADATA = frozenset({"100.100.100.200", "168.63.129.16", "fd00:ec2::254"})
_resolver = ThreadPoolExecutor(4, "resolve")


def host_check(host: str) -> None:
    """Refuse hosts to which trainers must not be sent.

    Raises:
        InvalidInputError: the host does not resolve, or to a link-local or metadata address.
    """
    for address in _addresses(host):
        mapped = getattr(address, "ipv4_mapped", None) or address
        is_odd = mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified
        if is_odd or str(mapped) in _METADATA:
            raise InvalidInputError.of(
                host=f"{host!r:.80} is {mapped}, an address that no trainer can have; start the "
                "agent with --host and the node's own address."
            )


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host; one without a name waits for no name server.

    Raises:
        InvalidInputError: the host does not resolve.
    """
    bare = host.strip("[]")
    try:
        return [ipaddress.ip_address(bare)]
    except ValueError:
        pass  # a name
    try:
        found = _resolver.submit(socket.getaddrinfo, bare, None).result(RESOLVE_LIMIT_S)
    except (OSError, UnicodeError, FutureTimeoutError):
        raise InvalidInputError.of(
            host=f"{host!r:.80} does not resolve here; start the agent with --host and an address."
        ) from None
    return [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in found]


def ports_taken(request: HelloRequest, now: datetime.datetime, node: Node | None = None) -> str:
    """Describe the live node with overlapping trainer ports; empty if there is none."""
    neighbours = Node.objects.filter(
        host=request.host,
        status=NodeStatus.ONLINE,
        removed_at=None,
        last_seen_at__gt=now - datetime.timedelta(seconds=settings.LEASE_S),
        first_port__lte=request.last_port,
        last_port__gte=request.first_port,
    )
    found = (neighbours if node is None else neighbours.exclude(id=node.pk)).first()
    if found is None:
        return ""
    return (
        f"{found.name} uses ports {found.first_port} to {found.last_port} of {found.host}; "
        "give each node on a host ports of its own."
    )


def accelerators_write(node: Node, infos: Sequence[AcceleratorInfo]) -> None:
    """Write the rows of a node's accelerators; those that are not listed are not present."""
    for info in infos:
        values = {**encode(_bounded(info)), "is_present": True}
        Accelerator.objects.update_or_create(node=node, index=values.pop("index"), defaults=values)
    present = [info.index for info in infos]
    Accelerator.objects.filter(node=node).exclude(index__in=present).update(is_present=False)


def shape_check(node: Node, request: HelloRequest, now: datetime.datetime) -> None:
    """Compare a hello with the pinned shape, and keep another shape for an admin.

    Accelerators may be missing, and come back. Ports are not pinned on a loopback host: there they
    are those that happen to be free.

    Raises:
        ConflictError: the shape is another one; nothing else was changed.
    """
    if _is_pinned(node, request):
        if node.proposed_shape is not None:
            Node.objects.filter(id=node.pk).update(proposed_shape=None)
        return
    shape: dict[str, Any] = {
        "host": request.host,
        "first_port": request.first_port,
        "last_port": request.last_port,
        "accelerators": [encode(_bounded(info)) for info in request.accelerators],
    }
    shape["digest"] = values_digest(shape)
    changed = Node.objects.filter(id=node.pk).exclude(proposed_shape__digest=shape["digest"])
    recent = Event.objects.filter(
        node=node, kind="node_changed", at__gt=now - datetime.timedelta(hours=1)
    )
    if changed.update(proposed_shape=shape) and recent.count() < CHANGES_AN_HOUR:
        text = f"{node.name} has changed and waits for an admin: {_shape_text(shape)}"
        event_add("node_changed", text, now=now, node=node, data=shape)
    raise ConflictError(
        "The node has other accelerators, or another host or ports, than it was enrolled with; an "
        f"admin accepts them with POST /api/v1/nodes/{node.pk}/accept-shape/, or removes the node.",
        code="shape_changed",
    )


def shape_accept(node: Node, digest: str, now: datetime.datetime, *, actor: str) -> None:
    """Give a node the shape that it has proposed.

    Args:
        digest: of the proposal that the admin has seen.

    Raises:
        ConflictError: the node proposes another shape, or none.
    """
    with transaction.atomic():
        row = Node.objects.select_for_update(no_key=True).get(id=node.pk)
        shape = row.proposed_shape
        if shape is None or shape["digest"] != digest:
            raise ConflictError(
                "The node does not propose this shape (any more); read it again.",
                code="shape_not_proposed",
            )
        request = decode(HelloRequest, {**shape, "boot_id": row.boot_id})
        row.host = request.host
        row.first_port, row.last_port = request.first_port, request.last_port
        row.proposed_shape = None
        row.save(update_fields=["host", "first_port", "last_port", "proposed_shape"])
        Accelerator.objects.filter(node=row, allocations=None).delete()
        accelerators_write(row, request.accelerators)
        text = f"{row.name} was accepted as it is now: {_shape_text(shape)}"
        event_add("node_accepted", text, now=now, node=row, actor=actor, data=shape)
        address = {name: shape[name] for name in ("host", "first_port", "last_port")}
        audit_add(
            AuditAction.NODE_SHAPE_ACCEPTED,
            f"node:{row.name}",
            actor=actor,
            digest=digest,
            **address,
        )


def _is_pinned(node: Node, request: HelloRequest) -> bool:
    ports = (request.first_port, request.last_port)
    if request.host != node.host:
        return False
    if ports != (node.first_port, node.last_port) and not _is_loopback(node.host):
        return False
    rows = {row.index: row for row in node.accelerators.all()}
    return all(
        (row := rows.get(info.index)) is not None
        and (row.kind, row.threads) == (info.kind, info.threads)
        and abs(row.memory_bytes - info.memory_bytes) <= _MEMORY_SHARE * row.memory_bytes
        for info in map(_bounded, request.accelerators)
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _bounded(info: AcceleratorInfo) -> AcceleratorInfo:
    """Return what an agent tells of an accelerator, cut to what its columns hold."""
    return dataclasses.replace(
        info,
        name=info.name[:_NAME_CHARACTERS],
        memory_bytes=min(max(info.memory_bytes, 0), _MEMORY_LIMIT),
        threads=min(max(info.threads, 0), _THREADS_LIMIT),
        uuid=info.uuid[:_UUID_CHARACTERS],
    )


def _shape_text(shape: dict[str, Any]) -> str:
    """Describe a shape for everybody: without its address."""
    kinds = sorted({row["kind"] for row in shape["accelerators"]})
    count = counted(len(shape["accelerators"]), "accelerator")
    return f"{count} ({', '.join(kinds)})"
