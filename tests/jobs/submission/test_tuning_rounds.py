"""Rounds of parallel tuning: begun on idle accelerators, judged, adopted, given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.storage import default_storage

from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.tuning.rounds import PATIENCE, PATIENCE_S, proposal
from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import ConflictError
from jobs.models import Accelerator, Artifact, Job, NotificationDelivery, Sweep, Trial, TuningRound
from jobs.selectors.desired_state.agent_files import adopted_state
from jobs.selectors.desired_state.state import training_spec, wanted_state
from jobs.selectors.tuning import tuned_of
from jobs.services.scheduling.adoptions import ASK_AGAIN_S, FETCH_LIMIT_S, TRIES_LIMIT, _order
from jobs.services.submission import tuning_rounds
from jobs.services.submission.job_actions import job_cancel, job_pause
from jobs.services.submission.rows import live_jobs_check
from jobs.services.submission.tuning_rounds import tuning_advance
from tests.jobs.losses import event, fresh
from tests.jobs.world import World
from tests.support.builders import Clients, job_make, user_make
from tests.support.rows import file_store
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db
URL = "/api/v1/jobs/"
STEPS = 20
TUNING = {
    "space": {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}},
    "parallel": True,
    "max_parallel": 2,
    "max_trials": 5,
    "trial_steps": STEPS,
}


@setup_once
def tuned(*, has_trials: bool) -> tuple[World, Job, list[Job]]:
    """Let a tuned job train on two of four accelerators, and its trials if it shall have them."""
    world = World(2)
    ada = user_make("ada")
    job = job_make(ada, stop_limit=1000, max_accelerators=2, tuning=TUNING, seed=3)
    world.settle(4)
    train(world, job, 10, 2.0)
    parent = fresh(job)
    return world, parent, begin(world, parent) if has_trials else []


@pytest.fixture
def cluster(request: pytest.FixtureRequest, db: None) -> tuple[World, Job, list[Job]]:
    return tuned(has_trials="trials" in request.fixturenames)


@pytest.fixture
def world(cluster: tuple[World, Job, list[Job]]) -> World:
    return cluster[0]


@pytest.fixture
def parent(cluster: tuple[World, Job, list[Job]]) -> Job:
    return cluster[1]


@pytest.fixture
def trials(cluster: tuple[World, Job, list[Job]]) -> list[Job]:
    """Give the trials of a round that has begun."""
    return cluster[2]


@pytest.fixture
def ada(parent: Job) -> User:
    return parent.owner


def train(world: World, job: Job, num_steps: int, loss: float, fall: float = 0.0) -> None:
    """Report steps, two at a time, whose loss falls evenly by `fall` in all."""
    for number in range(1, num_steps // 2 + 1):
        first = world.steps.get(job.pk, fresh(job).step) + 1
        world.steps[job.pk] = first + 1
        world.now_s += 0.2
        played = world.steps_say(job, first, first + 1, loss=loss - 2 * fall * number / num_steps)
    world.tell(played)


def save(world: World, job: Job) -> None:
    """Let the leader save the state of its present step."""
    played, trainer = world.leader_of(job)
    step = world.steps[job.pk]
    content = f"{job.pk} at {step}".encode()
    world.now_s += 0.1
    stored = file_store(fresh(job), "checkpoint.npz", content, world.now, trainer.generation)
    values = {"step": step, "epoch": 0, "bytes": 1, "sha256": stored.sha256, "is_last": False}
    played.say(trainer, ReportKind.CHECKPOINTED, **values)
    world.tell(played)


def request_of(world: World, job: Job) -> set[int]:
    states = [wanted_state(played.node) for played in world.nodes]
    rows = [row for state in states for row in state.trainers if row.spec.job_id == job.pk]
    return {row.save_request for row in rows}


def begin(world: World, parent: Job) -> list[Job]:
    """Begin a round and let its trials train; returns them in the order of their numbers."""
    assert tuning_advance(world.now) == {parent.pk}
    assert request_of(world, parent) == {int(world.now.timestamp() * 1000)}
    assert not parent.trial_jobs.exists()
    save(world, parent)
    tuning_advance(world.now)
    children = list(parent.trial_jobs.filter(ended_at=None).order_by("pk"))
    world.steps |= {one.pk: one.step for one in children}
    world.until(lambda: all(fresh(one).status != JobStatus.PENDING for one in children))
    world.settle(4)
    return children


def end(world: World, child: Job, fall: float) -> None:
    """Let a trial do its steps, save its last state and end."""
    train(world, child, STEPS, 2.0, fall)
    save(world, child)
    world.finish(child)


def outcomes(parent: Job) -> list[tuple[int | None, str]]:
    """List child and outcome of the trials of the newest round."""
    newest = TuningRound.objects.filter(job=parent).latest("number").number
    rows = Trial.objects.filter(job=parent, search=newest)
    return list(rows.values_list("child", "end"))


def adopting(world: World, parent: Job) -> Adoption | None:
    (adoption,) = {
        row.membership.adoption
        for played in world.nodes
        for row in wanted_state(played.node).trainers
        if row.spec.job_id == parent.pk
    }
    return adoption


def test_trials_start_from_the_jobs_state_as_idle_jobs_of_its_owner(
    world: World, parent: Job, trials: list[Job], ada: User, client_of: Clients
) -> None:
    first, second = trials
    spec = training_spec(first)
    assert spec.fork is not None
    assert spec.tuning is not None
    assert (spec.fork.step, spec.stop.limit) == (10, 10 + STEPS)
    assert spec.fork.values == proposal(spec.tuning, 3, 1)
    assert training_spec(second).fork.values == proposal(spec.tuning, 3, 2)  # type: ignore[union-attr]
    assert (spec.fork.keeps_order, spec.fork.keeps_rate, spec.fork.keeps_seed) == (True,) * 3
    for child in (first, second):
        assert (child.tier, child.owner, child.status) == ("idle", ada, "pending")
        assert fresh(child).status == JobStatus.STARTING
        assert child.artifacts.get().sha256 == parent.artifacts.get().sha256
    own, *others = Trial.objects.filter(job=parent)
    assert (own.child, own.values, own.start_loss) == (None, {}, 2.0)
    assert [row.child for row in others] == [first, second]
    assert "2 trials of 20 steps, from step 10 on" in event(parent, "round_begun").message
    client = client_of(ada)
    assert [row["id"] for row in client.get(URL).json()["results"]] == [parent.pk]
    found = client.get(URL, {"trial_of": parent.pk, "order": "submitted"}).json()["results"]
    assert [row["id"] for row in found] == [first.pk, second.pk]
    read = client.get(f"{URL}{parent.pk}/").json()
    assert read["forks"] == []
    assert [row["child"] for row in read["tuned"]["trials"]] == [None, first.pk, second.pk]
    trial = client.get(f"{URL}{first.pk}/").json()
    assert (trial["trial_of"], trial["tuned"]) == (parent.pk, None)
    assert (read["reproducibility"], trial["reproducibility"]) == ("none", "bitwise")


def test_the_winners_state_is_adopted_with_a_switch_of_the_same_trainers(
    world: World, parent: Job, trials: list[Job]
) -> None:
    first, second = trials
    members = parent.generations.get(phase="active").membership.members
    end(world, first, fall=0.2)
    end(world, second, fall=1.0)
    assert tuning_advance(world.now) == set(), "its own trial is not done"
    train(world, parent, STEPS, 2.0, fall=0.5)
    state = second.artifacts.get(name="checkpoint.npz").sha256
    assert tuning_advance(world.now) == {parent.pk, first.pk, second.pk}
    assert outcomes(parent) == [(None, "slower"), (first.pk, "slower"), (second.pk, "kept")]
    tuned = tuned_of(fresh(parent))
    assert tuned is not None
    assert tuned.values == fresh(second).fork["values"]
    assert parent.pk not in tuning_advance(world.now), "no trainer has the state yet"
    assert adopting(world, parent) is None
    world.follow(world.nodes[0])
    world.follow(world.nodes[1])
    assert parent.pk in tuning_advance(world.now)
    assert adopting(world, parent) == Adoption(number=1, sha256=state)
    assert adopted_state(parent).sha256 == state
    assert files_of(first) == files_of(second) == set(), "trials that are judged keep their files"
    world.follow_all()
    active = parent.generations.get(phase="active")
    assert [m.virtual_nodes for m in active.membership.members] == [
        m.virtual_nodes for m in members
    ]
    assert (fresh(parent).adopted, fresh(parent).status) == (1, "running")
    assert event(parent, "adopted").data == {"trial": 3, "step": 10 + STEPS}
    stale = fresh(parent)  # as if read before the switch was reported
    stale.adopted, stale.adoption = 0, stale.adoption | {"step": None}
    assert not _order(stale, active, world.now)
    assert fresh(parent).adoption["step"] == 10 + STEPS
    # The file goes once the job has a checkpoint of a later step; only then comes another round.
    world.now_s += ASK_AGAIN_S
    assert tuning_advance(world.now) == {parent.pk}
    train(world, parent, 2, 1.0)
    save(world, parent)
    tuning_advance(world.now)
    assert fresh(parent).adoption == {}
    assert files_of(parent) == {"checkpoint.npz", "checkpoint-10.npz"}
    world.until(lambda: tuning_advance(world.now) == {parent.pk})
    # Its losses begin after the adoption, however many steps the round's tenth has.
    coming = TuningRound.objects.filter(job=parent, ended_at=None)
    coming.update(num_steps=10 * STEPS)
    save(world, parent)
    tuning_advance(world.now)
    assert coming.values_list("number", "start_step", "start_loss").get() == (2, 12 + STEPS, 1.0)


def files_of(job: Job) -> set[str]:
    names = set(Artifact.objects.filter(job=job).values_list("name", flat=True))
    for row in Artifact.objects.filter(job=job):
        assert default_storage.exists(row.file.name or "")
    return names


def test_the_job_keeps_its_values_if_no_other_trial_is_faster(
    world: World, parent: Job, trials: list[Job]
) -> None:
    first, second = trials
    end(world, first, fall=0.5)
    end(world, second, fall=-0.5)
    train(world, parent, STEPS, 2.0, fall=0.5)
    tuning_advance(world.now)
    assert outcomes(parent) == [(None, "kept"), (first.pk, "slower"), (second.pk, "unstable")]
    assert fresh(parent).adoption == {}
    text = "Round 1: the job keeps its values, as its loss fell fastest, with 2 other trials done"
    assert event(parent, "round_ended").message == text


def test_a_higher_job_takes_the_accelerators_and_the_trial_goes_on_later(
    world: World, parent: Job, trials: list[Job]
) -> None:
    first, second = trials
    train(world, first, 6, 2.0, fall=0.3)
    urgent = job_make(max_accelerators=2, min_accelerators=2)
    world.until(lambda: len(world.trainers_of(urgent)) == 2)
    assert {fresh(first).status, fresh(second).status} == {JobStatus.PENDING}
    assert fresh(parent).status == JobStatus.RUNNING
    assert len(world.trainers_of(parent)) == 2
    world.settle(2)
    world.finish(urgent)
    world.until(lambda: fresh(first).status == JobStatus.STARTING)
    assert fresh(first).artifacts.get(name="checkpoint.npz").step == 16


def test_trials_that_get_no_accelerators_in_time_are_not_waited_for(
    world: World, parent: Job, trials: list[Job]
) -> None:
    first, second = trials
    end(world, second, fall=1.0)
    train(world, parent, STEPS, 2.0, fall=0.5)
    assert tuning_advance(world.now) == set()
    train(world, parent, (PATIENCE - 1) * STEPS, 1.5)
    assert tuning_advance(world.now) == set(), "a start may take longer than so many steps"
    world.now_s += PATIENCE_S
    assert first.pk in tuning_advance(world.now)
    assert outcomes(parent) == [(None, "slower"), (first.pk, "unfinished"), (second.pk, "kept")]
    ended = fresh(first)
    assert (ended.status, ended.status_code) == ("cancelled", "trial_over")
    assert "waits for its trials no longer" in ended.status_reason


def test_a_state_behind_the_jobs_own_is_not_adopted_and_the_next_trials_are_longer(
    world: World, parent: Job, trials: list[Job], ada: User, client_of: Clients
) -> None:
    """The trial falls fastest in its 20 steps, but the job has done 200 when it is done."""
    first, second = trials
    train(world, parent, STEPS, 2.0, fall=0.1)
    train(world, parent, 9 * STEPS, 1.9, fall=1.4)
    end(world, first, fall=1.0)
    end(world, second, fall=0.05)
    tuning_advance(world.now)
    assert outcomes(parent) == [(None, "kept"), (first.pk, "overtaken"), (second.pk, "slower")]
    assert fresh(parent).adoption == {}
    text = "keeps its values, as it reached a lower loss than the fastest trial in the meantime"
    assert text in event(parent, "round_ended").message
    read = client_of(ada).get(f"{URL}{parent.pk}/").json()["tuned"]["trials"]
    assert "the job reached a lower one" in read[1]["reason"]
    coming = TuningRound.objects.filter(job=parent, ended_at=None)
    world.until(lambda: bool(tuning_advance(world.now) and coming.exists()))
    assert coming.get().num_steps == 2 * STEPS
    save(world, parent)
    tuning_advance(world.now)
    tried = [one.values for one in Trial.objects.filter(job=parent, search=2).order_by("number")]
    overtaken = Trial.objects.get(job=parent, search=1, child=first)
    assert tried[1] == overtaken.values, "it is not tried again, with more steps"
    assert tried[2] == proposal(parent.tuning_spec, 3, 4)  # type: ignore[arg-type]


def test_a_trial_with_a_loss_that_is_not_finite_is_not_kept(
    world: World, parent: Job, trials: list[Job]
) -> None:
    first, second = trials
    played, trainer = world.leader_of(first)
    played.say(trainer, ReportKind.FAILED, code="nonfinite_loss", message="nan", step=12)
    world.tell(played)
    end(world, second, fall=-0.1)
    train(world, parent, STEPS, 2.0, fall=-0.5)
    tuning_advance(world.now)
    assert outcomes(parent) == [(None, "unstable"), (first.pk, "diverged"), (second.pk, "unstable")]


@pytest.mark.parametrize("how", ["cancelled", "paused", "finished"])
def test_a_job_takes_its_trials_with_it(
    how: str, world: World, parent: Job, trials: list[Job]
) -> None:
    if how == "cancelled":
        job_cancel(parent.pk, world.now, actor="user:ada")
    elif how == "paused":
        job_pause(parent.pk, world.now, actor="user:ada")
    else:
        world.finish(parent)
    assert tuning_advance(world.now) == {parent.pk, *(one.pk for one in trials)}
    assert {fresh(one).status for one in trials} == {"cancelled"}
    assert not TuningRound.objects.filter(job=parent, ended_at=None).exists()
    assert {one for _, one in outcomes(parent)} == {"unfinished"}
    world.settle(4)
    tuning_advance(world.now)
    assert [files_of(one) for one in trials] == [set(), set()]
    assert tuning_advance(world.now) == set()


@pytest.mark.parametrize(
    "course", ["no accelerator is idle", "a job waits", "few steps left", "no trials left"]
)
def test_no_round_begins(
    course: str, world: World, parent: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    if course == "no accelerator is idle":
        job_make(max_accelerators=2)
        world.settle(4)
    elif course == "a job waits":
        job_make(max_accelerators=2, min_accelerators=2)
    elif course == "few steps left":
        Job.objects.filter(id=parent.pk).update(stop_limit=10 + 2 * STEPS - 1)
    else:
        Job.objects.filter(id=parent.pk).update(tuning=TUNING | {"max_trials": 2})
        for _ in range(2):
            job_make(trial_of=parent, status=JobStatus.CANCELLED)
    tuning_advance(world.now)
    assert not TuningRound.objects.exists()
    if course == "few steps left":
        monkeypatch.setattr(tuning_rounds, "_AT_ONCE", 1)
        other = job_make(status=JobStatus.RUNNING, step=10, stop_limit=1000, tuning=TUNING)
        assert any(tuning_advance(world.now) == {other.pk} for _ in range(99)), "it has no turn"


@pytest.mark.parametrize("why", ["kind", "sweep"])
def test_jobs_that_cannot_take_what_is_idle_keep_no_round_from_it(
    why: str, world: World, parent: Job, bob: User
) -> None:
    if why == "kind":
        Accelerator.objects.filter(pk__in=parent.allocations.values("accelerator")).update(
            kind="fast"
        )
        for _ in range(3):
            job_make(bob, accepted_kinds=["fast"])
    else:
        sweep = Sweep.objects.create(
            owner=bob, name="s", space={}, seed=0, max_running=1, submitted_at=world.now
        )
        first, *_ = [job_make(bob, sweep=sweep, max_accelerators=1) for _ in range(5)]
        assert tuning_advance(world.now) == {parent.pk}, "one of the sweep's jobs could start"
        assert TuningRound.objects.get().num_trials == 1
        TuningRound.objects.all().delete()
        Job.objects.filter(pk=first.pk).update(status=JobStatus.RUNNING)
    assert tuning_advance(world.now) == {parent.pk}
    assert TuningRound.objects.get().num_trials == 2


def test_trials_count_in_no_limit_and_tell_no_channel(
    world: World, parent: Job, ada: User, settings: Any
) -> None:
    settings.LIVE_JOBS_LIMIT = 2
    children = begin(world, parent)
    assert len(children) == 2
    live_jobs_check(ada)
    with pytest.raises(ConflictError):
        live_jobs_check(ada, 2)
    assert not NotificationDelivery.objects.exists()


def test_trials_that_find_no_room_leave_no_files(world: World, parent: Job, settings: Any) -> None:
    tuning_advance(world.now)
    save(world, parent)
    before = sorted(Path(settings.MEDIA_ROOT).rglob("*.*"))
    room_bytes = parent.code_bytes + parent.artifacts.get().size_bytes
    settings.STORAGE_LIMIT_BYTES = 5 * room_bytes // 2  # of itself and one trial
    tuning_advance(world.now)
    assert TuningRound.objects.get().outcome == "storage"
    assert sorted(Path(settings.MEDIA_ROOT).rglob("*.*")) == before


def test_a_state_that_no_node_fetches_is_given_up(
    world: World, parent: Job, trials: list[Job]
) -> None:
    _, second = trials
    end(world, second, fall=1.0)
    train(world, parent, PATIENCE * STEPS, 2.0, fall=0.1)
    world.now_s += PATIENCE_S
    tuning_advance(world.now)
    world.now_s += FETCH_LIMIT_S
    assert parent.pk not in tuning_advance(world.now)
    world.now_s += 1.0
    assert parent.pk in tuning_advance(world.now)
    assert (fresh(parent).adoption, fresh(parent).status) == ({}, "running")
    assert "could not be moved" in event(parent, "adoption_failed").message


def test_an_adoption_that_is_overtaken_is_ordered_again_and_given_up_in_the_end(
    world: World, parent: Job, trials: list[Job]
) -> None:
    _, second = trials
    end(world, second, fall=1.0)
    train(world, parent, PATIENCE * STEPS, 2.0, fall=0.1)
    world.now_s += PATIENCE_S
    tuning_advance(world.now)
    for tries in range(1, TRIES_LIMIT + 1):
        world.until(lambda: parent.pk in tuning_advance(world.now), rounds=4)
        assert fresh(parent).adoption["tries"] == tries
        world.kill(parent, *(trainer.slot for _, trainer in world.trainers_of(parent)))
        world.until(lambda: fresh(parent).status == JobStatus.STARTING)
        world.settle(4)
        train(world, parent, 2, 1.0)
    assert fresh(parent).adopted == 0
    assert parent.pk in tuning_advance(world.now)
    assert fresh(parent).adoption == {}
    assert "could not be moved" in event(parent, "adoption_failed").message
    assert "adopted.npz" not in files_of(parent)
