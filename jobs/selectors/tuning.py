"""Tuning of a job: its trials, why each was kept or not, and the share of steps they took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Max, Q, Sum

from controlplane.core.protocol.tuning import TunableName
from controlplane.core.tuning.search import SearchEnd, TrialEnd
from jobs.models import Job, Trial

#: Newest trials that the page and REST list.
LISTED_TRIALS = 400
#: Most searches that are told apart in the steps of a job: it may report 10,000.
MAX_SEARCHES = 500

_ENDS = {
    TrialEnd.KEPT: "kept: the job goes on from it",
    TrialEnd.SLOWER: "the loss of another trial fell faster",
    TrialEnd.UNSTABLE: "its loss did not fall, or not clearly enough above its noise",
    TrialEnd.DIVERGED: "its loss diverged",
    TrialEnd.CANNOT_WIN: "stopped early: it could not become the fastest any more",
    TrialEnd.UNFINISHED: "it did not do all of its steps in time, or its job ended",
    TrialEnd.OVERTAKEN: "its loss fell faster, but the job reached a lower one meanwhile",
}
_SEARCH_ENDS = {
    SearchEnd.ALIKE: "the loss falls equally fast in its best trials",
    SearchEnd.TRIALS: "it reached the most trials per search",
    SearchEnd.SHARE: "trials have used their share of the steps",
    SearchEnd.NONE_CONVERGED: "the loss fell clearly in no trial, so the job keeps its old values",
    SearchEnd.JOB_ENDED: "the job reached its stop condition during a trial",
}


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial and why its branch was kept or freed.

    Attributes:
        parent: number of the trial from whose state it started; None: that of the job's begin.
        child: the job that is this trial; None: the job itself.
        start_step: of the job's state from which it started, if it is a parallel one.
    """

    number: int
    search: int
    parent: int | None
    values: dict[str, float]
    steps: int
    start_loss: float | None
    losses: list[float | None]
    verdict: str
    speed: float
    end: str
    is_running: bool
    reason: str
    child: int | None = None
    start_step: int | None = None

    @property
    def last_loss(self) -> float | None:
        """The newest mean loss."""
        return self.losses[-1] if self.losses else None

    @property
    def text(self) -> str:
        return values_text(self.values) or "unchanged"


@dataclass(frozen=True, slots=True)
class Tuned:
    """Tuning of a job so far.

    Attributes:
        num_trials, steps: of all trials; steps of parallel ones are none of the job.
        share: of the job's steps; None before the first one, and for parallel trials.
        values: of the trial kept last; None if there is none.
        search_end: why the newest search ended, as a sentence's part; "" while it runs.
        trials: the newest ones, in the order of their numbers.
    """

    num_trials: int
    steps: int
    share: float | None
    values: dict[str, float] | None
    search_end: str
    trials: list[TrialRow]


def tuned_of(job: Job) -> Tuned | None:
    """Summarise the trials of a job; None for a job that is not tuned, or is a trial itself."""
    if not job.tuning or job.trial_of_id is not None:
        return None
    is_parallel = job.tuning.get("parallel") is True
    found = Trial.objects.filter(job=job).select_related("child").order_by("-number")
    rows = list(found[:LISTED_TRIALS])[::-1]
    steps = Trial.objects.filter(job=job).aggregate(steps=Sum("steps", default=0))["steps"]
    kept = {row.search: row for row in rows if row.end == TrialEnd.KEPT}
    newest = kept[max(kept)] if kept else None
    last = rows[-1] if rows else None
    ends = [row.search_end for row in rows if last and row.search == last.search]
    ended = next((SearchEnd(end) for end in ends if end), None)
    return Tuned(
        num_trials=last.number if last is not None else 0,
        steps=steps,
        share=min(steps / job.step, 1.0) if job.step and not is_parallel else None,
        values=None if newest is None else newest.values,
        search_end="" if ended is None else _SEARCH_ENDS[ended],
        trials=[_row(row, kept, is_parallel=is_parallel) for row in rows],
    )


@dataclass(frozen=True, slots=True)
class SearchSpan:
    """The steps of the trials of a search; `last` is None while it goes on.

    Attributes:
        start_loss: the loss of the state from which the trials started, if it is known.
    """

    first: int
    last: int | None
    start_loss: float | None


def search_spans(job: Job) -> list[SearchSpan]:
    """Return the newest searches of a job whose trials are steps of its own, in order."""
    if not job.tuning or job.tuning.get("parallel"):
        return []
    rows = (
        Trial.objects.filter(job=job)
        .values("search")
        .annotate(
            last=Max("step"),
            num_steps=Sum("steps"),
            num_ended=Count("id", filter=~Q(search_end="")),
            start_loss=Max("start_loss"),
        )
        .order_by("-search")[:MAX_SEARCHES]
    )
    return [
        SearchSpan(
            row["last"] - row["num_steps"] + 1,
            row["last"] if row["num_ended"] else None,
            row["start_loss"],
        )
        for row in [*rows][::-1]
    ]


def in_trials(job: Job) -> Q:
    """Return the condition of the job's step reports that have steps of trials."""
    found = Q(pk__in=[])
    for span in search_spans(job):
        steps = Q(last_step__gte=span.first)
        found |= steps if span.last is None else steps & Q(first_step__lte=span.last)
    return found


def values_text(values: Mapping[str, Any]) -> str:
    """Write tunables as text, such as "learning_rate 0.01, momentum 0.9"."""
    return ", ".join(
        f"{name} {value:{'.0f' if name == TunableName.BATCH_SIZE else '.4g'}}"
        for name, value in sorted(values.items())
    )


def _row(trial: Trial, kept: Mapping[int, Trial], *, is_parallel: bool) -> TrialRow:
    earlier = [search for search in kept if search < trial.search]
    if trial.end:
        reason = _ENDS[TrialEnd(trial.end)]
    else:
        reason = "running" if trial.is_running else "waits for more steps"
    return TrialRow(
        number=trial.number,
        search=trial.search,
        parent=kept[max(earlier)].number if earlier else None,
        values=trial.values,
        steps=_steps(trial),
        start_loss=trial.start_loss,
        losses=trial.losses,
        verdict=trial.verdict,
        speed=trial.speed,
        end=trial.end,
        is_running=trial.is_running and not trial.end,
        reason=reason,
        child=trial.child_id,
        start_step=trial.step if is_parallel else None,
    )


def _steps(trial: Trial) -> int:
    """Return the steps of a trial; of one that is a job of its own, those by now."""
    if trial.child is None or trial.end:
        return trial.steps
    return max(trial.child.step - trial.step, 0)
