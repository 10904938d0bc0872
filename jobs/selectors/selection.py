"""Examples that a selecting job has considered, analysed and trained on."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet, Sum

from controlplane.core.protocol.reported_values import SECONDS_LEAST
from controlplane.core.protocol.selection import EndReason, SelectionEnd, SelectionSpec
from controlplane.core.selection.cost import (
    ExampleTimes,
    SelectionTotals,
    expected_cost,
    measured_speed_up,
    predicted_speed_up,
)
from controlplane.core.values.explanations import percent
from jobs.models import EpochReport, Job, StepReport, Trial

#: Newest reports whose times are put together, and batches that they have at least.
TIMES_REPORTS = 100
TIMES_BATCHES = 8


@dataclass(frozen=True)
class SelectionCounts:
    """Numbers of examples over the epochs that select.

    Attributes:
        candidates: examples among which was chosen; one counts in every epoch.
        analysed: candidates whose loss was computed.
        trained: examples of training steps.
        predicted_speed_up: how many times faster than a plain epoch, by the times that validation
            has measured with one accelerator; None without them.
        expected_speed_up: the same, by the times of the newest steps, which depend on their number
            of accelerators; as predicted before there are any.
        measured_speed_up: the same, from all reported times; None without any.
        backward_per_forward: time of a backward pass, in forward passes, in the validation.
    """

    candidates: int
    analysed: int
    trained: int
    predicted_speed_up: float | None
    expected_speed_up: float | None
    measured_speed_up: float | None
    backward_per_forward: float | None

    @property
    def share(self) -> float | None:
        """Share of the candidates that was trained on; None without any."""
        return self.trained / self.candidates if self.candidates else None


def selection_counts(job: Job) -> SelectionCounts | None:
    """Sum the reports of a job; None for a job that trains on every example."""
    spec = job.run_selection
    if spec is None:
        return None
    selecting = Q(epoch__gte=spec.start)
    if spec.end is not None:
        selecting &= Q(epoch__lt=spec.end)
    if job.tuning:
        selecting &= ~Q(epoch__in=_epochs_with_trials(job, spec.start))
    reports = StepReport.objects.filter(job=job)
    sums = reports.aggregate(
        candidates=Sum("candidates", default=0),
        analysed=Sum("analysed", default=0),
        trained=Sum("examples", filter=selecting, default=0),
    )
    measured = _validated_times(job)
    return SelectionCounts(
        **sums,
        predicted_speed_up=predicted_speed_up(spec, measured),
        expected_speed_up=predicted_speed_up(spec, _newest_times(job, spec) or measured),
        measured_speed_up=measured_speed_up(_totals(reports.filter(selecting))),
        backward_per_forward=None if measured is None else measured.backward_per_forward,
    )


@dataclass(frozen=True)
class ChosenExample:
    """One of the examples chosen most often.

    Attributes:
        place: in the training data.
        times: number of times that it was chosen.
        label: as text; "" if it is no class, number or text, or not known yet.
    """

    place: int
    times: int
    label: str
    has_image: bool


def examples_chosen(job: Job) -> list[ChosenExample]:
    """List the examples that a job has chosen most often."""
    has_image = ExpressionWrapper(Q(image__isnull=False), output_field=BooleanField())
    places = [place for place, _ in job.most_chosen]
    rows = job.example_previews.filter(place__in=places).annotate(has_image=has_image)
    previews = {row[0]: row[1:] for row in rows.values_list("place", "label", "has_image")}
    return [
        ChosenExample(place, times, *previews.get(place, ("", False)))
        for place, times in job.most_chosen
    ]


def epoch_cost(job: Job) -> float:
    """Return the expected time of an epoch of a job that selects, over a plain one."""
    spec = job.run_selection
    if spec is None:
        return 1.0
    return expected_cost(spec, _newest_times(job, spec) or _validated_times(job))


def _validated_times(job: Job) -> ExampleTimes | None:
    times = job.facts.get("selection") or {}
    return ExampleTimes(**times) if times.keys() == {"loss_s", "step_s"} else None


def _newest_times(job: Job, spec: SelectionSpec) -> ExampleTimes | None:
    """Return the times of a job's newest reports that computed losses; None without enough.

    With several accelerators a pass exchanges losses, and a step gradients; so only reports with
    the same number of accelerators are put together.
    """
    if not spec.needs_losses:
        return None
    rows = StepReport.objects.filter(job=job, analysed__gt=0).order_by("-last_step")
    by_count: dict[int, list[StepReport]] = {}
    for row in rows[:TIMES_REPORTS]:
        by_count.setdefault(row.num_accelerators, []).append(row)
    for same in by_count.values():  # the count of the newest report first
        analysed = sum(row.analysed for row in same)
        trained = sum(row.examples for row in same)
        if min(analysed, trained) >= TIMES_BATCHES * job.global_batch_size:
            pass_s = sum(row.pass_s for row in same)
            step_s = sum(row.seconds for row in same) - pass_s
            times = ExampleTimes(loss_s=pass_s / analysed, step_s=step_s / trained)
            return times if min(times.loss_s, times.step_s) >= SECONDS_LEAST else None
    return None


def _epochs_with_trials(job: Job, start: int) -> list[int]:
    """List the epochs from `start` on that trained on everything because of the job's tuning."""
    ended = EpochReport.objects.filter(job=job, epoch__gte=start)
    epochs = list(ended.exclude(logs__has_key="selected_share").values_list("epoch", flat=True))
    newest = Trial.objects.filter(job=job).order_by("-number").first()
    search = Trial.objects.filter(job=job, search=newest.search if newest else 0)
    if newest is not None and not search.exclude(search_end="").exists():
        epochs.append(job.epoch)
    return epochs


def selection_end_text(end: SelectionEnd) -> str:
    """Describe why a job stops selecting, with its numbers."""
    if end.reason is EndReason.GUARD:
        why = f"an epoch that selects takes {percent(end.ratio)} of the time of a plain one"
    else:
        why = (
            f"the validation loss falls {end.ratio:.2f} times as fast per second as with random "
            "selection"
        )
    return f"Selection ends: {why}. From epoch {end.epoch} on all examples are trained on"


def _totals(reports: QuerySet[StepReport]) -> list[SelectionTotals]:
    """Sum reports by generation, which has the same accelerators throughout."""
    sums = reports.order_by("generation").values("generation")
    rows = sums.annotate(
        candidates=Sum("candidates"),
        trained=Sum("examples"),
        pass_s=Sum("pass_s"),
        all_s=Sum("seconds"),
    )
    return [
        SelectionTotals(
            candidates=row["candidates"],
            trained=row["trained"],
            pass_s=row["pass_s"],
            step_s=max(row["all_s"] - row["pass_s"], 0.0),
        )
        for row in rows
    ]
