"""Jobs over several kinds of accelerator: profiles, lending, uneven splits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Event, Job, StepTimeProfile
from jobs.selectors.desired_state.state import wanted_state
from jobs.selectors.estimates.step_times import step_times_read
from jobs.selectors.reproducibility import Reproducibility, kinds_used, reproducibility_of
from jobs.services.submission.job_actions import job_cancel
from tests.jobs.kinds_world import KindsWorld, active, counts, mixing_job, settled
from tests.support.builders import job_make

pytestmark = pytest.mark.django_db


def profile(kind: str, measures: str = "compute") -> dict[str, list[float]]:
    row = StepTimeProfile.objects.get(kind=kind, measures=measures)
    return dict(row.samples)


def mixed(world: KindsWorld, job: Job) -> None:
    """Bring a job that mixes to one fast and one slow accelerator, both known."""
    settled(world, job, 1)
    for _ in range(3):
        world.train_timed(job)
    settled(world, job, 2)


def test_joiners_measure_themselves_once_for_each_kind_code_and_settings() -> None:
    world = KindsWorld("fast fast")
    first = mixing_job(max_accelerators=1)
    settled(world, first, 1)
    assert world.asked == {0: True}
    assert {point: row[0] for point, row in profile("fast").items()} == {"1": 1, "2": 1, "4": 1}
    assert profile("fast")["4"][1] == pytest.approx(0.04)
    world.asked.clear()
    again = mixing_job(max_accelerators=1)
    settled(world, again, 1)
    assert world.asked == {0: False}
    assert step_times_read([again])[again.pk].by_kind["fast"](4) == pytest.approx(0.04)
    # Other settings, another size of slice: nothing is known.
    other = mixing_job(settings={"units": 9})
    assert step_times_read([other])[other.pk].by_kind == {}
    smaller = mixing_job(num_virtual_nodes=16)
    assert step_times_read([smaller])[smaller.pk].by_kind == {}
    adapted = mixing_job(batch_size_min=16, batch_size_max=64, batch_size=64)
    assert step_times_read([adapted])[adapted.pk].by_kind == {}


def test_steps_feed_the_profile_of_computing_and_of_the_exchange() -> None:
    world = KindsWorld("fast fast", has_profiles=False)
    job = mixing_job()
    settled(world, job, 2)
    for _ in range(2):
        world.train_timed(job, num_steps=5)
    assert profile("fast") == {"4": [10, pytest.approx(0.04), pytest.approx(0.04)]}
    assert profile("fast", "sync") == {"2": [10, pytest.approx(0.004), pytest.approx(0.004)]}
    for _ in range(8):
        world.train_timed(job, num_steps=5)
    assert profile("fast")["4"][0] == 50


def test_idle_accelerators_of_another_kind_are_tried_measured_and_kept() -> None:
    world = KindsWorld("fast", "slow")
    job = mixing_job()
    mixed(world, job)
    # Before anybody was told to go the joiner's own profile had come: 6 + 2, never 4 + 4.
    assert counts(job) == [6, 2]
    assert all(
        [len(m.virtual_nodes) for m in row.membership.members] in ([8], [6, 2])
        for row in job.generations.filter(num_switched__gt=0)
    )
    assert world.train_timed(job) == pytest.approx(0.064)
    world.cycle()
    job.refresh_from_db()
    assert job.policy_reason.endswith(
        "1 fast + 1 slow mixed: 60 ms a step instead of 80 ms on 1 fast."
    )
    told = [row.message for row in Event.objects.filter(job=job, kind="mixing").order_by("id")]
    assert told[0].startswith("One slow works along: its speed on this code is not known yet.")
    assert told[1].startswith("1 fast + 1 slow mixed: 60 ms a step")
    assert len(told) == 2


def test_profiles_that_nobody_adds_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.services.reports.profiles.PROFILES_LIMIT", 2)
    world = KindsWorld("fast")
    for units in (1, 2, 3):
        job = mixing_job(max_accelerators=1, settings={"units": units})
        settled(world, job, 1)
        job_cancel(job.pk, world.now, actor="user:ada")
        world.settle(2)
    assert StepTimeProfile.objects.count() == 2
    assert step_times_read([mixing_job(settings={"units": 1})]).popitem()[1].by_kind == {}


def test_what_is_told_about_a_mix_is_told_once() -> None:
    world = KindsWorld("fast", "slow")
    job = mixing_job()
    mixed(world, job)
    for _ in range(6):
        world.train_timed(job)
        world.cycle()
    assert Event.objects.filter(job=job, kind="mixing").count() == 2
    assert counts(job) == [6, 2]


def test_a_kind_that_is_too_slow_is_given_back_and_not_tried_again() -> None:
    world = KindsWorld("fast", "snail")
    job = mixing_job()
    mixed_once = False
    settled(world, job, 1)
    for _ in range(12):
        world.train_timed(job)
        world.settle(2)
        mixed_once |= job.generations.filter(num_members=2).exists()
    assert mixed_once
    settled(world, job, 1)
    assert job.generations.filter(num_members=2).count() == 1
    last = Event.objects.filter(job=job, kind="mixing").first()
    assert last is not None
    assert last.message == (
        "Not mixed: 1 fast + 1 snail would need 5000 ms a step, 1 fast need 80 ms."
    )
    # A later job with the same code knows it from the beginning.
    before = job.generations.count()
    later = mixing_job()
    Job.objects.filter(id=job.pk).update(status="cancelled", ended_at=world.now)
    assert before == job.generations.count()
    assert "snail" in step_times_read([later])[later.pk].by_kind


def test_a_job_that_did_not_ask_for_it_is_never_mixed() -> None:
    world = KindsWorld("fast", "slow")
    job = mixing_job(allow_mixed_kinds=False)
    settled(world, job, 1)
    for _ in range(4):
        world.train_timed(job)
        world.settle(2)
    assert counts(job) == [8]
    assert not Event.objects.filter(job=job, kind="mixing").exists()


def test_lent_accelerators_go_to_whoever_needs_them() -> None:
    world = KindsWorld("fast", "slow")
    job = mixing_job()
    mixed(world, job)
    other = job_make(accepted_kinds=["slow"], priority=1, settings={"other": 1})
    settled(world, other, 1)
    settled(world, job, 1)
    assert counts(job) == [8]


def test_reproducibility_drops_with_the_first_mixed_step_and_is_told_once() -> None:
    world = KindsWorld("fast", "slow")
    job = mixing_job()
    settled(world, job, 1)
    assert reproducibility_of(job, kinds_used(job))[0] is Reproducibility.BITWISE
    mixed(world, job)
    assert kinds_used(job) == ["fast", "slow"]
    assert reproducibility_of(job, kinds_used(job))[0] is Reproducibility.TOLERANCE
    event = Event.objects.get(job=job, kind="kinds_mixed")
    assert event.message.startswith(f"From step {active(job).step} on it has trained on fast and")
    assert reproducibility_of(job_make(reduction="fast"), ["cpu"])[0] is Reproducibility.TOLERANCE


def test_a_mixed_job_is_resized_with_the_split_that_is_known() -> None:
    world = KindsWorld("fast", "slow")
    job = mixing_job(num_virtual_nodes=16)
    mixed(world, job)
    assert counts(job) == [12, 4]
    world.train_timed(job)
    world.train_timed(job)
    world.add_node("fast", 1)
    settled(world, job, 3)
    # The old members keep their places, the second fast one comes last: 70, 60 and 70 ms.
    assert counts(job) == [7, 2, 7]
    # Of two more slow ones only the first makes the step shorter.
    world.add_node("slow", 2)
    settled(world, job, 4)
    assert counts(job) == [6, 2, 6, 2]


def test_orders_carry_the_wish_for_a_profile_until_the_trainer_ends() -> None:
    world = KindsWorld("fast")
    job = mixing_job()
    settled(world, job, 1)
    (orders,) = wanted_state(world.nodes[0].node).trainers
    assert orders.profile  # the same orders as before: nothing changes under a running trainer
    assert dataclasses.replace(orders, profile=False) != orders


@pytest.mark.parametrize(
    "odd", [None, 7, {"x": 1}, {"4": "fast"}, {"4": -1.0}, {"0": 1.0}, {"4": None}]
)
def test_odd_measurements_are_passed_over(odd: Any) -> None:
    world = KindsWorld("fast")
    job = mixing_job()
    settled(world, job, 1)
    StepTimeProfile.objects.all().delete()
    played, trainer = world.leader_of(job)
    played.say(trainer, ReportKind.READY, profile=odd)
    world.tell(world.steps_say(job, 1, 2, compute_s=odd))
    assert not StepTimeProfile.objects.exists()
    job.refresh_from_db()
    assert job.step == 2
