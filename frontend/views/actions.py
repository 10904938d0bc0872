"""Job actions behind buttons: one POST each, a message, and a redirect to the page."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from controlplane.core.values.tiers import TIERS, Tier
from frontend.views.changes import actor, person, reason_given, words
from frontend.views.job import TYPED_LABELS, changeable_job_or_404
from frontend.views.reprioritise import reprioritise_confirm, standing_given, standing_seen
from jobs import nudges
from jobs.api.jobs.serializers import DescriptionSerializer
from jobs.api.requests import checked
from jobs.exceptions import ControlPlaneError, InvalidInputError, StaleVersionError
from jobs.models import Job
from jobs.query_values import whole_read
from jobs.services.lifecycle.retention import files_delete
from jobs.services.submission import job_actions
from jobs.services.submission.standing import Standing, standing_read


def _action(change: Callable[..., Job], done: str) -> Callable[[HttpRequest, int], HttpResponse]:
    """Return a view of a button that changes a job by a service and needs nothing else."""

    def act(request: HttpRequest, job_id: int) -> HttpResponse:
        return _do(
            request,
            changeable_job_or_404(request, job_id),
            lambda job: change(job.pk, timezone.now(), actor=actor(request)),
            done,
        )

    return require_POST(act)


job_cancel = _action(job_actions.job_cancel, "Job #{} is cancelled.")
job_files_delete = _action(files_delete, "The files of job #{} are deleted.")
job_pause = _action(
    job_actions.job_pause, "Job #{} gives its accelerators back and keeps its state."
)
job_resume = _action(job_actions.job_resume, "Job #{} is in the queue again.")


@require_POST
def job_priority(request: HttpRequest, job_id: int) -> HttpResponse:
    """Change a job's priority or tier; for another user's job with a reason shown to its owner.

    With `preview` its effect is shown first, and nothing changes.
    """
    job = changeable_job_or_404(request, job_id)
    if "preview" in request.POST:
        return reprioritise_confirm(request, [str(job.pk)], is_one=True, job=job)
    given = standing_given(request, job)
    text = " and ".join(f"{name} {value}" for name, value in given.items())
    return _do(
        request,
        job,
        lambda job: job_actions.job_reprioritise(
            job.pk,
            standing_read(person(request), given),
            timezone.now(),
            actor=actor(request),
            reason=reason_given(request),
            is_reason_required=job.owner_id != person(request).pk,
            seen=_standing_seen(request, job),
        ),
        f"Job #{{}} has {text} now.",
    )


def _standing_seen(request: HttpRequest, job: Job) -> Standing:
    seen = standing_seen(request, str(job.pk))
    tier = seen.get("expected_tier")
    return Standing(
        whole_read(seen.get("expected_priority", "")), Tier(tier) if tier in TIERS else None
    )


@require_POST
def job_describe(request: HttpRequest, job_id: int) -> HttpResponse:
    """Change the tags and the note of a job, each if the form changes it: others may have, too.

    What others have changed since the form was made is not overwritten unseen.
    """

    def change(job: Job) -> Job:
        try:
            changes = checked(DescriptionSerializer, _labels_given(request, job))
        except (InvalidInputError, StaleVersionError):
            typed = {name: request.POST.get(name, "")[:2000] for name in ("tags", "note")}
            request.session[TYPED_LABELS] = {"job": job.pk, **typed}
            raise
        return job_actions.job_describe(job.pk, timezone.now(), actor=actor(request), **changes)

    return _do(
        request,
        changeable_job_or_404(request, job_id),
        change,
        "Tags and note of job #{} are saved.",
    )


def _labels_given(request: HttpRequest, job: Job) -> dict[str, str]:
    """Return tags and note of a form, each if it differs from what the form was made with.

    Raises:
        StaleVersionError: somebody else has changed one of them since.
    """
    given, stale = {}, []
    for name, present in (("tags", ", ".join(job.tags)), ("note", job.note)):
        text, seen = request.POST.get(name, ""), request.POST.get(f"seen-{name}")
        if seen is not None and text == _one_line(seen):
            continue
        given[name] = text
        if seen is not None and _one_line(present) not in (_one_line(seen), text):
            stale.append(name)
    if stale:
        raise StaleVersionError(
            f"Somebody else has changed the {' and the '.join(stale)} in the meantime. Compare "
            "what you typed with what is there, and save it again if it is still meant."
        )
    return given


def _one_line(text: str) -> str:
    """Return a text as a browser has it in a field of one line."""
    return re.sub(r"[\r\n]", "", text)


def _do(request: HttpRequest, job: Job, change: Callable[[Job], Job], done: str) -> HttpResponse:
    """Make a change, wake waiting processes, and redirect with a message."""
    try:
        change(job)
    except ControlPlaneError as error:
        messages.error(request, words(error))
    else:
        nudges.jobs_changed([job.pk], orders=True)
        messages.success(request, done.format(job.pk))
    return redirect("job", job.pk)
