"""A job's submission as texts to copy: YAML, curl, Python."""

from __future__ import annotations

import hashlib
import pprint
from typing import Any

import yaml
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from frontend.views.changes import person
from frontend.views.job import job_or_404
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Job
from jobs.services.submission.rows import job_clone_values


@login_required
@require_safe
def job_copy(request: HttpRequest, job_id: int) -> HttpResponse:
    """Show texts that submit the same job again."""
    job = job_or_404(request, job_id)
    values = _values(job, job_clone_values(job, person(request)))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    site = request.build_absolute_uri("/").rstrip("/")
    ending = "zip" if job.code_name.lower().endswith(".zip") else "py"
    code_name = "" if _is_of_template(job) else f"job-{job.pk}.{ending}"
    context = {
        "job": job,
        "code_name": code_name,
        "texts": [
            ("yaml", "YAML", text),
            ("curl", "curl", _curl(site, job, text, code_name)),
            ("python", "Python", _python(site, values, code_name)),
        ],
    }
    return render(request, "frontend/copy.html", context)


def _is_of_template(job: Job) -> bool:
    """Return whether the template's code is still that of the job."""
    template = JOB_TEMPLATES.get(job.template)
    if template is None:
        return False
    return hashlib.sha256(template.code.encode()).hexdigest() == job.code_sha256


def _values(job: Job, values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is empty, and would be empty again."""
    kept = {name: value for name, value in values.items() if value not in ("", None, [])}
    return kept if _is_of_template(job) else kept | {"code_name": job.code_name}


def _curl(site: str, job: Job, text: str, code_name: str) -> str:
    key = '-H "Authorization: Bearer $TOKEN"'
    if not code_name:
        return (
            f'curl --fail-with-body {key} -H "Content-Type: application/yaml" \\\n'
            f"  {site}{reverse('api:job-list')} --data-binary @- <<'END'\n{text}END\n"
        )
    code = f"{site}{reverse('api:job-code', args=[job.pk])}"
    return (
        f"curl --fail-with-body {key} -o {code_name} {code}\n"
        f"curl --fail-with-body {key} {site}{reverse('api:job-list')} \\\n"
        f"  --form code=@{code_name} --form 'spec=@-;filename=job.yaml' <<'END'\n{text}END\n"
    )


def _python(site: str, values: dict[str, Any], code_name: str) -> str:
    spec = pprint.pformat(values, sort_dicts=False, width=92)
    imports, code = "", ""
    if code_name:
        imports, code = "from pathlib import Path\n\n", f", code=Path({code_name!r})"
    return (
        f"{imports}from virtualflow import Client\n\nspec = {spec}\n"
        f"with Client.from_login() as client:  # {site}\n    print(client.submit(spec{code}))\n"
    )
