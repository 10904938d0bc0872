"""Jobs by REST: submit, list, get, wait, and user actions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone
from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from controlplane.core.protocol.wire import Task
from jobs import nudges
from jobs.api.jobs.dry_run import SubmissionOutlookSerializer, submission_preview
from jobs.api.jobs.serializers import (
    DescriptionSerializer,
    JobSerializer,
    JobSummarySerializer,
    PrioritySerializer,
    ReasonSerializer,
)
from jobs.api.jobs.submission_request import (
    objects_flattened,
    settings_changed,
    submission_fields,
    submission_of,
    submission_read,
)
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.api.openapi import fields_param, if_match_param, number_parameter, one_of
from jobs.api.pagination import JobPages
from jobs.api.parsers import SUBMISSION_PARSERS
from jobs.api.requests import (
    ETAG,
    actor,
    body,
    changeable_job,
    checked,
    chosen_fields,
    etag,
    flag_param,
    number_param,
    person,
    revision_expected,
    text_field,
    visible_job,
    visible_jobs,
    whole_param,
)
from jobs.api.throttles import preview_count
from jobs.api.waiting import changes_await
from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.models import Job
from jobs.selectors.access import job_version
from jobs.selectors.job_filter import JobFilter
from jobs.selectors.retention import code_open
from jobs.services.lifecycle.audit import read_audit, reads_audit
from jobs.services.submission import job_actions
from jobs.services.submission.rows import job_clone_values, submission_try
from jobs.services.submission.standing import standing_read
from jobs.submission import Submission, prediction_values

_KEY_LIMIT = 120


class JobList(generics.ListAPIView):
    """All jobs visible to the user, newest first unless told; POST submits one."""

    queryset = Job.objects.none()
    serializer_class = JobSummarySerializer
    filterset_class = JobFilter
    pagination_class = JobPages
    parser_classes = SUBMISSION_PARSERS

    def get_queryset(self) -> Any:
        jobs = visible_jobs(self.request)
        # Chosen fields must not cost a query per row.
        if self._chosen() is None:
            return jobs
        return jobs.defer(None).prefetch_related("artifacts")

    def get_serializer_class(self) -> Any:
        return JobSerializer if self._shows_pages() else JobSummarySerializer

    def paginate_queryset(self, queryset: Any) -> Any:
        jobs = super().paginate_queryset(queryset)
        if self._shows_pages():
            reads_audit(self.request.user, jobs or (), "page")
        return jobs

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "fields": self._chosen()}

    def _shows_pages(self) -> bool:
        chosen = self._chosen()
        return chosen is not None and JobSerializer.is_page(chosen)

    def _chosen(self) -> set[str] | None:
        if getattr(self, "swagger_fake_view", False):
            return None
        return chosen_fields(self.request, JobSerializer.Meta.fields)

    @extend_schema(parameters=[fields_param(JobSerializer.Meta.fields)])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List jobs."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        request=SubmissionSerializer,
        responses={
            200: one_of("JobOrOutlook", JobSerializer, SubmissionOutlookSerializer),
            201: JobSerializer,
        },
        parameters=[
            OpenApiParameter("dry_run", bool, description="Check and foretell; store nothing."),
            OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER),
        ],
    )
    def post(self, request: Request) -> Response:
        """Submit a job (JSON, YAML, form or multipart)."""
        wanted = submission_of(request)
        if flag_param(request, "dry_run"):
            preview_count(person(request))
            submission_try(person(request), wanted)
            return Response(submission_preview(wanted, person(request)))
        return _submitted(request, wanted)


def key_of(request: Request) -> str:
    """Return the `Idempotency-Key` of a request; empty without one.

    Raises:
        InvalidInputError: it is too long.
    """
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > _KEY_LIMIT:
        raise InvalidInputError.of(idempotency_key=f"At most {_KEY_LIMIT} characters.")
    return key


def _submitted(
    request: Request, wanted: Submission, copied_from: Job | None = None, digest: str = ""
) -> Response:
    """Submit a job; 200 instead of 201 if a request with the same key has done so."""
    now, key = timezone.now(), key_of(request)
    job = job_actions.job_submit(
        person(request),
        wanted,
        now,
        idempotency_key=key,
        copied_from=copied_from,
        digest=digest,
    )
    is_new = job.submitted_at == now
    if is_new:
        nudges.jobs_changed([job.pk], orders=True)
    return _made_response(request, job, 201 if is_new else 200)


def _made_response(request: Request, job: Job, status: int) -> Response:
    headers = {"Location": reverse("api:job-detail", [job.pk], request=request)}
    return _job_response(request, job.pk, status=status, headers=headers)


def _job_response(
    request: Request, job_id: int, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    chosen = chosen_fields(request, JobSerializer.Meta.fields)
    job = visible_job(request, job_id, chosen)
    if JobSerializer.is_page(chosen):
        read_audit(request.user, job, "page")
    data = JobSerializer.render(job, chosen, request.user)
    tag = {"ETag": etag(job.revision, job.version)}
    return Response(data, status=status, headers={**tag, **(headers or {})})


class JobDetail(APIView):
    """One job. `If-None-Match` yields 304 if unchanged; `wait` waits for a change."""

    @extend_schema(
        responses={200: JobSerializer, 304: None},
        parameters=[
            number_parameter(
                "wait",
                0,
                settings.WAIT_LIMIT_S,
                "Seconds to wait for a change since `since_version`, to 30.",
            ),
            number_parameter("since_version", 0, 2**31, "The version that is known.", "integer"),
            fields_param(JobSerializer.Meta.fields),
            OpenApiParameter("If-None-Match", str, OpenApiParameter.HEADER),
        ],
    )
    def get(self, request: Request, job_id: int) -> Response:
        """Get a job."""
        wait_s = number_param(request, "wait", 0, settings.WAIT_LIMIT_S) or 0.0
        since = whole_param(request, "since_version", 2**31)
        if wait_s and since is None:
            raise InvalidInputError.of(
                since_version="Give the version that you know; the wait is for the next."
            )
        if wait_s and since is not None:
            changes_await(request, lambda: _version(request, job_id)[1] > since, job_id, wait_s)
        # Most polls find no change: answer them from two numbers.
        known = request.META.get("HTTP_IF_NONE_MATCH")
        if known:
            row = _version(request, job_id)
            if {"*", etag(*row)} & {tag.removeprefix("W/") for tag in parse_etags(known)}:
                return Response(status=304, headers={"ETag": etag(*row)})
        return _job_response(request, job_id)

    @extend_schema(
        request=DescriptionSerializer,
        responses={200: JobSerializer},
        parameters=[if_match_param(ETAG)],
    )
    def patch(self, request: Request, job_id: int) -> Response:
        """Change tags and note of a job; they have no effect on its training."""
        changes = checked(DescriptionSerializer, body(request))
        job = changeable_job(request, job_id)
        job_actions.job_describe(
            job.pk,
            timezone.now(),
            actor=actor(request),
            seen_revision=revision_expected(request),
            **changes,
        )
        nudges.jobs_changed([job_id])
        return _job_response(request, job_id)


def _version(request: Request, job_id: int) -> tuple[int, int]:
    row = job_version(request.user, job_id)
    if row is None:
        raise NotFoundError("There is no such job, or it is not yours.")
    return row


class JobAction(APIView):
    """Base of user actions on a job.

    Attributes:
        fields: of the body.
        change: service that performs the action, unless `act` does.
    """

    fields: ClassVar[tuple[str, ...]] = ("reason",)
    change: ClassVar[Callable[..., Job]]

    def act(self, request: Request, job: Job, reason: str) -> None:
        """Perform the action."""
        type(self).change(job.pk, timezone.now(), actor=actor(request), reason=reason)

    @extend_schema(request=ReasonSerializer, responses={200: JobSerializer})
    def post(self, request: Request, job_id: int) -> Response:
        job = changeable_job(request, job_id)
        self.act(request, job, text_field(body(request, *self.fields), "reason"))
        nudges.jobs_changed([job_id], orders=True)
        return _job_response(request, job_id)


class JobCancel(JobAction):
    """Cancel a job."""

    change = job_actions.job_cancel


class JobPause(JobAction):
    """Pause a job: its state is saved, its accelerators become free."""

    change = job_actions.job_pause


class JobResume(JobAction):
    """Resume a paused job."""

    change = job_actions.job_resume


class JobReprioritise(JobAction):
    """Change a job's priority or tier; another user's job needs a reason."""

    fields = ("reason", "priority", "tier")

    @extend_schema(
        request=PrioritySerializer,
        responses={200: JobSerializer},
        parameters=[if_match_param(ETAG)],
    )
    def post(self, request: Request, job_id: int) -> Response:
        return super().post(request, job_id)

    def act(self, request: Request, job: Job, reason: str) -> None:
        job_actions.job_reprioritise(
            job.pk,
            standing_read(person(request), body(request)),
            timezone.now(),
            actor=actor(request),
            reason=reason,
            is_reason_required=job.owner_id != request.user.pk,
            seen_revision=revision_expected(request),
        )


class JobClone(APIView):
    """Submit a job again, with some fields changed."""

    parser_classes = SUBMISSION_PARSERS

    @extend_schema(
        request=SubmissionSerializer,
        responses={200: JobSerializer, 201: JobSerializer},
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER)],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Clone a job."""
        original = visible_job(request, job_id)
        return _copied(request, original)


class JobFork(APIView):
    """A new job from a saved state of a job, with some fields changed."""

    parser_classes = SUBMISSION_PARSERS

    @extend_schema(
        request=SubmissionSerializer,
        responses={200: JobSerializer, 201: JobSerializer},
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER)],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Fork a job: from its newest checkpoint, a kept one, or one that it saves now."""
        return _copied(request, visible_job(request, job_id), is_fork=True)


def _copied(request: Request, original: Job, *, is_fork: bool = False) -> Response:
    """Submit a job again; a repeated request gives the same one though the original has changed."""
    changes, code, code_name = submission_fields(request)
    if is_fork:
        if str(changes.get("forked_from", original.pk)) != str(original.pk):
            raise InvalidInputError.of(forked_from=f"This is job {original.pk}; leave it out.")
        changes["forked_from"] = original.pk
    text = json.dumps([original.pk, changes], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    digest.update(code or b"")
    key, user = key_of(request), person(request)
    if key and (known := job_actions.submission_known(user, key, digest.hexdigest())):
        return _made_response(request, known, 200)
    wanted = _changed(original, user, changes, code, code_name)
    return _submitted(request, wanted, original, digest.hexdigest())


def _changed(
    original: Job, user: User, changes: dict[str, Any], code: bytes | None, code_name: str | None
) -> Submission:
    """Check a submission equal to a job except for `changes` and an uploaded file of code."""
    is_stop_new = "stop" in changes
    changes = objects_flattened(settings_changed(original.settings, changes))
    values = job_clone_values(original, user)
    if is_stop_new:
        values = {k: v for k, v in values.items() if not k.startswith("stop_")}
    values |= changes
    if changes.get("task") == Task.PREDICT:
        values = prediction_values(values, changes)
    if code is None and "code" not in changes:
        if changes.get("template") not in (None, "", original.template):
            text = f"It would run the code of job {original.pk}; submit the template instead."
            raise InvalidInputError.of(template=text)
        with code_open(original) as file:
            code, code_name = file.read(), original.code_name
        read_audit(user, original, "code")
    return submission_read(values, code, code_name, original.settings)
