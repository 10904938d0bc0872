"""Texts of the submission page about a dry run or measurement, with suggested changes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from controlplane.core.protocol.wire import Task
from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import ValidationStatus
from jobs.models import Validation
from jobs.selectors.dry_run import Outlook, OutlookKind, submission_outlook
from jobs.selectors.estimates.memory import (
    MemoryAdvice,
    advice_text,
    job_memory_advice,
    shortage_text,
    submission_memory_advice,
)
from jobs.selectors.settings_values import value_text
from jobs.services.submission.sweeps import SweepRequest
from jobs.services.submission.validations import TIME_LIMIT_GRACE_S
from jobs.submission import Submission

#: Jobs of a sweep that its preview shows.
SHOWN_DRAWS = 50


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a dry run or a measurement, in words.

    Attributes:
        memory: memory estimate of a slice; empty if unknown.
        num_virtual_nodes: a better number of virtual nodes, if any.
        traceback: of failing code.
        waits_at: address for polling a measurement that has not ended.
        page: address of the form as measured, with this result.
        columns, rows: a table, such as the settings of the jobs of a sweep.
    """

    tone: str
    title: str
    text: str
    memory: str = ""
    num_virtual_nodes: int | None = None
    traceback: str = ""
    waits_at: str = ""
    page: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def submission_check(submission: Submission, user: User) -> Check:
    """Describe the policy's decision and the memory estimate for a submission."""
    outlook = submission_outlook(submission, timezone.now(), user)
    check = Check(*_outlook_words(outlook))
    advice = submission_memory_advice(submission)
    if advice is None and submission.task is Task.PREDICT:
        return check
    if advice is None:
        return dataclasses.replace(
            check,
            memory="Memory use is unknown: this code has not been validated with "
            "these settings. “Measure memory” measures it.",
        )
    return _with_memory(check, advice)


def sweep_check(request: SweepRequest) -> Check:
    """Describe the jobs that a sweep would have."""
    num_jobs, names = len(request.settings), sorted(request.space)
    shown = request.settings[:SHOWN_DRAWS]
    text = f"At most {min(request.max_running, num_jobs)} of them run at once."
    if num_jobs > len(shown):
        text += f" The first {len(shown)} are shown."
    if request.num_draws is not None and num_jobs < request.num_draws:
        text += f" {request.num_draws} draws have only {num_jobs} different combinations."
    return Check(
        "good",
        f"Would submit {counted(num_jobs, 'job')}",
        text,
        columns=("Job", *names),
        rows=tuple(
            (str(number), *(value_text(drawn[name]) for name in names))
            for number, drawn in enumerate(shown, start=1)
        ),
    )


def validation_check(validation: Validation) -> Check:
    """Describe the state or result of a validation without submission."""
    page = f"{reverse('submit')}?validation={validation.pk}"
    if validation.status == ValidationStatus.RUNNING:
        limit_s = settings.VALIDATION_TIMEOUT_S + TIME_LIMIT_GRACE_S
        return Check(
            "plain",
            "Measuring",
            f"{validation.status_reason} The result appears here within {limit_s:.0f} s.",
            waits_at=reverse("validation", args=[validation.pk]),
            page=page,
        )
    if validation.status == ValidationStatus.FAILED:
        title = "Would be rejected"
        if validation.status_code == "validation_lost":
            title = "Not measured"
        reason, traceback = validation.status_reason, validation.error_traceback
        return Check("bad", title, reason, traceback=traceback)
    if validation.status != ValidationStatus.PASSED:
        return Check("warn", "Not measured", validation.status_reason)
    text = "A submission with these values, or with more virtual nodes, is not built again."
    check = Check("good", "Builds", text, page=page)
    job = validation.validated_job
    advice = job_memory_advice(job)
    if advice is None:
        unknown = "Its memory use could not be measured."
        if job.task == Task.PREDICT:
            unknown = "Memory is measured for jobs that train, not for those that predict."
        return dataclasses.replace(check, memory=unknown)
    if advice.short_kinds:
        where = "" if advice.fits_nowhere else " every kind of accelerator"
        check = dataclasses.replace(check, title=f"Builds, but does not fit{where}")
    return _with_memory(check, advice)


def _with_memory(check: Check, advice: MemoryAdvice) -> Check:
    shortage = shortage_text(advice)
    return dataclasses.replace(
        check,
        tone="warn" if shortage else check.tone,
        memory=f"{advice_text(advice)} {shortage}".strip(),
        num_virtual_nodes=advice.suggested if shortage else None,
    )


def _outlook_words(outlook: Outlook) -> tuple[str, str, str]:
    held = " and ".join(
        f"{count} \N{MULTIPLICATION SIGN} {kind}" for kind, count in outlook.accelerators.items()
    )
    given = ""
    if num_going_on := outlook.num_shrunk - outlook.num_stopped:
        others = counted(num_going_on, "other job")
        given = f" {others} would shrink to make room and keep training."
    if outlook.num_stopped:
        others = counted(outlook.num_stopped, "other job")
        given += f" {others} would be stopped until there is room again."
    if outlook.kind is OutlookKind.NOW:
        return "good", f"Would start now on {held}", f"{outlook.reason}{given}"
    if outlook.kind is OutlookKind.AFTER_RELEASE:
        title = f"Would start on {held} as soon as they are released"
        return "good", title, f"{outlook.reason}{given}"
    return "warn", "Would have to wait", outlook.reason
