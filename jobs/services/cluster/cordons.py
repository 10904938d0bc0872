"""Cordons and drains of nodes: by people, by the site itself, and their end."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection
from enum import StrEnum
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import Q

from jobs.models import AuditAction, Node
from jobs.selectors.access import are_users_strangers
from jobs.selectors.drains import DrainMove, drain_preview, drain_record
from jobs.services.cluster.nodes import isolation_check
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import SYSTEM, event_add

logger = logging.getLogger(__name__)


class Cordon(StrEnum):
    """Change of what a node may be used for."""

    CORDON = "cordon"  # no new work; jobs keep what they hold there
    DRAIN = "drain"  # no new work, and jobs leave
    UNCORDON = "uncordon"


#: Change -> whether the node is cordoned and draining then, kind of the event, its words.
_CORDONS = {
    Cordon.CORDON: (True, False, AuditAction.NODE_CORDONED, "takes no new work"),
    Cordon.DRAIN: (True, True, AuditAction.NODE_DRAINED, "takes no new work, and its jobs leave"),
    Cordon.UNCORDON: (False, False, AuditAction.NODE_UNCORDONED, "takes work again"),
}


def node_cordon(
    node: Node, change: Cordon, now: datetime.datetime, *, actor: str, reason: str = ""
) -> bool:
    """Cordon, drain or uncordon a node; return False if nothing changed.

    The event of a drain has the preview of it, for a comparison with what happens. A person's
    cordon takes the place of one by `system`, and `system` changes none by a person.

    Raises:
        InvalidInputError: the node would be cordoned again, as `isolation_check`.
    """
    is_cordoned, is_draining, kind, verb = _CORDONS[change]
    if change is Cordon.UNCORDON:
        isolation_check(node.isolation)
    same, by_system = Q(is_cordoned=is_cordoned, is_draining=is_draining), Q(cordoned_by=SYSTEM)
    rows = Node.objects.filter(id=node.pk)
    if actor == SYSTEM:
        rows = rows.filter(Q(is_cordoned=False) | by_system).exclude(same)
    else:
        rows = rows.exclude(same & ~by_system)
    data: dict[str, Any] = {"reason": reason}
    if change is Cordon.DRAIN and not node.is_draining:
        data["jobs"] = drain_record(moves_expected([node], now))
    with transaction.atomic():
        changed = rows.update(
            is_cordoned=is_cordoned,
            is_draining=is_draining,
            cordoned_by=actor if is_cordoned else "",
            cordon_reason=reason if is_cordoned else "",
        )
        if changed:
            if change is Cordon.UNCORDON and node.is_closed_by_window(now):
                verb = "takes work again after its maintenance"
            text = f"{node.name} {verb}" + (f": {reason}" if reason else "")
            event_add(kind, text, now=now, node=node, actor=actor, data=data)
            audit_add(kind, f"node:{node.name}", actor=actor, reason=reason)
    return bool(changed)


def shared_nodes_cordon(now: datetime.datetime) -> bool:
    """Cordon nodes whose jobs share a user, on a site of strangers; return whether any changed.

    They enrolled before there was a second account. What runs there goes on. These cordons end
    when the users are no strangers any more, or the node's jobs have users of their own.
    """
    nodes = Node.objects.filter(removed_at=None)
    are_shared = Q(isolation="none") if are_users_strangers() else Q(pk__in=[])
    shared = nodes.filter(are_shared, is_cordoned=False)
    reason = "its jobs share a user, and the site has several active accounts"
    changed = [
        node_cordon(node, Cordon.CORDON, now, actor=SYSTEM, reason=reason) for node in shared
    ]
    reason = "its jobs no longer share a user with those of other accounts"
    held = nodes.filter(cordoned_by=SYSTEM).exclude(are_shared)
    changed += [
        node_cordon(node, Cordon.UNCORDON, now, actor=SYSTEM, reason=reason) for node in held
    ]
    return any(changed)


def moves_expected(nodes: Collection[Node], now: datetime.datetime) -> list[DrainMove]:
    """Return the preview of a drain for its record; empty if the policy fails, as cycles would."""
    try:
        return drain_preview(nodes, now)
    except DatabaseError:
        raise
    except Exception:
        logger.exception("the drain of %s cannot be previewed", ", ".join(map(str, nodes)))
        return []
