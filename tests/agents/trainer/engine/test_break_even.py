"""The evidence of several trainers that selection does not pay: the same in all of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agents.trainer.engine.break_even import BreakEven
from agents.trainer.model.history import EpochRow
from agents.trainer.model.progress import NO_GUARD, Activity, Progress
from controlplane.core.protocol.selection import EndReason, SelectionEnd, SelectionSpec
from controlplane.core.protocol.selection import SelectionMethod as Method
from controlplane.core.selection.guard import (
    CONTROLS,
    NOT_MEASURED,
    WINDOW_PASSES,
    WINDOWS,
    BreakEvenGuard,
)
from controlplane.core.tuning.course import TuningCourse
from controlplane.core.tuning.search import Search, Trial, search_begin

SPEC = SelectionSpec(method=Method.SELECTIVE_BACKPROP)


class Trainers:
    """Two trainers of a job that takes a pass and a step in turn, each with clocks of its own."""

    def __init__(self, spec: SelectionSpec) -> None:
        self.spec = spec
        self.progress = [Progress(), Progress()]
        self.generation = 0

    def membership(self, num_passes: int, leader: int, seconds: float) -> None:
        """Run passes, of 60 % of the steps' time, from a checkpoint that both have read."""
        self.generation += 1
        stored = json.loads(json.dumps(self.progress[0].to_json()))
        self.progress = [Progress.from_json(stored)] * 2
        parts = [
            BreakEven(self.spec, self.generation, is_leader=slot == leader) for slot in range(2)
        ]
        for number in range(2 * num_passes):
            is_pass = number % 2 == 0
            sent = parts[leader].times
            assert parts[1 - leader].times == NOT_MEASURED
            for slot, part in enumerate(parts):
                activity = Activity.SELECT if is_pass else Activity.TRAIN
                cursor = replace(self.progress[slot], activity=activity)
                batch_s = (seconds + slot) * (0.6 if is_pass else 1.0)
                chosen = 10 if is_pass else None
                self.progress[slot] = part.after_batch(cursor, sent, 20, batch_s, chosen)
            guards = [progress.guard for progress in self.progress]
            assert guards[0] == guards[1]

    def verdicts(self) -> list[EndReason | None]:
        part = BreakEven(self.spec, self.generation, is_leader=False)
        found = [part.verdict(progress) for progress in self.progress]
        return [verdict and verdict.reason for verdict in found]


@pytest.mark.parametrize("passes", [4, 11, WINDOW_PASSES - 1])
def test_the_evidence_survives_leaders_and_memberships_shorter_than_a_window(passes: int) -> None:
    trainers, done = Trainers(SPEC), 0
    while done < WINDOWS * WINDOW_PASSES:
        assert trainers.verdicts() == [None, None]
        trainers.membership(passes, leader=trainers.generation % 2, seconds=1.0 + done)
        done += passes
    assert trainers.verdicts() == [EndReason.GUARD] * 2
    guard = trainers.progress[0].guard
    assert guard.cost == pytest.approx(0.6 + 0.5)


def test_a_decision_is_made_once_and_only_with_the_guard_on() -> None:
    trainers = Trainers(SPEC)
    trainers.membership(WINDOWS * WINDOW_PASSES, leader=0, seconds=1.0)
    assert trainers.verdicts() == [EndReason.GUARD] * 2
    off = Trainers(replace(SPEC, guard=False))
    off.progress = trainers.progress
    assert off.verdicts() == [None, None]
    end = SelectionEnd(epoch=3, step=9, reason=EndReason.GUARD, ratio=1.4)
    trainers.progress = [replace(row, selection_end=end) for row in trainers.progress]
    assert trainers.verdicts() == [None, None]


def test_searches_of_the_selection_are_no_evidence() -> None:
    """A guard that has seen enough begins anew, and ends no search."""
    trainers = Trainers(SPEC)
    trainers.membership(WINDOWS * WINDOW_PASSES, leader=0, seconds=1.0)
    search = search_begin(
        Search(1, 100, 3, 100, (Trial(1, 1, {"selection_beta": 1.0}),), running=1)
    )
    trying = [
        replace(row, tuning=TuningCourse(search=search, is_due=False)) for row in trainers.progress
    ]
    for tunes_selection, guard in ((True, NO_GUARD), (False, trainers.progress[0].guard)):
        part = BreakEven(SPEC, 1, is_leader=False, tunes_selection=tunes_selection)
        found = part.after_batch(trying[0], NOT_MEASURED, 20, 1.0)
        assert found.guard == guard


def test_control_epochs_are_compared_with_the_first_step_of_an_epoch() -> None:
    """At random the loss falls by 2 in half of a plain epoch's time, else by 1 in all of it."""
    spec = replace(SPEC, guard=False, control_every=3)
    loss, rows = 90.0, []
    for epoch in range(3 * CONTROLS + 2):
        loss -= 2.0 if spec.is_control(epoch) else 1.0
        logs = {"val_loss": loss} | ({"selected_share": 0.5} if spec.selects(epoch) else {})
        rows.append(EpochRow(epoch, epoch, logs))
    guard = BreakEvenGuard(newest=0.5)
    progress = Progress(epoch=len(rows), history=tuple(rows), guard=guard)
    part = BreakEven(spec, 1, is_leader=False)
    verdict = part.verdict(progress)
    assert verdict is not None
    assert verdict.reason is EndReason.CONTROL
    assert verdict.ratio == pytest.approx((1.0 / 1.0) / (2.0 / 0.5))
    assert part.verdict(replace(progress, trained=20)) is None
    assert part.verdict(replace(progress, guard=NO_GUARD)) is None
