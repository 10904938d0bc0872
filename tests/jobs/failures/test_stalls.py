"""Trainers that wait for others in vain: who is waited with, and who goes on without whom."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Job
from jobs.services.failures.timeouts import stalled_recover
from tests.jobs.losses import (
    A,
    B,
    C,
    D,
    fresh,
    newest,
    slots,
    training,
)

pytestmark = pytest.mark.django_db


class TestStalls:
    def test_they_are_waited_with_for_the_grace(self, settings: Any) -> None:
        world, job = training()
        world.stall(job, A, D)
        row = job.allocations.get(slot=A)
        assert (row.stalled_at, row.stalled_step, row.unreachable) == (world.now, 10, [D])
        assert stalled_recover(world.now, [job.pk]) == set()
        world.hear()
        world.now_s += settings.STALL_GRACE_S
        assert stalled_recover(world.now, [job.pk]) == {job.pk}
        assert slots(newest(job)) == [A, B, C]
        lost = job.allocations.get(slot=D)
        assert (lost.lost_code, lost.stop_requested_at) == ("unreachable", world.now)
        assert stalled_recover(world.now, [job.pk]) == set()

    def test_the_only_one_beside_a_silent_node_goes_on(self, settings: Any) -> None:
        settings.STALL_GRACE_S, settings.HEARTBEAT_S = 2, 2
        world, job = training(max_accelerators=3)
        world.now_s += 1
        assert slots(newest(job)) == [A, B, C]
        world.stall(job, C, A, B)
        (beside,) = (row for row in world.nodes if C in {slot for _, slot in row.trainers})
        world.now_s += 3
        world.hear(beside)
        # A heartbeat of the other node may be on its way, but not for longer.
        assert stalled_recover(world.now, [job.pk]) == set()
        world.now_s += 1
        assert stalled_recover(world.now, [job.pk]) == {job.pk}
        assert slots(newest(job)) == [C]
        assert [(row["slot"], row["code"]) for row in newest(job).lost] == [
            (A, "unreachable"),
            (B, "unreachable"),
        ]
        assert fresh(job).restarts == 0

    def test_nobody_resizes_a_job_meanwhile(self) -> None:
        world, job = training()
        Job.objects.filter(id=job.pk).update(max_accelerators=2)
        world.stall(job, A, D)
        world.cycle()
        assert newest(job).number == 1

    def test_when_all_have_stalled_nobody_is_waited_for(self) -> None:
        world, job = training()
        for slot in (A, B, C):
            world.stall(job, slot, D)
        assert newest(job).number == 1
        world.stall(job, D, A, B, C)
        assert slots(newest(job)) == [A, B, C]

    def test_after_a_passing_fault_all_go_on(self) -> None:
        world, job = training()
        for slot in (A, B, C, D):
            world.stall(job, slot)
        assert slots(newest(job)) == [A, B, C, D]
        assert newest(job).reason == "all trainers stalled and can be reached again"
        world.follow_all()
        assert newest(job).phase == "active"
        assert not job.allocations.filter(stalled_at__isnull=False).exists()

    def test_an_exit_within_the_grace_is_the_answer(self) -> None:
        world, job = training()
        for slot in (A, B, C):
            world.stall(job, slot, D)
        world.kill(job, D)
        assert slots(newest(job)) == [A, B, C]
        assert newest(job).lost[0]["code"] == "crash"

    def test_what_a_suspect_says_later_is_refused(self, settings: Any) -> None:
        world, job = training()
        world.stall(job, A, D)
        world.hear()
        world.now_s += settings.STALL_GRACE_S
        stalled_recover(world.now)
        played, late = next(row for row in world.trainers_of(job) if row[1].slot == D)
        number = newest(job).number
        played.say(late, ReportKind.FINISHED, step=99, epoch=1, reason="steps", metrics={"loss": 1})
        world.tell(played)
        assert (late.job_id, late.slot) in {(row.job_id, row.slot) for row in played.stale}
        assert (fresh(job).status, newest(job).number) == ("running", number)
