"""Drafts: validations without submission, and the submissions that match them."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.db.models import QuerySet

from controlplane.core.protocol.wire import OnNonfinite, TrainingSpec
from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import NotFoundError
from jobs.models import Job
from jobs.models.jobs import MEASURED
from jobs.selectors.desired_state.state import training_spec
from jobs.selectors.estimates.memory import advice_text, job_memory_advice, shortage_text
from jobs.selectors.pages import Person, is_admin


def draft_visible_to(person: Person, draft_id: int) -> Job:
    """Find a draft.

    Raises:
        NotFoundError: no draft has this id, or the person may not see it.
    """
    drafts = Job.objects.filter(is_draft=True, id=draft_id).select_related("owner")
    draft = (drafts if is_admin(person) else drafts.filter(owner_id=person.pk)).first()
    if draft is None:
        raise NotFoundError("There is no such validation, or it is not yours.")
    return draft


def drafts_live() -> QuerySet[Job]:
    """Return the drafts in validation."""
    return Job.objects.filter(is_draft=True, status=JobStatus.VALIDATING)


def draft_of(job: Job) -> Job | None:
    """Find the owner's validated draft that matches the computation of `job`.

    The job may have more virtual nodes: its slices are smaller than the validated ones.
    """
    drafts = Job.objects.filter(
        owner_id=job.owner_id,
        is_draft=True,
        status_code=MEASURED,
        code_sha256=job.code_sha256,
        num_virtual_nodes__lte=job.num_virtual_nodes,
    )
    spec = _validated_part(job)
    drafts = drafts.order_by("-num_virtual_nodes", "-id")
    return next((draft for draft in drafts if _validated_part(draft) == spec), None)


def draft_as_data(draft: Job) -> dict[str, Any]:
    """Return a draft's result for the API."""
    advice = job_memory_advice(draft) if draft.status_code == MEASURED else None
    texts = [] if advice is None else [advice_text(advice), shortage_text(advice)]
    status = "measuring" if draft.status == JobStatus.VALIDATING else draft.status
    if draft.status == JobStatus.CANCELLED:
        status = draft.status_code  # measured, or replaced
    return {
        "id": draft.pk,
        "status": status,
        "code": draft.status_code,
        "text": " ".join([draft.status_reason, *texts]).strip(),
        "num_virtual_nodes": draft.num_virtual_nodes,
        "memory": None if advice is None else advice.as_data(),
        "facts": draft.facts,
        "error_field": draft.error_field,
        "error_traceback": draft.error_traceback,
        "requested_at": draft.submitted_at,
        "ended_at": draft.ended_at,
    }


def _validated_part(job: Job) -> TrainingSpec:
    """Return the validated part of a job's spec, except the number of virtual nodes."""
    spec = training_spec(job)
    return dataclasses.replace(
        spec,
        job_id=0,
        name="",
        num_virtual_nodes=1,
        stop=dataclasses.replace(spec.stop, limit=1),
        on_nonfinite=OnNonfinite.STOP,
    )
