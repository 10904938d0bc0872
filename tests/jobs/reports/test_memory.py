"""From a measured slice to a number of virtual nodes: what people are told, and when."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from controlplane.core.estimates.memory import TRAINER_BYTES
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, Node
from jobs.selectors.estimates.memory import memory_shortage, out_of_memory_text
from tests.jobs.losses import event, fresh, newest, slots, training
from tests.jobs.world import World
from tests.support.builders import job_make, node_make, submission_values

URL = "/api/v1/jobs/"
EXAMPLE_BYTES = 10_000_000
#: Every accelerator has 2**30 bytes, of which 0.9 may be used.
FREE_BYTES = 0.9 * 2**30 - TRAINER_BYTES

pytestmark = pytest.mark.django_db


def facts(num_fitting: int) -> dict[str, Any]:
    """Give facts by which slices of so many examples fit, and not of one more."""
    memory = {
        "process_bytes": round(FREE_BYTES - (num_fitting + 0.5) * EXAMPLE_BYTES) - 1000,
        "base_bytes": 1000,
        "bytes_per_example": EXAMPLE_BYTES,
        "measured_slices": [1, 2],
    }
    return {"num_examples": 64, "memory": memory}


class MeasuringWorld(World):
    """Its validations find that slices of 3 examples fit."""

    facts = facts(3)


@pytest.fixture
def client(ada: User, client_of: Any) -> APIClient:
    made: APIClient = client_of(ada)
    return made


def test_a_job_that_fits_nowhere_is_told_so_before_it_starts(client: APIClient) -> None:
    """32 examples in slices of at most 3: 11 virtual nodes, not 4 of 8 examples each."""
    world = MeasuringWorld()
    client.post(URL, submission_values(), format="json")
    job = Job.objects.get()
    world.until(lambda: Job.objects.filter(id=job.pk).exclude(status="validating").exists())
    told = job.events.get(kind="memory_short").message
    assert "With 4 virtual nodes it runs out of memory on every kind of accelerator here" in told
    assert "11 virtual nodes would fit" in told


def test_enough_virtual_nodes_are_no_news(client: APIClient) -> None:
    world = MeasuringWorld()
    client.post(URL, submission_values(num_virtual_nodes=11), format="json")
    job = Job.objects.get()
    world.until(lambda: Job.objects.filter(id=job.pk).exclude(status="validating").exists())
    assert job.events.filter(kind="validated").exists()
    assert not job.events.filter(kind="memory_short").exists()


def test_a_dry_run_knows_what_the_same_code_took_before(client: APIClient, ada: User) -> None:
    node_make()
    dry = f"{URL}?dry_run=1"
    assert client.post(dry, submission_values(), format="json").data["memory"] is None
    job_make(ada, status=JobStatus.FINISHED, facts=facts(3), settings={"size": 1})
    assert client.post(dry, submission_values(), format="json").data["memory"] is None
    values = submission_values(settings={"size": 1})
    memory = client.post(dry, values, format="json").data["memory"]
    assert memory["bytes_per_example"] == EXAMPLE_BYTES
    assert memory["num_virtual_nodes"] == 11
    (kind,) = memory["kinds"]
    assert (kind["kind"], kind["num_virtual_nodes"], kind["is_enough"]) == ("cpu", 11, False)


def test_kinds_that_the_job_refuses_do_not_count() -> None:
    node_make()
    job = job_make(accepted_kinds=["t4"])
    assert memory_shortage(job, facts(3)) == ""
    assert "Not even one example fits cpu" in memory_shortage(job_make(), facts(0))
    assert memory_shortage(job_make(), {"num_examples": 5}) == ""


def tuned_facts() -> dict[str, Any]:
    """Give facts by which slices of 8 fit beside 3 more states, and not beside 4."""
    return facts(8 + 7) | {"state_bytes": 2 * EXAMPLE_BYTES}


def test_a_tuned_job_is_told_of_the_states_that_do_not_fit(client: APIClient, ada: User) -> None:
    """5 states of 20 MB leave room for slices of 5: 7 virtual nodes, or 2 branches."""
    node_make()
    tuning = {"space": {"weight_decay": {"low": 0.0, "high": 0.1, "log": False}}}
    assert memory_shortage(job_make(ada), tuned_facts()) == ""
    told = memory_shortage(job_make(ada, tuning=tuning), tuned_facts())
    assert "With 4 virtual nodes it runs out of memory" in told
    assert "5 more states of 20.0 MB (100.0 MB) included" in told
    assert told.endswith("7 virtual nodes would fit. It would fit with tuning.max_branches = 2.")
    two = job_make(ada, tuning=tuning | {"max_branches": 2}, facts=tuned_facts())
    assert memory_shortage(two, two.facts) == ""
    memory = client.post(f"{URL}?dry_run=1", submission_values(tuning=tuning), format="json").data[
        "memory"
    ]
    assert (memory["kept_states"], memory["kept_bytes"]) == (5, 100_000_000)
    assert memory["num_virtual_nodes"] == 7


def test_a_tuned_job_out_of_memory_is_told_of_its_branches() -> None:
    node_make()
    tuning = {"space": {"weight_decay": {"low": 0.0, "high": 0.1, "log": False}}}
    job = job_make(tuning=tuning, facts=tuned_facts())
    assert "tuning.max_branches = 2 would fit" in out_of_memory_text(job, "cpu")


@pytest.mark.parametrize(
    ("num_fitting", "num_virtual_nodes", "expected"),
    [
        (3, 4, "num_virtual_nodes = 11 would fit"),
        (20, 4, "num_virtual_nodes = 8 instead of 4"),  # measured too low: it did not fit
        (None, 20, "num_virtual_nodes = 32 instead of 20"),  # no more than there are examples
        (3, 32, "a single example already"),
    ],
)
def test_out_of_memory_names_a_number_that_would_fit(
    num_fitting: int | None, num_virtual_nodes: int, expected: str
) -> None:
    node_make()
    known = {} if num_fitting is None else facts(num_fitting)
    job = job_make(num_virtual_nodes=num_virtual_nodes, facts=known)
    assert expected in out_of_memory_text(job, "cpu")


def test_a_trainer_without_memory_ends_the_job_with_a_number(client: APIClient, ada: User) -> None:
    world = World(num_nodes=1)
    job = job_make(ada, num_virtual_nodes=11, facts=facts(3))
    world.settle(4)
    played, trainer = world.leader_of(job)
    played.say(trainer, ReportKind.FAILED, code="out_of_memory", message="no room for a tensor")
    world.tell(played)
    found = client.get(f"{URL}{job.pk}/").data
    assert (found["status"], found["error_field"]) == ("failed", "num_virtual_nodes")
    assert "no room for a tensor. Submit it with num_virtual_nodes = 22" in found["status_reason"]


def memory_kill(world: World, job: Job, *killed: int) -> None:
    """Let the kernel end trainers because memory ran out, and their agents tell of each."""
    message = "the kernel ended the trainer because the node's memory ran out"
    for played, trainer in world.trainers_of(job):
        if trainer.slot in killed:
            played.say(trainer, ReportKind.FAILED, code="memory_kill", message=message)
            played.say(trainer, ReportKind.EXITED, exit_code=-9)
            del played.trainers[job.pk, trainer.slot]
            world.tell(played)


class TestKilledByTheKernel:
    def test_the_others_go_on_and_the_event_says_what_would_fit(self) -> None:
        world, job = training(num_virtual_nodes=4)
        memory_kill(world, job, slots(newest(job))[-1])
        assert (fresh(job).status, fresh(job).restarts) == ("running", 0)
        told = event(job, "memory_kill")
        assert told.message.startswith("Slot 12 on played1: the kernel ended the trainer because")
        assert "if it happens again before a new step is done, it ends" in told.message
        assert "submit it with num_virtual_nodes = 8 instead of 4" in told.message
        assert (told.actor, told.data["slot"], told.data["step"]) == ("node:played1", 12, 10)
        world.settle(4)
        assert newest(job).phase == "active"

    def test_a_job_that_moves_on_in_between_is_never_ended_for_it(self) -> None:
        world, job = training()
        for _ in range(4):
            memory_kill(world, job, slots(newest(job))[-1])
            world.settle(4)
            world.train(job)
        assert fresh(job).status == "running"

    def test_the_second_time_without_a_step_is_the_end(self) -> None:
        world, job = training()
        for _ in range(2):
            assert fresh(job).status == "running"
            memory_kill(world, job, slots(newest(job))[-1])
            world.settle(4)
        job = fresh(job)
        assert (job.status, job.status_code) == ("failed", "out_of_memory")
        assert job.error_field == "num_virtual_nodes"
        assert "memory ran out, twice before the job got past step 10. Submit" in job.status_reason

    def test_trainers_that_are_ended_together_are_one_time(self) -> None:
        world, job = training()
        memory_kill(world, job, *slots(newest(job))[1:])
        assert job.events.filter(kind="memory_kill").count() == 3
        assert fresh(job).status == "running"
        world.follow_all()
        memory_kill(world, job, *slots(newest(job)))
        assert fresh(job).status == "failed"

    def test_a_lone_job_that_is_too_large_ends_at_its_second_start(self) -> None:
        world = World(num_nodes=1, num_accelerators=1)
        job = job_make(max_accelerators=1)
        for status in ("pending", "failed"):
            world.until(lambda: bool(world.trainers_of(job)), rounds=200)
            memory_kill(world, job, *(trainer.slot for _, trainer in world.trainers_of(job)))
            assert fresh(job).status == status
        assert fresh(job).status_code == "out_of_memory"
        assert Node.objects.get().quarantined_until is None

    def test_nodes_are_not_set_aside_for_it(self, settings: Any) -> None:
        settings.QUARANTINE_DEATHS = 1
        world = World(num_nodes=1)
        for job in [job_make(max_accelerators=1), job_make(max_accelerators=1)]:
            world.settle(4)
            memory_kill(world, job, *slots(newest(job)))
            assert fresh(job).status == "pending"
        assert Node.objects.get().quarantined_until is None

    def test_a_joiner_costs_the_resize_and_is_not_counted(self) -> None:
        world, job = training(num_nodes=1, max_accelerators=1)
        Job.objects.filter(id=job.pk).update(max_accelerators=2)
        for _ in range(3):
            world.cycle()
            assert newest(job).phase == "preparing"
            world.follow(world.nodes[0], boots=False)
            (joiner,) = {*slots(newest(job))} - {world.leader_of(job)[1].slot}
            memory_kill(world, job, joiner)
            assert (fresh(job).status, newest(job).phase) == ("running", "aborted")
            assert not event(job, "memory_kill").data["is_counted"]
            world.now_s += 1000
