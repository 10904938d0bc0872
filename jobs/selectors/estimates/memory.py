"""Fit of batch slices into accelerator memory, estimated from validations."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Min

from controlplane.core.estimates.memory import Fit, MemoryNeed, fit_of, memory_need_read
from controlplane.core.protocol.codec import decode
from controlplane.core.protocol.tuning import MAX_BRANCHES_RANGE, TuningSpec
from controlplane.core.values.explanations import counted
from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import Accelerator, Job, Validation
from jobs.submission import Submission

_KINDS_NAMED = 4


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """Memory estimate of a job for the kinds that it may run on.

    Attributes:
        fits: by kind, in alphabetical order; kinds of unknown memory are left out.
        num_virtual_nodes: the requested number.
        max_branches: the most branches of a tuned job that fit everywhere with this number, if it
            has more than fit.
    """

    need: MemoryNeed
    fits: tuple[Fit, ...]
    num_virtual_nodes: int
    max_branches: int | None = None

    @property
    def suggested(self) -> int | None:
        """The fewest virtual nodes that fit all kinds, except kinds where no number fits."""
        return max(
            (fit.num_virtual_nodes for fit in self.fits if fit.num_virtual_nodes), default=None
        )

    @property
    def short_kinds(self) -> tuple[Fit, ...]:
        """Kinds on which the requested number would run out of memory."""
        return tuple(fit for fit in self.fits if not fit.is_enough)

    @property
    def fits_nowhere(self) -> bool:
        """True if the requested number would run out of memory on every known kind."""
        return bool(self.fits) and not any(fit.is_enough for fit in self.fits)


def memory_need_known(code_sha256: str, settings: dict[str, Any]) -> MemoryNeed | None:
    """Return the memory need measured by one of the newest validations of this code and settings.

    Those of jobs come before those of submissions that were not submitted.
    """
    jobs = Job.objects.filter(code_sha256=code_sha256).exclude(facts={}).order_by("-id")
    others = Validation.objects.filter(code_sha256=code_sha256).exclude(facts={}).order_by("-id")
    found = [*jobs.values_list("settings", "facts")[:20]]
    found += others.values_list("job_fields__settings", "facts")[:20]
    needs = (memory_need_read(facts) for used, facts in found if used == settings)
    return next((need for need in needs if need is not None), None)


def memory_advice(
    need: MemoryNeed | None,
    accepted_kinds: Collection[str],
    global_batch_size: int,
    num_virtual_nodes: int,
    tuning: TuningSpec | None,
) -> MemoryAdvice | None:
    """Compare a job with the kinds of online nodes; None if its memory need is unknown.

    A job that tunes its batch size is compared with the largest one.
    """
    if need is None:
        return None
    if tuning is not None:
        need = replace(need, num_kept_states=tuning.num_kept_states)
        global_batch_size = max(global_batch_size, tuning.largest_batch_size)
    present = Accelerator.objects.filter(
        is_present=True, node__status=NodeStatus.ONLINE, node__removed_at=None, memory_bytes__gt=0
    )
    if accepted_kinds:
        present = present.filter(kind__in=accepted_kinds)
    rows = present.values("kind").annotate(least=Min("memory_bytes"), threads=Min("threads"))
    kinds = list(rows.order_by("kind"))

    def fits_with(need: MemoryNeed) -> tuple[Fit, ...]:
        return tuple(
            fit_of(
                need,
                row["kind"],
                row["least"],
                is_gpu=row["threads"] == 0,
                global_batch_size=global_batch_size,
                num_virtual_nodes=num_virtual_nodes,
            )
            for row in kinds
        )

    advice = MemoryAdvice(need, fits_with(need), num_virtual_nodes)
    if tuning is None or not advice.short_kinds:
        return advice
    for number in range(tuning.max_branches - 1, MAX_BRANCHES_RANGE[0] - 1, -1):
        kept = replace(tuning, max_branches=number).num_kept_states
        if all(fit.is_enough for fit in fits_with(replace(need, num_kept_states=kept))):
            return replace(advice, max_branches=number)
    return advice


def submission_memory_advice(submission: Submission) -> MemoryAdvice | None:
    """Return advice for a submission, if the same code and settings were validated before."""
    code_sha256 = hashlib.sha256(submission.code).hexdigest()
    return memory_advice(
        memory_need_known(code_sha256, submission.settings),
        submission.accepted_kinds,
        submission.global_batch_size,
        submission.num_virtual_nodes,
        decode(TuningSpec, submission.tuning) if submission.tuning else None,
    )


def job_memory_advice(job: Job, facts: dict[str, Any] | None = None) -> MemoryAdvice | None:
    """Return advice for a job from its own validation (or from `facts` that are not stored)."""
    return memory_advice(
        memory_need_read(job.facts if facts is None else facts),
        job.accepted_kinds,
        job.global_batch_size,
        job.num_virtual_nodes,
        job.tuning_spec,
    )


def advice_text(advice: MemoryAdvice) -> str:
    """Describe the measured need and the number of virtual nodes that fit each kind."""
    measured = f"Measured: {size_text(advice.need.bytes_per_example)} per example"
    if advice.need.num_kept_states:
        measured += f", and for tuning {_kept_text(advice.need)}"
    if not advice.fits:
        return f"{measured}."
    return f"{measured}; {_fits_text(advice.fits)}."


def shortage_text(advice: MemoryAdvice) -> str:
    """Describe where the requested number runs out of memory, and a remedy; empty if nowhere."""
    short = advice.short_kinds
    if not short:
        return ""
    needs = "; ".join(
        f"on {fit.kind} a trainer takes {size_text(fit.slice_bytes)} and may take "
        f"{size_text(fit.usable_bytes)}"
        for fit in short[:_KINDS_NAMED]
    )
    head = f"With {counted(advice.num_virtual_nodes, 'virtual node')} it runs out of memory"
    where = " on every kind of accelerator here" if advice.fits_nowhere else ""
    kept = f", {_kept_text(advice.need)} included" if advice.need.num_kept_states else ""
    fewer = ""
    if advice.max_branches is not None:
        fewer = f" It would fit with tuning.max_branches = {advice.max_branches}."
    return f"{head}{where}: {needs}{kept}. {_remedy(short)}{fewer}"


def memory_shortage(job: Job, facts: dict[str, Any]) -> str:
    """Describe where a job with these facts will run out of memory; empty if nowhere."""
    advice = job_memory_advice(job, facts)
    return "" if advice is None else shortage_text(advice)


def out_of_memory_text(job: Job, kind: str = "") -> str:
    """Recommend a number of virtual nodes for a job that ran out of memory on `kind`.

    The validation's estimate counts only if it exceeds the present number of virtual nodes, which
    has just proved too small.
    """
    advice = job_memory_advice(job)
    if advice is not None and advice.max_branches is not None:
        return (
            f"Its tuning keeps {_kept_text(advice.need)}: tuning.max_branches = "
            f"{advice.max_branches} would fit."
        )
    most = job.global_batch_size
    if job.num_virtual_nodes >= most:
        return (
            "Each virtual node has a single example already, so more of them do not help: use an "
            "accelerator with more memory, or a smaller model."
        )
    double = min(2 * job.num_virtual_nodes, most)
    fits = {fit.kind: fit.num_virtual_nodes for fit in advice.fits} if advice else {}
    measured = fits.get(kind) if kind in fits else (advice.suggested if advice else None)
    if measured is not None and job.num_virtual_nodes < measured <= most:
        return f"By what its validation measured, num_virtual_nodes = {measured} would fit."
    return (
        f"Submit it with num_virtual_nodes = {double} instead of {job.num_virtual_nodes}: with the "
        "same global batch each then takes half as many examples."
    )


def size_text(num_bytes: float) -> str:
    """Format a number of bytes with a fitting unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def _fits_text(fits: Sequence[Fit]) -> str:
    texts = []
    for fit in fits[:_KINDS_NAMED]:
        memory = f"{fit.kind} ({size_text(fit.memory_bytes)})"
        if fit.num_virtual_nodes is None:
            texts.append(f"not even one example fits {memory}")
        else:
            fitting = "fits" if fit.num_virtual_nodes == 1 else "fit"
            texts.append(f"{counted(fit.num_virtual_nodes, 'virtual node')} {fitting} {memory}")
    if len(fits) > _KINDS_NAMED:
        texts.append(f"and {counted(len(fits) - _KINDS_NAMED, 'more kind')}")
    return ", ".join(texts)


def _kept_text(need: MemoryNeed) -> str:
    states = counted(need.num_kept_states, "more state")
    return f"{states} of {size_text(need.state_bytes)} ({size_text(need.kept_bytes)})"


def _remedy(short: Sequence[Fit]) -> str:
    numbers = [fit.num_virtual_nodes for fit in short]
    enough = max((number for number in numbers if number is not None), default=None)
    texts = [] if enough is None else [f"{counted(enough, 'virtual node')} would fit"]
    hopeless = [fit.kind for fit in short if fit.num_virtual_nodes is None]
    if hopeless:
        texts.append(f"not even one example fits {', '.join(hopeless[:_KINDS_NAMED])}")
    text = "; ".join(texts)
    return f"{text[:1].upper()}{text[1:]}."
