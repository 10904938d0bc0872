"""Admin pages: nodes, enrolment tokens, audit log. All users see the nodes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.datastructures import MultiValueDict
from django.views.decorators.http import require_POST, require_safe

from frontend.views.changes import actor, person, reason_given
from jobs import nudges
from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import AuditAction, AuditEntry, Node
from jobs.models.audit import action_label
from jobs.query_values import whole_read
from jobs.selectors import access
from jobs.selectors.audit import AuditFilter, audit_page
from jobs.selectors.cluster_map import NodeMap, cluster_map, with_use
from jobs.selectors.nodes import enrolment_tokens, nodes_present, unfiltered_nodes
from jobs.services.cluster.agent_tokens import node_token_replace
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.node_shapes import shape_accept
from jobs.services.cluster.nodes import (
    ENROLMENT_TOKEN_HOURS,
    enrolment_token_create,
    enrolment_token_revoke,
)
from jobs.services.failures.quarantine import node_unquarantine

_TOKEN_HOURS_RANGE = (1, 168)
_CORDON_WORDS = {
    Cordon.CORDON: "is cordoned: no new work starts there",
    Cordon.DRAIN: "is being drained",
    Cordon.UNCORDON: "is back in service",
}


def admin_or_404(request: HttpRequest) -> None:
    """Raise Http404 for users who are not admins."""
    if not access.is_admin(request.user):
        raise Http404("No such page.")


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    """Show the nodes, their accelerators, and the holders."""
    return _nodes_page(request)


@require_POST
def node_token(request: HttpRequest) -> HttpResponse:
    """Create an enrolment token and show it once, in this response."""
    admin_or_404(request)
    low, high = _TOKEN_HOURS_RANGE
    text = request.POST.get("hours", "")
    hours = whole_read(text) or 0
    if not low <= hours <= high:
        messages.error(request, f"Give whole hours from {low} to {high}.")
        return redirect(f"{reverse('nodes')}?{urlencode({'hours': text[:20]})}")
    row, secret = enrolment_token_create(person(request), timezone.now(), lifetime_s=hours * 3600.0)
    isolation = " --isolation uid" if access.are_users_strangers() else ""
    new_token = {
        "expires_at": row.expires_at,
        "command": _agent_command(request, secret, "$(hostname | tr A-Z a-z)") + isolation,
    }
    return _nodes_page(request, new_token=new_token, token_hours=hours)


@require_POST
def node_new_token(request: HttpRequest, node_id: int) -> HttpResponse:
    """End the token of a node's agent, and show once the one with which it enrols again."""
    admin_or_404(request)
    node = get_object_or_404(Node, pk=node_id, removed_at=None)
    row, secret = node_token_replace(node, person(request), timezone.now(), actor=actor(request))
    isolation = " --isolation uid" if node.isolation == "uid" else ""
    new_token = {
        "expires_at": row.expires_at,
        "command": _agent_command(request, secret, node.name) + isolation,
        "node": node,
    }
    return _nodes_page(request, new_token=new_token)


def _agent_command(request: HttpRequest, secret: str, name: str) -> str:
    server = settings.STREAM_URL or request.build_absolute_uri("/").rstrip("/")
    return (
        f"VIRTUALFLOW_ENROLMENT_TOKEN={secret} \\\n"
        f"  python -m agents --server {server} --node {name}"
    )


@require_POST
def cordon(request: HttpRequest, node_id: int) -> HttpResponse:
    """Cordon, drain or uncordon a node."""
    admin_or_404(request)
    node = get_object_or_404(Node, pk=node_id, removed_at=None)
    try:
        change = Cordon(request.POST.get("change", ""))
    except ValueError:
        messages.error(request, "Choose cordon, drain or uncordon.")
        return redirect("nodes")
    reason = reason_given(request)[:200]
    try:
        has_changed = node_cordon(node, change, timezone.now(), actor=actor(request), reason=reason)
    except InvalidInputError as error:
        messages.error(request, error.fields["isolation"][0])
        return redirect("nodes")
    if has_changed:
        nudges.jobs_changed(cluster=True)
        text = _CORDON_WORDS[change]
        if change is Cordon.UNCORDON and node.is_closed_by_window(timezone.now()):
            text = "is uncordoned: it takes work again after its maintenance"
        messages.success(request, f"{node.name} {text}.")
    return redirect("node", node.pk) if request.POST.get("next") == "node" else redirect("nodes")


@require_POST
def unquarantine(request: HttpRequest, node_id: int) -> HttpResponse:
    """End a node's quarantine before its time is over."""
    admin_or_404(request)
    node = get_object_or_404(Node, pk=node_id, removed_at=None)
    if node_unquarantine(node, timezone.now(), actor=actor(request)):
        nudges.jobs_changed(cluster=True)
        messages.success(request, f"{node.name} is given work again.")
    return redirect("nodes")


@require_POST
def shape(request: HttpRequest, node_id: int) -> HttpResponse:
    """Accept the shape that a node proposes, if it is the one that the admin has seen."""
    admin_or_404(request)
    node = get_object_or_404(Node, pk=node_id, removed_at=None)
    try:
        shape_accept(node, request.POST.get("digest", ""), timezone.now(), actor=actor(request))
    except ConflictError as error:
        messages.error(request, error.detail)
    else:
        nudges.jobs_changed(cluster=True)
        messages.success(request, f"{node.name} is accepted as it is now.")
    return redirect("node", node.pk)


@require_POST
def node_token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """Revoke an unused enrolment token."""
    admin_or_404(request)
    enrolment_token_revoke(token_id)
    messages.success(request, "The enrolment token is revoked.")
    return redirect("nodes")


@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """Show the audit log, newest first, filtered and page by page."""
    admin_or_404(request)
    given = request.GET
    names = ("action", "actor", "object", "address")
    filters = {name: value for name in names if (value := given.get(name, "").strip())}
    matching = AuditFilter(
        MultiValueDict({name: [value] for name, value in filters.items()}),
        queryset=AuditEntry.objects.all(),
    )
    entries, has_older = audit_page(
        matching.qs if matching.is_valid() else AuditEntry.objects.none(),
        whole_read(given.get("before")),
    )
    context: dict[str, Any] = {
        "entries": entries,
        "filters": filters,
        "actions": [(action.value, action_label(action)) for action in AuditAction],
        "days": settings.AUDIT_DAYS,
    }
    if has_older:
        context["older_query"] = urlencode({**filters, "before": entries[-1].pk})
    return render(request, "frontend/audit.html", context)


def _nodes_page(request: HttpRequest, **more: Any) -> HttpResponse:
    maps = {node_map.node: node_map for node_map in cluster_map(request.user)}
    rows = [maps.get(node, NodeMap(node, [])) for node in nodes_present(request.user)]
    rows = with_use(rows, timezone.now())
    context: dict[str, Any] = {"rows": rows}
    context["token_hours"] = request.GET.get("hours", ENROLMENT_TOKEN_HOURS)
    context["lease_s"] = int(settings.LEASE_S)
    context |= {"strangers": access.are_users_strangers(), "unfiltered": unfiltered_nodes(), **more}
    if access.is_admin(request.user):
        context["unused_tokens"] = enrolment_tokens(timezone.now())
    response = render(request, "frontend/nodes.html", context)
    if "new_token" in context:
        response.headers["Cache-Control"] = "no-store"
    return response
