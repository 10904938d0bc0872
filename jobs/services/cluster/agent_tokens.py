"""Tokens of agents: looked up, replaced after a time, and refused once replaced."""

from __future__ import annotations

import datetime
from functools import cache

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from controlplane.core.protocol.node_messages import EnrolRequest
from jobs.exceptions import ConflictError, ForbiddenError
from jobs.models import AuditAction, EnrolmentToken, Node
from jobs.selectors.prepared import PreparedObjects
from jobs.services.cluster.tokens import token_digest, token_make
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import event_add

REPLACEMENT_HOURS = 24
#: Stand-in of `_node_query`.
_DIGEST = "digest"


def node_by_token(text: str, now: datetime.datetime) -> Node | None:
    """Return the node of an agent token; the first use of a new token ends the old one."""
    digest = token_digest(text)
    node = _node_query().first({_DIGEST: digest})
    if node is not None and node.agent_token_digest != digest:
        Node.objects.filter(id=node.pk, next_agent_token_digest=digest).update(
            agent_token_digest=digest, next_agent_token_digest="", agent_token_issued_at=now
        )
    return node


@cache
def _node_query() -> PreparedObjects[Node]:
    has_token = Q(agent_token_digest=_DIGEST) | Q(next_agent_token_digest=_DIGEST)
    return PreparedObjects(Node.objects.filter(has_token))


def token_for_hello(node: Node, present: str, now: datetime.datetime) -> str:
    """Return the token that an agent is to use from now on: the present one, or a new one.

    Both are valid until the new one is used, so that a lost answer locks nobody out.
    """
    if not _is_old(node, now):
        return present
    text = token_make("vfa")
    Node.objects.filter(id=node.pk).update(next_agent_token_digest=token_digest(text))
    return text


def token_age_check(node: Node, now: datetime.datetime) -> None:
    """Ask an agent for a hello once its token is old; one that ignores the new token goes on.

    Raises:
        ConflictError: the token is old, and no new one was sent yet.
    """
    if _is_old(node, now) and not node.next_agent_token_digest:
        raise ConflictError("The agent's token is old; say hello for a new one.", code="token_old")


def node_token_replace(
    node: Node, person: User | None, now: datetime.datetime, *, actor: str
) -> tuple[EnrolmentToken, str]:
    """End a node's agent token, and create an enrolment token for this node alone.

    Its trainers go on; its agent has a minute to be restarted with the new token.
    """
    enrolment_token = token_make("vfe")
    with transaction.atomic():
        Node.objects.filter(id=node.pk).update(
            agent_token_digest=token_digest(token_make("vfa")), next_agent_token_digest=""
        )
        EnrolmentToken.objects.filter(node=node).delete()
        text = f"The token of {node.name} was ended; its agent has to enrol again"
        event_add("node_token_replaced", text, now=now, node=node, actor=actor)
        audit_add(AuditAction.NODE_TOKEN_REPLACED, f"node:{node.name}", now=now)
        row = EnrolmentToken.objects.create(
            digest=token_digest(enrolment_token),
            created_by=person,
            node=node,
            expires_at=now + datetime.timedelta(hours=REPLACEMENT_HOURS),
        )
    return row, enrolment_token


def enrolment_token_check(request: EnrolRequest, now: datetime.datetime) -> EnrolmentToken:
    """Return an enrolment token that can be used; its node, if any, is the one it enrols again.

    That is the node that the token was made for, or that has enrolled with it just now: an agent
    whose answer was lost asks again.

    Raises:
        ForbiddenError: it is unknown or expired.
        ConflictError: it was used.
    """
    tokens = EnrolmentToken.objects.filter(digest=token_digest(request.token))
    row = tokens.select_related("node").first()
    if row is None or row.expires_at <= now:
        raise ForbiddenError(
            "The enrolment token is unknown or expired; ask an admin for a new one.",
            code="enrolment_token_unknown",
        )
    if row.used_at is not None and not _is_unanswered(row, row.used_at, request):
        raise _token_used()
    return row


def enrolment_token_use(row: EnrolmentToken, now: datetime.datetime) -> None:
    """Mark a checked enrolment token as used.

    Raises:
        ConflictError: another agent has used it since.
    """
    if not EnrolmentToken.objects.filter(id=row.pk, used_at=row.used_at).update(used_at=now):
        raise _token_used()


def _is_unanswered(row: EnrolmentToken, used_at: datetime.datetime, request: EnrolRequest) -> bool:
    """Return whether the agent that used a token asks again, and was not heard of in between."""
    node = row.node
    return (
        node is not None
        and (node.name, node.boot_id) == (request.name, request.boot_id)
        and node.last_seen_at <= used_at
    )


def _token_used() -> ConflictError:
    return ConflictError(
        "The enrolment token was used already; each one lets one node in.",
        code="enrolment_token_used",
    )


def agent_token_set(node: Node, name: str, agent_token: str, now: datetime.datetime) -> None:
    """Give the agent of an enrolled node a new token.

    Raises:
        ForbiddenError: the agent has another name.
    """
    if name != node.name:
        raise ForbiddenError(f"The enrolment token is for node {node.name!r} only.")
    Node.objects.filter(id=node.pk).update(
        agent_token_digest=token_digest(agent_token),
        next_agent_token_digest="",
        agent_token_issued_at=now,
    )
    event_add("node_enrolled", f"{node.name} has a new token", now=now, node=node)


def _is_old(node: Node, now: datetime.datetime) -> bool:
    limit = datetime.timedelta(days=settings.AGENT_TOKEN_DAYS)
    return bool(limit) and now - node.agent_token_issued_at >= limit
