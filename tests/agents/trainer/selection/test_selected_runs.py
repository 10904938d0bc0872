"""Real trainer processes that select their examples: the bits do not depend on the mapping."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.workload import workload_build
from agents.trainer.local.local_cluster import LocalJob, LocalJobError
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.dying_trainer import Ending, dying_program
from tests.agents.trainer.local_jobs import (
    UNEVEN_JOB,
    bereft_and_restored,
    local_job,
    resized,
    training_spec,
    undisturbed,
)
from tests.agents.trainer.scheduled_trainer import scheduled_program
from tests.agents.trainer.step.test_batch_sizes import SGD_JOB, scheduled

NUM_EXAMPLES = 101
RESIZES = [1, 3, 2, 4]
#: Its losses are computed for one example after another, from what the call has left.
OWN_LOSS_JOB = (
    UNEVEN_JOB.replace("keras.Sequential(", "OwnLoss(")
    + """

class OwnLoss(keras.Sequential):
    def call(self, inputs, training=False):
        self.outputs_now = super().call(inputs, training=training)
        return self.outputs_now

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + keras.ops.mean(keras.ops.abs(self.outputs_now - y))
"""
)
#: The stale method has passes with and without losses; all methods, resized more widely, in
#: `make nightly`.
METHODS = [
    pytest.param(SelectionMethod.STALE_SELECTIVE_BACKPROP, [1, 2, 1], UNEVEN_JOB, id="stale-1-2-1"),
    pytest.param(
        SelectionMethod.SELECTIVE_BACKPROP, [1, 3, 2], OWN_LOSS_JOB, id="a loss of the model's own",
        marks=pytest.mark.nightly,
    ),
    *(
        pytest.param(method, RESIZES, UNEVEN_JOB, id=f"{method}-1-3-2-4", marks=pytest.mark.nightly)
        for method in SelectionMethod
        if method is not SelectionMethod.NONE
    ),
]  # fmt: skip


def selecting_spec(
    method: SelectionMethod, num_epochs: int = 16, control_every: int | None = None, **more: Any
) -> TrainingSpec:
    """Make a spec that selects from epoch 2 to the last but one."""
    selection = SelectionSpec(
        method=method,
        history=64,
        stale_every=3,
        start=2,
        end=num_epochs - 1,
        loss_cap=5.0,
        guard=False,
        control_every=control_every,
    )
    stop = StopCondition(kind=StopKind.EPOCHS, limit=num_epochs)
    return training_spec(selection=selection, stop=stop, **more)


def check_counts(job: LocalJob, spec: TrainingSpec, num_steps: int) -> None:
    """See in the leaders' reports which examples were candidates, analysed and trained on."""
    selection = spec.selection
    assert selection is not None
    assert selection.end is not None
    selecting = range(selection.start, selection.end)
    forwarding = [epoch for epoch in selecting if selection.forwards(epoch)]
    reports = [report.data for report in job.step_reports()]
    assert sum(data["candidates"] for data in reports) == NUM_EXAMPLES * len(selecting)
    assert sum(data["analysed"] for data in reports) == NUM_EXAMPLES * len(forwarding)
    num_plain = spec.stop.limit - len(selecting)
    trained = sum(data["examples"] for data in reports) - num_plain * NUM_EXAMPLES
    assert trained == spec.global_batch_size * (num_steps - 6 * num_plain)
    assert 0.2 < trained / (NUM_EXAMPLES * len(selecting)) < 0.6  # 0.45 is expected
    for trainer in job.trainers.values():
        epochs = [report.data for report in trainer.reports if report.kind is ReportKind.EPOCH]
        chosen = {place for data in epochs for place, _ in data["most_chosen"]}
        assert {one["place"] for data in epochs for one in data["previews"]} == chosen


def test_a_selection_begins_in_its_epoch_and_counts_passes_and_epochs_without_a_step(
    tmp_path: Path,
) -> None:
    """A tenth is chosen, half a batch in an epoch: a loss of 0 would end the job.

    Less than a batch is left at the end, whose passes are told with it.
    """
    stop = StopCondition(kind=StopKind.EPOCHS, limit=2)
    plain = undisturbed(tmp_path / "plain", training_spec(stop=stop))
    stop = StopCondition(
        kind=StopKind.METRIC, limit=6, metric="loss", target=0.01, higher_is_better=False
    )
    selection = SelectionSpec(
        method=SelectionMethod.SELECTIVE_BACKPROP, beta=9.0, start=2, guard=False
    )
    with local_job(tmp_path, training_spec(selection=selection, stop=stop)) as job:
        job.resize(1)
        passed = job.wait_finished()["passed"]
        stepped = sum(report.data["candidates"] for report in job.step_reports())
        rows = [report.data for report in job.told(ReportKind.EPOCH)]
    assert [row["epoch"] for row in rows] == [*range(6)]
    assert (rows[1]["logs"], rows[1]["step"]) == (plain["metrics"], plain["step"])
    assert passed["candidates"] > 0, "nobody would see a lost count"
    assert passed["analysed"] == passed["candidates"]
    assert stepped + passed["candidates"] == 4 * NUM_EXAMPLES
    same = [(old["logs"], new["logs"]) for old, new in pairwise(rows) if old["step"] == new["step"]]
    assert same, "each epoch has a step"
    for old, new in same:
        names = {"loss", "accuracy", "learning_rate", "val_loss", "val_accuracy"}
        assert {name: new[name] for name in names} == {name: old[name] for name in names}
        assert new["selected_share"] != old.get("selected_share")


def test_the_method_none_is_no_selection(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(UNEVEN_JOB)
    reports = ReportWriter(tmp_path, 0, 0)
    none = SelectionSpec(method=SelectionMethod.NONE)
    plain, built = (
        workload_build(tmp_path, training_spec(selection=selection), reports)
        for selection in (None, none)
    )
    assert built.data.schedule == plain.data.schedule
    assert built.data.selection is None
    assert [(s.dtype, s.shape) for s in built.state.specs] == [
        (s.dtype, s.shape) for s in plain.state.specs
    ]


@pytest.mark.parametrize(("method", "sizes", "code"), METHODS)
def test_a_selecting_job_that_is_resized_ends_with_the_undisturbed_bits(
    method: SelectionMethod, sizes: list[int], code: str, tmp_path: Path
) -> None:
    # With 16 epochs the comparison, which depends on times, ends with the selection.
    spec = selecting_spec(method, control_every=4)
    expected = undisturbed(tmp_path / "one", spec, code)
    with local_job(tmp_path, spec, code, num_slots=6) as job:
        job.program = scheduled_program(dict(zip(range(1, len(sizes)), [13, 18, 27], strict=False)))
        result = resized(job, sizes, every=0)
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
    assert result["step"] == expected["step"]
    check_counts(job, spec, result["step"])


@pytest.mark.nightly
def test_killed_in_selection_passes_preempted_and_restored(tmp_path: Path) -> None:
    """One of three is lost before a pass, the leader between a pass and its choice."""
    spec = selecting_spec(SelectionMethod.SELECTIVE_BACKPROP, num_epochs=100)
    expected = undisturbed(tmp_path / "one", spec, UNEVEN_JOB)
    step = "agents.trainer.step.stepper:Stepper.step"
    choose = "agents.trainer.selection.state:Selection.choose"
    endings = [
        Ending(slot=1, place=step, call=4, activity="select"),
        Ending(slot=0, place=choose, generation=2, call=9),
    ]
    with local_job(tmp_path, spec, UNEVEN_JOB) as job:
        job.program = dying_program(endings)
        result = bereft_and_restored(job)
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
    check_counts(job, spec, result["step"])


@pytest.mark.nightly  # test_schedule.py has changes of batch size without trainers
def test_a_selection_follows_changes_of_batch_size_with_the_same_bits(tmp_path: Path) -> None:
    spec = training_spec(
        global_batch_size=20,
        batch_size_min=10,
        batch_size_max=40,
        stop=StopCondition(kind=StopKind.EPOCHS, limit=8),
        selection=SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, history=64, guard=False),
    )
    digests = []
    for sizes in ([1, 1, 1, 1], [1, 3, 2, 2]):
        folder = tmp_path / "-".join(map(str, sizes))
        folder.mkdir()
        with local_job(folder, spec, SGD_JOB) as job:
            digests.append(scheduled(job, sizes)["digest"])
    assert digests[0] == digests[1]


@pytest.mark.nightly  # test_schedule.py counts such epochs
def test_a_selection_that_never_chooses_ends_the_job_with_its_reason(tmp_path: Path) -> None:
    """All examples have the weight 0."""
    code = UNEVEN_JOB.replace("generator.uniform(0.5, 2.0, size=101)", "np.zeros(101)")
    spec = training_spec(
        selection=SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP),
        stop=StopCondition(kind=StopKind.STEPS, limit=1000),
    )
    with local_job(tmp_path, spec, code) as job:
        job.resize(1)
        with pytest.raises(LocalJobError, match="no example in 10 epochs in a row; use a smaller"):
            job.wait_finished()
