"""Cluster-wide choice of the scheduling policy, and the state that policies carry."""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F

from controlplane.core.policies import POLICIES
from controlplane.core.protocol.codec import encode
from jobs.exceptions import InvalidInputError, StaleVersionError
from jobs.models import AuditAction, ClusterSetting, PolicyState
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import event_add


def cluster_setting() -> ClusterSetting:
    """Return the only row of cluster-wide settings; create it at first use."""
    row, _ = ClusterSetting.objects.get_or_create(
        id=1, defaults={"policy": settings.DEFAULT_POLICY}
    )
    return row


@transaction.atomic
def policy_choose(
    name: str,
    now: datetime.datetime,
    *,
    actor: str,
    reason: str = "",
    seen_version: int | None = None,
) -> ClusterSetting:
    """Switch the policy, effective from the next cycle; one that is in force is left as it is.

    Raises:
        InvalidInputError: no policy has this name.
        StaleVersionError: the setting changed since `seen_version`.
    """
    if name not in POLICIES:
        raise InvalidInputError.of(policy=f"Choose one of {', '.join(POLICIES)}.")
    row = cluster_setting()
    version = row.version if seen_version is None else seen_version
    if (row.policy, row.version) == (name, version):
        return row
    changed = ClusterSetting.objects.filter(id=1, version=version).update(
        policy=name, version=F("version") + 1, changed_by=actor, changed_at=now
    )
    if not changed:
        raise StaleVersionError("The policy was changed in the meantime; look at it again.")
    text = f"Policy {row.policy} → {name}" + (f": {reason}" if reason else "")
    before = row.policy
    audit_add(AuditAction.POLICY_CHANGED, actor=actor, before=before, after=name, reason=reason)
    data = {"before": before, "after": name, "reason": reason}
    event_add("policy", text, now=now, actor=actor, data=data)
    return cluster_setting()


def policy_state_write(policy: str, state: object | None) -> None:
    """Keep a policy's state for its next cycle."""
    if state is None:
        PolicyState.objects.filter(policy=policy).delete()
    else:
        PolicyState.objects.update_or_create(policy=policy, defaults={"state": encode(state)})
