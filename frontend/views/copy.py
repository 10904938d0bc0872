"""A job's submission as texts to copy, of a job or of the form: YAML, curl, Python."""

from __future__ import annotations

import dataclasses
import hashlib
import pprint
import shlex
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from frontend.views.changes import person
from frontend.views.job import job_or_404
from jobs.api.parsers import yaml_write
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Job
from jobs.services.lifecycle.audit import read_audit
from jobs.services.submission.rows import job_clone_values, job_from
from jobs.submission import Submission


@dataclasses.dataclass(frozen=True, slots=True)
class CodeFile:
    """File with the code that goes with a text.

    Attributes:
        job_id: job whose code it is; None: the reader has the file.
    """

    name: str
    job_id: int | None


@require_safe
def job_copy(request: HttpRequest, job_id: int) -> HttpResponse:
    """Show texts that submit the same job again."""
    job = job_or_404(request, job_id)
    read_audit(request.user, job, "page")
    context = {"job": job, **copy_context(request, job, code_job=job)}
    return render(request, "frontend/copy.html", context)


def submission_copy_context(
    request: HttpRequest, submission: Submission, code_job: Job | None
) -> dict[str, Any]:
    """Return the texts that submit what the form holds; nothing is stored.

    Args:
        code_job: job whose code was chosen, if any.

    Raises:
        InvalidInputError: the job would be refused.
    """
    job = job_from(person(request), submission, timezone.now())
    more: dict[str, Any] = {}
    if submission.forked_from is not None:
        more = {"forked_from": submission.forked_from, "checkpoint": submission.checkpoint}
    return copy_context(request, job, code_job=code_job, more=more)


def copy_context(
    request: HttpRequest, job: Job, *, code_job: Job | None, more: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return the texts that submit a job, and the file with its code that they need."""
    values = {**job_clone_values(job, person(request)), **more}
    # Fields left out get their empty defaults again.
    values = {name: value for name, value in values.items() if value not in ("", None, [])}
    values |= {} if _is_of_template(job) else {"code_name": job.code_name}
    text = yaml_write(values)
    site = request.build_absolute_uri("/").rstrip("/")
    code = None if _is_of_template(job) else _code_file(job, code_job)
    return {
        "code_file": code,
        "texts": [
            ("yaml", "YAML", text),
            ("curl", "curl", _curl(site, text, code)),
            ("python", "Python", _python(site, values, code)),
        ],
    }


def _code_file(job: Job, code_job: Job | None) -> CodeFile:
    if code_job is None or code_job.pk is None:
        return CodeFile(job.code_name, None)
    ending = "zip" if job.code_name.lower().endswith(".zip") else "py"
    return CodeFile(f"job-{code_job.pk}.{ending}", code_job.pk)


def _is_of_template(job: Job) -> bool:
    """Return whether the template's code is still that of the job."""
    template = JOB_TEMPLATES.get(job.template)
    if template is None:
        return False
    return hashlib.sha256(template.code.encode()).hexdigest() == job.code_sha256


def _curl(site: str, text: str, code: CodeFile | None) -> str:
    key = '-H "Authorization: Bearer $TOKEN"'
    if code is None:
        return (
            f'curl --fail-with-body {key} -H "Content-Type: application/yaml" \\\n'
            f"  {site}{reverse('api:job-list')} --data-binary @- <<'END'\n{text}END\n"
        )
    download = ""
    if code.job_id is not None:
        address = f"{site}{reverse('api:job-code', args=[code.job_id])}"
        download = f"curl --fail-with-body {key} -o {code.name} {address}\n"
    name = code.name
    if any(sign in name for sign in ';,"\\'):  # which curl would read as its own
        name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    part = shlex.quote(f"code=@{name}")
    return (
        f"{download}curl --fail-with-body {key} {site}{reverse('api:job-list')} \\\n"
        f"  --form {part} --form 'spec=@-;filename=job.yaml' <<'END'\n{text}END\n"
    )


def _python(site: str, values: dict[str, Any], code: CodeFile | None) -> str:
    spec = pprint.pformat(values, sort_dicts=False, width=92)
    imports, given = "", ""
    if code is not None:
        imports, given = "from pathlib import Path\n\n", f", code=Path({code.name!r})"
    return (
        f"{imports}from virtualflow import Client\n\nspec = {spec}\n"
        f"with Client.from_login() as client:  # {site}\n    print(client.submit(spec{given}))\n"
    )
