"""Reports of the trials of tuned jobs."""

from __future__ import annotations

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.tuning.search import TrialEnd
from controlplane.core.tuning.trial_report import TrialReport
from jobs.models import Allocation, Trial
from jobs.selectors.tuning import values_text
from jobs.services.lifecycle.events import reported_event_add
from jobs.services.lifecycle.report_context import ReportContext


def trial_take(context: ReportContext, _allocation: Allocation, report: TrainerReport) -> None:
    """Keep a trial; a report of an older state of it changes nothing.

    A new leader repeats reports after its own first step: the step that is kept is that of the
    first report of a state. A job that restarts from an older checkpoint tries again.

    Raises:
        ValueError: the job is not tuned, or has other tunables, or its trials are jobs of their
            own, which the control plane records itself.
    """
    job, spec = context.job, context.job.tuning_spec
    trial = decode(TrialReport, report.data)
    if spec is None or spec.parallel or tuple(sorted(trial.values)) != spec.names:
        raise ValueError("the job does not tune these values")
    known = Trial.objects.filter(job=job, number=trial.number).first()
    place = (report.generation, trial.step)
    if known is not None and place < (known.generation, known.step):
        return
    fields = encode(trial) | {
        "verdict": trial.verdict or "",
        "end": trial.end or "",
        "search_end": trial.search_end or "",
    }
    step = fields.pop("step")
    if known is not None and all(getattr(known, name) == fields[name] for name in fields):
        step = known.step
    fields |= {"step": step, "generation": report.generation, "at": context.now}
    Trial.objects.update_or_create(job=job, number=fields.pop("number"), defaults=fields)
    if trial.end is TrialEnd.KEPT and (known is None or known.end != trial.end):
        text = f"Search {trial.search} keeps trial {trial.number}: {values_text(trial.values)}"
        reported_event_add("tuned", text, now=context.now, job=job, data={"values": trial.values})
