"""Actions on many jobs from a form: performed, told, and undone by another form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest

from controlplane.core.values.explanations import counted
from frontend.live.refreshes import is_live_refresh
from frontend.views.changes import person, words
from jobs.api.jobs.action_views import action_perform
from jobs.exceptions import ControlPlaneError
from jobs.services.submission.many_jobs import ActionOutcome

_UNDO, _TYPED = "jobs_undo", "jobs_typed"
_UNDO_LIMIT_BYTES = 150_000
_DONE = {
    "cancel": "cancelled, for good",
    "reprioritise": "reprioritised",
    "tag": "tagged",
    "untag": "untagged",
}
_OPPOSITE = {"tag": "untag", "untag": "tag"}


def request_perform(request: HttpRequest, body: dict[str, Any]) -> bool:
    """Perform a request of `jobs/actions/`; the next page tells the outcomes and offers the undo.

    Returns:
        False: the request was refused, as a message says.
    """
    try:
        outcomes, undo = action_perform(person(request), body)
    except ControlPlaneError as error:
        messages.error(request, words(error))
        return False
    _report(request, str(body["action"]), outcomes)
    request.session[_UNDO] = (
        "" if "undo" in request.POST or not undo else json.dumps(undo),
        [f"#{one.job_id}: {one.detail}" for one in outcomes if one.code],
    )
    return True


def typed_keep(request: HttpRequest) -> None:
    """Keep the fields of a refused form for the next page."""
    names = ("tag", "reason", "priority", "tier")
    request.session[_TYPED] = {name: request.POST.get(name, "")[:500] for name in names}


def undo_shown(request: HttpRequest) -> dict[str, Any]:
    """Return what the last action leaves to show, once: undo, refusals, or the refused fields.

    A live refresh leaves both to the next page.
    """
    if is_live_refresh(request):
        return {}
    undo, outcomes = request.session.pop(_UNDO, ("", []))
    return {
        "undo": undo,
        "undone": _undone(undo) if undo else "",
        "outcomes": outcomes,
        "typed": request.session.pop(_TYPED, {}),
    }


def _undone(undo: str) -> str:
    """Return what the undo of `request_perform` takes back: `2 jobs tagged sweep`."""
    (body,) = json.loads(undo)
    action = body["action"]
    jobs = counted(len(body.get("jobs") or body["changes"]), "job")
    return f"{jobs} {_DONE[_OPPOSITE.get(action, action)]} {body.get('tag', '')}".rstrip()


def undo_request(request: HttpRequest) -> dict[str, Any] | None:
    """Read the request of an undo form; None if it is none of ours."""
    text = request.POST.get("undo", "")[:_UNDO_LIMIT_BYTES]
    try:
        bodies = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(bodies, list) and len(bodies) == 1 and isinstance(bodies[0], dict)
    return bodies[0] if is_ours else None


def _report(request: HttpRequest, action: str, outcomes: Sequence[ActionOutcome]) -> None:
    num_done = sum(not outcome.code for outcome in outcomes)
    num_refused = len(outcomes) - num_done
    text = f"{counted(num_done, 'job')} {_DONE[action]}."
    if num_refused:
        text += f" {num_refused} refused."
    report = messages.error if num_refused else messages.success
    report(request, text)
