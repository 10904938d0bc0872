"""The page of one job, its figures, its log and its files."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.core.protocol.wire import StopKind, Task
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, GenerationPhase, JobStatus
from controlplane.core.values.tiers import Tier
from frontend.charts import SMOOTHINGS, ChartOptions, job_charts
from frontend.figures.metrics import metric_key
from frontend.live.progress import job_progress
from frontend.live.refreshes import is_live_refresh
from frontend.text.job_facts import shown_facts
from frontend.text.priority_text import priority_text
from frontend.views.pages import figures_response
from jobs.api.downloads import download
from jobs.exceptions import RETRY_S, BusyError
from jobs.models import Generation, Job
from jobs.selectors import access, limits, logs, series
from jobs.selectors.best_metrics import best_metric_of
from jobs.selectors.cluster_map import cluster_map
from jobs.selectors.code_text import code_text
from jobs.selectors.comparison import COMPARED_LIMIT
from jobs.selectors.estimates.memory import advice_text, job_memory_advice
from jobs.selectors.forecast import expected_end_of
from jobs.selectors.forks import checkpoints_of
from jobs.selectors.job_rows import events_of, generations_of, members_by_phase
from jobs.selectors.log_lines import LEVEL_FILTERS
from jobs.selectors.queue import priority_ranges, queue_place
from jobs.selectors.readings import idle_held
from jobs.selectors.reproducibility import kinds_used, reproducibility_of
from jobs.selectors.retention import files_expire_at
from jobs.selectors.selection import examples_chosen, selection_counts
from jobs.selectors.tuning import tuned_of, values_text
from jobs.selectors.usage import accelerator_seconds
from jobs.services.lifecycle.audit import read_audit
from jobs.services.scheduling.policy import cluster_setting
from jobs.services.submission.rows import MODEL_FILE, WEIGHTS_FILE

FileView = Callable[..., HttpResponseBase]

_PHASE_TONES = {
    GenerationPhase.PREPARING.value: "info pill-ring",
    GenerationPhase.SWITCHING.value: "info",
    GenerationPhase.ACTIVE.value: "good",
    GenerationPhase.CLOSED.value: "quiet",
    GenerationPhase.ABORTED.value: "bad pill-ring",
}
#: Of the session: tags and note of a job as they were typed and refused, to show once.
TYPED_LABELS = "typed_labels"
_PAUSABLE = frozenset({JobStatus.PENDING, JobStatus.STARTING, JobStatus.RUNNING})
#: Statuses in which a job can be asked for its state.
_ACTIVE = frozenset({JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING})
#: Resizes that the page lists, the newest.
RESIZES_LIMIT = 100
#: Forks that the page names.
FORKS_LIMIT = 20


@dataclass(frozen=True, slots=True)
class ResizeRow:
    """A generation as a row of the page's table.

    Attributes:
        pause_s: seconds in which the job did not train; those without accelerators included.
        ready_after_s: seconds from the request.
        switched_after_s: seconds from the request.
    """

    generation: Generation
    num_before: int
    tone: str
    pause_s: float | None
    ready_after_s: float | None
    switched_after_s: float | None


def sends_file(view: FileView) -> FileView:
    """Answer with a page and `Retry-After` where too many downloads are under way."""

    @functools.wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except BusyError as error:
            told = {"title": "Too many downloads at once", "text": error.detail}
            response = render(request, "503.html", told, status=error.status)
            response.headers["Retry-After"] = str(RETRY_S)
            return response

    return answer


@require_safe
def job(request: HttpRequest, job_id: int) -> HttpResponse:
    """Show everything about one job."""
    found = job_or_404(request, job_id)
    read_audit(request.user, found, "page")
    maps = cluster_map(request.user, job_id=found.pk)
    figures = job_charts(found, timezone.now()) if "tables" in request.GET else None
    options = ChartOptions.read(request.GET)
    own_limits = limits.limits_for(request.user)
    resizes = _resize_rows(generations_of(found))
    artifacts = list(found.artifacts.all()[:100])
    models = [one for one in artifacts if found.ended_at and one.name in (MODEL_FILE, WEIGHTS_FILE)]
    model = models[0] if models else None
    code = None
    typed: dict[str, Any] = {}
    if not is_live_refresh(request):  # code is long, and does not change
        typed = request.session.pop(TYPED_LABELS, {})
        code = code_text(found, request.GET.get("file", "")) or code_text(found)
        read_audit(request.user, found, "code")
    return render(
        request,
        "frontend/job.html",
        {
            "job": found,
            "typed_labels": typed if typed.get("job") == found.pk else None,
            "ceiling": own_limits.priority_ceiling,
            "tiers": own_limits.tiers,
            "progress": job_progress(
                found, found.facts.get("steps_per_epoch"), found.facts.get("num_examples")
            ),
            "end": expected_end_of(found, timezone.now()),
            "best": best_metric_of(found),
            "duration_s": found.started_at and _seconds(found.started_at, found.ended_at),
            "place": queue_place(found) if found.status == JobStatus.PENDING else None,
            "priority_text": "" if found.ended_at else _priority_text(found),
            "maps": maps,
            "idle": idle_held(timezone.now(), job__in=[found.pk]) if maps else [],
            "figures": figures,
            "tables_query": "tables=1",
            "chart_options": options,
            "smoothings": SMOOTHINGS.items(),
            **_accelerators(found),
            "generations": resizes[:RESIZES_LIMIT],
            "has_older_resizes": len(resizes) > RESIZES_LIMIT,
            "events": events_of(found),
            "artifacts": artifacts,
            "code": code,
            "has_code": found.files_deleted_at is None,
            "model": model,
            "has_weights_only": model is not None and model.name == WEIGHTS_FILE,
            **_lineage(request, found),
            "files_expire_at": files_expire_at(found),
            "log_slots": logs.log_slots(found),
            "log_levels": LEVEL_FILTERS,
            "selected": selection_counts(found),
            "examples": [] if found.run_selection is None else examples_chosen(found),
            "tuned": tuned_of(found),
            "accelerator_s": accelerator_seconds([found], timezone.now())[found.pk],
            "trial_values": values_text(found.fork.get("values", {})),
            "stop_text": _stop_text(found),
            "facts": shown_facts(found.facts),
            "memory_text": _memory_text(found),
            "reproducibility": reproducibility_of(found, kinds_used(found)),
            # A job that has held no accelerator yet has no data for charts.
            "has_charts": found.generation > 0,
            "metric_charts": [(metric_key(name), name) for name in series.metric_names_of(found)],
        },
    )


@require_safe
def job_figures(request: HttpRequest, job_id: int) -> HttpResponse:
    """Return the job's figures as JSON."""
    found, options = job_or_404(request, job_id), ChartOptions.read(request.GET)
    return figures_response(request, job_charts(found, timezone.now(), options))


@require_safe
@sends_file
def job_file(request: HttpRequest, job_id: int, name: str) -> HttpResponseBase:
    """Send a result file of the job."""
    found = job_or_404(request, job_id)
    artifact = found.artifacts.filter(name=name).first()
    if artifact is None:
        raise Http404("No such file.")
    read_audit(request.user, found, artifact.name)
    name = f"job-{job_id}-{artifact.name}"
    return download(request, artifact.file, name=name, sha256=artifact.sha256)


@require_safe
@sends_file
def job_code(request: HttpRequest, job_id: int) -> HttpResponseBase:
    """Send the job's code as submitted."""
    found = job_or_404(request, job_id)
    if found.files_deleted_at is not None:
        raise Http404("The files are deleted.")
    read_audit(request.user, found, "code")
    return download(request, found.code, name=found.code_name, sha256=found.code_sha256)


def changeable_job_or_404(request: HttpRequest, job_id: int) -> Job:
    """Return a job like `job_or_404`; raise PermissionDenied if the user may only see it."""
    found = job_or_404(request, job_id)
    if not access.is_changeable(request.user, found):
        raise PermissionDenied("You may see this job, not change it.")
    return found


def job_or_404(request: HttpRequest, job_id: int) -> Job:
    """Return a job; raise Http404 if it does not exist or the user may not see it."""
    try:
        return access.job_visible_to(request.user, job_id)
    except (Job.DoesNotExist, OverflowError):
        raise Http404("No such job.") from None


def _resize_rows(generations: list[Generation]) -> list[ResizeRow]:
    by_number = {generation.number: generation for generation in generations}
    return [
        ResizeRow(
            generation=generation,
            num_before=before.num_members if before else 0,
            tone=_PHASE_TONES[generation.phase],
            pause_s=_pause_s(before, generation),
            ready_after_s=_seconds(generation.requested_at, generation.ready_at),
            switched_after_s=_seconds(generation.requested_at, generation.switched_at),
        )
        for generation in generations
        for before in (by_number.get(generation.previous or 0),)
    ]


def _pause_s(before: Generation | None, generation: Generation) -> float | None:
    if before is None:
        return None
    if before.num_members or before.switched_at is None:
        return generation.pause_s
    return _seconds(before.switched_at, generation.switched_at)


def _seconds(start: datetime.datetime, end: datetime.datetime | None) -> float | None:
    return None if end is None else max(0.0, (end - start).total_seconds())


def _memory_text(job: Job) -> str:
    """Describe the numbers of virtual nodes that fit; empty if the memory need is unknown."""
    advice = job_memory_advice(job)
    return "" if advice is None or not advice.fits else advice_text(advice)


def _accelerators(job: Job) -> dict[str, int | None]:
    """Count the members that train, and those of a change under way; None: there is none."""
    members = members_by_phase(job)
    active = members.get(GenerationPhase.ACTIVE, 0)
    coming = members.get(GenerationPhase.SWITCHING, members.get(GenerationPhase.PREPARING))
    return {"num_active": active, "num_coming": coming if coming != active else None}


def _priority_text(job: Job) -> str:
    own = Tier(job.tier), job.priority
    return priority_text(cluster_setting().policy, priority_ranges(job), own)


def _stop_text(job: Job) -> str:
    if job.task == Task.PREDICT:
        return "one pass over its data"
    unit = "steps" if job.stop_kind == StopKind.STEPS else "epochs"
    limit = f"{job.stop_limit:,} {unit.removesuffix('s') if job.stop_limit == 1 else unit}"
    if job.stop_kind != StopKind.METRIC:
        return limit
    sign = "≥" if job.stop_higher_is_better else "≤"
    return f"{job.stop_metric} {sign} {job.stop_target:g}, at most {limit}"


def _lineage(request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return where a job comes from, its checkpoints, and its buttons.

    The numbers of its parent, source and sweep and its project's name stand on its page, links only
    where the person sees these.
    """
    visible = access.jobs_visible_to(request.user).filter(forked_from=job, trial_of=None)
    forks = list(visible.order_by("id").values_list("pk", flat=True)[:FORKS_LIMIT])
    sources = [job.forked_from_id, job.source_job_id]
    seen = access.jobs_visible_to(request.user).filter(pk__in=filter(None, sources))
    seen_sources = set(seen.values_list("pk", flat=True)) if any(sources) else set()
    parent = [job.forked_from_id] if job.forked_from_id in seen_sources else []
    family = [*parent, job.pk, *forks]
    has_state = checkpoints_of(job).exists()
    return {
        "forks": forks,
        "has_family": len(family) > 1,
        "seen_sources": seen_sources,
        "sees_sweep": access.is_admin(request.user) or job.owner_id == request.user.pk,
        "sees_project": job.project_id is not None
        and access.projects_visible_to(request.user).filter(pk=job.project_id).exists(),
        "lineage_query": urlencode({"job": family[:COMPARED_LIMIT]}, doseq=True),
        "checkpoints": has_state,
        "actions": _actions(job, has_state, access.is_changeable(request.user, job)),
    }


def _actions(job: Job, has_state: bool, is_changeable: bool) -> dict[str, bool]:
    """Return which buttons are useful now; the services check again."""
    is_live, has_files = job.status not in ENDED_JOB_STATUSES, job.files_deleted_at is None
    changes = {
        "cancel": is_live,
        "pause": job.status in _PAUSABLE and not job.pause_requested,
        "resume": job.status == JobStatus.PAUSED or (is_live and job.pause_requested),
        "reprioritise": is_live,
        "files_delete": has_files and not is_live,
        "describe": True,
    }
    return {
        **{name: is_useful and is_changeable for name, is_useful in changes.items()},
        "predict": has_files and job.task == Task.TRAIN and job.status == JobStatus.FINISHED,
        "clone": has_files,
        "fork": has_files and job.task == Task.TRAIN and (has_state or job.status in _ACTIVE),
    }
