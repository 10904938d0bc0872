"""Submission page: from a template, upload or clone; check, measure, or submit."""

from __future__ import annotations

import dataclasses
import re
import secrets
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods
from rest_framework import serializers
from rest_framework.exceptions import ParseError

from controlplane.core.protocol.wire import Task
from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import JobStatus
from frontend import forms
from frontend.sweep_form import sweep_values
from frontend.text.dry_run_text import Check, submission_check, sweep_check, validation_check
from frontend.views.changes import person, words
from frontend.views.copy import submission_copy_context
from frontend.views.job import job_or_404
from jobs import nudges
from jobs.api.jobs.submission_fields import SettingsField
from jobs.api.jobs.submission_request import objects_flattened, submission_read
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.api.parsers import YAML_LIMIT_BYTES, yaml_read
from jobs.api.sweeps.serializers import sweep_request
from jobs.api.throttles import preview_count
from jobs.exceptions import ControlPlaneError, InvalidInputError
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Job, Node, Validation
from jobs.query_values import whole_read
from jobs.selectors import access, limits
from jobs.selectors.forks import checkpoint_choices
from jobs.selectors.retention import code_open
from jobs.selectors.usage import accelerator_kinds
from jobs.services.lifecycle.audit import read_audit
from jobs.services.submission.job_actions import job_submit
from jobs.services.submission.rows import submission_admit, submission_try
from jobs.services.submission.sweeps import SweepRequest, sweep_submit
from jobs.services.submission.validation_requests import validation_request
from jobs.submission import NEWEST, Submission, fingerprint

_FORM_KEY = re.compile(r"[0-9a-f]{32}")


@require_http_methods(["GET", "HEAD", "POST"])
def submit(request: HttpRequest) -> HttpResponse:
    """Show the form, fill it from YAML, check or measure a submission, or submit it."""
    if request.method != "POST":
        if number := request.GET.get("validation"):
            return _validation_page(
                request, access.validation_visible_to(request.user, whole_read(number) or 0)
            )
        return _page(request, _first_form(request))
    if request.POST.get("do") == "yaml":
        return _filled_from_yaml(request)
    form = forms.JobForm(request.POST, request.FILES)
    form.full_clean()
    try:
        submission, code_job = _read(request, form)
        plan = form.sweep_plan()
        if request.POST.get("do") == "copy":
            copied = submission_copy_context(request, submission, code_job)
            return _answer(request, form, copied=copied | {"is_sweep": plan is not None})
        wanted = None if plan is None else sweep_request(submission, plan)
        if wanted is not None and request.POST.get("do") != "measure":
            if request.POST.get("do") == "check":
                submission_try(person(request), submission, len(wanted.settings))
                return _answer(request, form, check=sweep_check(wanted))
            submission_admit(person(request), submission)
            return _sweep_submitted(request, wanted, _stored(code_job))
        if request.POST.get("do") == "check":
            preview_count(person(request))
            submission_try(person(request), submission)
            return _answer(request, form, check=submission_check(submission, person(request)))
        if request.POST.get("do") == "measure":
            return _measured(request, form, submission)
        job = job_submit(
            person(request),
            submission,
            timezone.now(),
            idempotency_key=_key(request, submission),
            copied_from=_stored(code_job),
        )
    except InvalidInputError as error:
        form.errors_add(error.fields)
        return _answer(request, form)
    except ControlPlaneError as error:
        form.add_error(None, error.detail)
        return _answer(request, form)
    nudges.jobs_changed([job.pk], orders=True)
    return _submitted(request, f"Job #{job.pk} is submitted.", reverse("job", args=[job.pk]))


def _stored(code_job: Job | None) -> Job | None:
    """Return the job whose code a form has kept; None for that of a validation alone."""
    return None if code_job is None or code_job.pk is None else code_job


def _sweep_submitted(
    request: HttpRequest, wanted: SweepRequest, copied_from: Job | None
) -> HttpResponse:
    sweep = sweep_submit(
        person(request),
        wanted,
        timezone.now(),
        idempotency_key=_key(request, wanted),
        copied_from=copied_from,
    )
    nudges.jobs_changed(sweep.jobs.values_list("pk", flat=True), orders=True)
    text = f"Sweep {sweep.pk} is submitted: {counted(len(wanted.settings), 'job')}."
    return _submitted(request, text, reverse("sweep", args=[sweep.pk]))


def _submitted(request: HttpRequest, text: str, page: str) -> HttpResponse:
    messages.success(request, text)
    return JsonResponse({"location": page}) if _wants_json(request) else redirect(page)


def _key(request: HttpRequest, wanted: Submission | SweepRequest) -> str:
    """Return a key of this form with this content: sent twice, it is submitted once."""
    form_key = request.POST.get("form_key", "")
    if not _FORM_KEY.fullmatch(form_key):
        return ""
    return f"form {form_key} {fingerprint(wanted)[:32]}"


def _read(request: HttpRequest, form: forms.JobForm) -> tuple[Submission, Job | None]:
    """Check the form's fields with the chosen code; also return the job whose code it is.

    Raises:
        InvalidInputError: as `submission_read`, or no code was chosen.
    """
    values = form.submission_values()
    kind, _, name = form.cleaned_data.get("code_from", "").partition(":")
    if kind == "template":
        return submission_read(values | {"template": name}), None
    if kind in ("clone", "validation"):
        job = _code_source(request, kind, name)
        if kind == "clone":
            read_audit(request.user, job, "code")
        with code_open(job) as file:
            return submission_read(values, file.read(), job.code_name, job.settings), job
    upload = form.cleaned_data.get("code")
    if kind != "upload":
        raise InvalidInputError.of(code_from="Choose a template, or your own code.")
    if upload is None:
        raise InvalidInputError.of(code="Choose a .py or .zip file.")
    if upload.size > settings.CODE_LIMIT_BYTES:
        limit = settings.CODE_LIMIT_BYTES // 1024**2
        raise InvalidInputError.of(code=f"The file is too large; at most {limit} MiB are taken.")
    return submission_read(values, upload.read(), upload.name), None


def _measured(request: HttpRequest, form: forms.JobForm, submission: Submission) -> HttpResponse:
    check = validation_check(validation_request(person(request), submission, timezone.now()))
    if check.waits_at:
        nudges.jobs_changed(orders=True, cycle=False)
    if not _wants_json(request):  # redirect to an address that can be reloaded
        return redirect(check.page)
    return _answer(request, form, check=check)


@require_GET
def validation(request: HttpRequest, validation_id: int) -> HttpResponse:
    """Return the state of a validation for the form's script."""
    found = access.validation_visible_to(request.user, validation_id)
    check = dataclasses.asdict(validation_check(found))
    return JsonResponse({"errors": forms.validation_errors(found), "check": check})


def _validation_page(request: HttpRequest, found: Validation) -> HttpResponse:
    """Show the form as it was validated, with the result."""
    job = found.validated_job
    values = forms.blank_values() | forms.clone_values(job, person(request))
    if number := request.GET.get("virtual_nodes"):  # from the button, without scripts
        values["num_virtual_nodes"] = number
    code_from = f"template:{job.template}" if job.template else f"validation:{found.pk}"
    form = forms.JobForm(values | {"code_from": code_from})
    form.full_clean()
    form.errors_add(forms.validation_errors(found))
    return _page(request, form, check=validation_check(found))


def _first_form(request: HttpRequest) -> forms.JobForm:
    """Return the form of a fresh page: a clone or fork, the requested template, or the first."""
    forked = request.GET.get("fork")
    if clone_of := forked or request.GET.get("from"):
        job = _code_source(request, "clone", clone_of)
        values = forms.clone_values(job, person(request)) | {"code_from": f"clone:{job.pk}"}
        if forked:
            checkpoint = request.GET.get("checkpoint", NEWEST)
            values |= {"forked_from": job.pk, "checkpoint": checkpoint}
        if job.task == Task.TRAIN and job.status == JobStatus.FINISHED:
            values["source_job"] = job.pk  # shown when a prediction is chosen
        if number := request.GET.get("sweep"):
            values |= sweep_values(access.sweep_visible_to(request.user, whole_read(number) or 0))
        if request.GET.get("task") == Task.PREDICT:
            values["task"] = Task.PREDICT.value
        return forms.JobForm(initial=forms.blank_values() | values)
    wanted = request.GET.get("template", "")
    name = wanted if wanted in JOB_TEMPLATES else next(iter(JOB_TEMPLATES))
    values = forms.values_shown(forms.blank_values())
    values |= forms.template_values(JOB_TEMPLATES[name]) | {"code_from": f"template:{name}"}
    return forms.JobForm(initial=values)


def _filled_from_yaml(request: HttpRequest) -> HttpResponse:
    upload = request.FILES.get("yaml_file")
    text = request.POST.get("yaml", "")
    try:
        if upload is not None:
            text = upload.read(YAML_LIMIT_BYTES + 1).decode()
        values = _yaml_values(text)
    except UnicodeDecodeError:
        return _page(request, _first_form(request), yaml_error="The file is no UTF-8 text.")
    except InvalidInputError as error:
        return _page(request, _first_form(request), yaml_text=text, yaml_error=words(error))
    return _page(request, forms.JobForm(initial=values))


def _yaml_values(text: str) -> dict[str, Any]:
    """Read a job spec in YAML into the form's values.

    Raises:
        InvalidInputError: the text is no YAML, no mapping, or has an unknown field.
    """
    try:
        given = yaml_read(text.encode())
    except ParseError as error:
        raise InvalidInputError.of(yaml=str(error.detail)) from None
    if not isinstance(given, dict) or not given:
        raise InvalidInputError.of(yaml="Give fields with values, such as “name: digits”.")
    values = objects_flattened(given)
    fields = SubmissionSerializer().fields
    unknown = sorted(set(values) - set(fields))
    if unknown:
        names = ", ".join(unknown)
        raise InvalidInputError.of(yaml=f"No such field: {names}. Use {', '.join(fields)}.")
    for name in forms.JSON_FIELDS:
        _json_check(name, values.get(name))
    return _with_code_choice(values)


def _json_check(name: str, value: Any) -> None:
    """Refuse an object that the form cannot show as JSON: YAML has dates and bytes, too."""
    if isinstance(value, dict):
        try:
            SettingsField().run_validation(value)
        except serializers.ValidationError as error:
            texts = " ".join(str(text) for text in error.detail)
            raise InvalidInputError.of(yaml=f"{name}: {texts}") from None


def _with_code_choice(values: dict[str, Any]) -> dict[str, Any]:
    name = values.pop("template", None)
    if name is not None and str(name) not in JOB_TEMPLATES:
        raise InvalidInputError.of(yaml=f"template must be one of {', '.join(JOB_TEMPLATES)}.")
    base = forms.values_shown(forms.blank_values())
    if name is None:
        return base | forms.values_shown(values) | {"code_from": "upload"}
    base |= forms.template_values(JOB_TEMPLATES[name])
    return base | forms.values_shown(values) | {"code_from": f"template:{name}"}


def _answer(
    request: HttpRequest,
    form: forms.JobForm,
    *,
    check: Check | None = None,
    copied: dict[str, Any] | None = None,
) -> HttpResponse:
    """Return the result as JSON for scripts, or as the whole page for browsers without."""
    if not _wants_json(request):
        return _page(request, form, check=check, **(copied or {}))
    shown = None if check is None else dataclasses.asdict(check)
    html = "" if copied is None else render_to_string("frontend/parts/form_copy.html", copied)
    return JsonResponse({"errors": form.errors, "check": shown, "copy": html})


def _page(request: HttpRequest, form: forms.JobForm, **more: Any) -> HttpResponse:
    code_from = (form["code_from"].value() or "").strip()
    kind, _, name = code_from.partition(":")
    is_kept = kind in ("clone", "validation")
    own_limits = limits.limits_for(request.user)
    form.standing_limit(own_limits.priority_ceiling, own_limits.tiers)
    form.kind_choices(accelerator_kinds())
    form.project_choices([one.name for one in access.projects_open_to(request.user)])
    forked_from = whole_read(str(form["forked_from"].value() or "")) or 0
    parent = access.jobs_visible_to(request.user).filter(pk=forked_from).first()
    if parent is not None:
        form.checkpoint_choices(checkpoint_choices(parent))
    kept_code = _code_source(request, kind, name) if is_kept else None
    context = {
        "title": _title(form, parent, kept_code),
        "form": form,
        "code_from": code_from,
        "kept_code": kept_code,
        "templates": [
            {"name": name, "title": t.title, "description": t.description,
             "choice": f"template:{name}"}
            for name, t in JOB_TEMPLATES.items()
        ],
        "template_values": forms.all_template_values(),
        "code_limit_bytes": settings.CODE_LIMIT_BYTES,
        "form_key": secrets.token_hex(16),
        "has_nodes": Node.objects.filter(removed_at=None).exists(),
        **more,
    }  # fmt: skip
    return render(request, "frontend/submit.html", context)


def _title(form: forms.JobForm, forked: Job | None, kept_code: Job | None) -> str:
    if forked is not None:
        return f"Fork job #{forked.pk}"
    if kept_code is None or kept_code.pk is None:
        return "Submit a job"
    if form["task"].value() == Task.PREDICT:
        return f"Run predictions with the code of job #{kept_code.pk}"
    return f"Clone job #{kept_code.pk}"


def _code_source(request: HttpRequest, kind: str, number: str) -> Job:
    """Return the job to clone, or the unsaved one of a validation; raise Http404 if hidden."""
    if kind == "validation":
        return access.validation_visible_to(request.user, whole_read(number) or 0).validated_job
    return job_or_404(request, whole_read(number) or 0)


def _wants_json(request: HttpRequest) -> bool:
    return "application/json" in request.headers.get("Accept", "")
