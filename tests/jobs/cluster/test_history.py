"""The past as the simulator takes it, and questions about it answered from end to end."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.core.values import types
from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.projects import ProjectQuota
from controlplane.simulator.engine.simulate import simulate
from controlplane.simulator.workloads.history import (
    history_cluster,
    history_from_dict,
    history_to_dict,
    history_workload,
)
from jobs.models import Accelerator, Event, Job, Node, Project, Replay, Sweep
from jobs.selectors import history as selector
from jobs.selectors.history import history_read
from jobs.selectors.projects import accelerators_by_kind
from jobs.services.cluster import replay_run
from jobs.services.cluster.replays import Scenario, replay_next, replays_ask
from jobs.services.lifecycle.events import event_add
from jobs.services.scheduling.policy import cluster_setting, policy_choose
from tests.jobs.timed_world import TRUTH, TimedWorld, started, timed_job
from tests.support.builders import at, job_make
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db


def finished_job(world: TimedWorld, **changes: Any) -> Job:
    """Let a job do 100 steps of 64 examples."""
    job = timed_job(**changes)
    valid_at = job.submitted_at + datetime.timedelta(seconds=0.25)
    event_add("validated", "Code validated", now=valid_at, job=job)
    started(world, job)
    for _ in range(4):
        world.now_s += 5.0  # models are fitted again
        world.report(job, num_steps=25)
    world.finish(job)
    job.refresh_from_db()
    assert job.status == JobStatus.FINISHED
    return job


@setup_once
def finished(num_accelerators: int = 1) -> tuple[TimedWorld, Job]:
    """Let a job do all its work on one machine."""
    world = TimedWorld(1, num_accelerators)
    return world, finished_job(world, max_accelerators=num_accelerators)


def whole(world: TimedWorld) -> tuple[datetime.datetime, datetime.datetime]:
    return at(-3600.0), world.now


def test_a_finished_job_has_the_work_that_it_did_and_its_measured_speed() -> None:
    world, job = finished(2)
    history = history_read(*whole(world))
    (row,) = history.jobs
    assert (row.id, row.work, row.batch_size, row.max_accelerators) == (job.pk, 100 * 64, 64, 2)
    assert job.ended_at is not None
    validated_at = job.events.get(kind="validated").at
    assert (row.submitted_at, row.ended_at) == (validated_at.timestamp(), job.ended_at.timestamp())
    step_s = float(TRUTH.step_s(2, 1, 8.0, 4))
    assert row.performance.goodput("cpu", 2, 1) == pytest.approx(64 / step_s, rel=0.02)
    assert (history.nodes, history.accelerators) == ((("cpu", 2),), {"cpu": 2})
    assert history.costs.start_s >= 0.0


@pytest.mark.database
def test_what_cannot_be_replayed_is_counted() -> None:
    world, _ = finished()
    endless = timed_job(stop_kind="metric", stop_metric="loss", stop_target=0.1)
    started(world, endless)
    world.train_on(endless, 10)
    job_make(stop_kind="steps", stop_limit=10, code_sha256="f" * 64)  # waits, of new code
    history = history_read(*whole(world))
    assert [why.split()[0] for why in sorted(history.left_out)] == ["in", "never"]
    assert sum(history.left_out.values()) == 2
    assert len(history.jobs) == 1


def test_a_job_that_still_trains_has_its_whole_work() -> None:
    world = TimedWorld(1, 1)
    job = timed_job(stop_limit=1000)
    started(world, job)
    world.train_on(job, 12)
    (row,) = history_read(*whole(world)).jobs
    assert (row.work, row.ended_at) == (pytest.approx(1000 * 64), None)
    Job.objects.update(fork={"step": 4})  # another job did the first four
    (row,) = history_read(*whole(world)).jobs
    assert row.work == pytest.approx(996 * 64)


@pytest.mark.database
def test_only_the_newest_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    world, old = finished()
    new = finished_job(world)
    monkeypatch.setattr(selector, "MOST_JOBS", 1)
    history = history_read(*whole(world))
    assert [row.id for row in history.jobs] == [new.pk]
    assert old.pk != new.pk
    assert list(history.left_out.values()) == [1]


def test_queries_do_not_grow_with_the_jobs() -> None:
    world, _ = finished()

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            history_read(*whole(world))
        return len(queries)

    one = count()
    for _ in range(2):
        finished_job(world)
    assert count() == one


def test_the_policy_is_the_one_that_was_in_force_longest() -> None:
    cluster_setting()
    policy_choose("fifo", at(100.0), actor="user:admin")
    policy_choose("priority", at(400.0), actor="user:admin")
    assert Event.objects.filter(kind="policy").count() == 2
    for end_s, name in ((150.0, settings.DEFAULT_POLICY), (390.0, "fifo"), (900.0, "priority")):
        assert history_read(at(0.0), at(end_s)).policy == name
    job_make(submitted_at=at(90.0))  # what was in force before the first job counts for nothing
    assert history_read(at(0.0), at(150.0)).policy == "fifo"


def test_a_history_survives_its_file() -> None:
    world, job = finished(2)
    sweep = Sweep.objects.create(
        owner=job.owner, name="s", space={}, max_running=3, submitted_at=world.now
    )
    Job.objects.update(tier="urgent", sweep=sweep)
    history = history_read(*whole(world))
    values = json.loads(json.dumps(history_to_dict(history)))
    again = history_from_dict(values, "file")
    assert history_to_dict(again) == values
    assert again.jobs[0].tier == "urgent"
    one = history_cluster(again, {"cpu": 1})
    ended = simulate(history_workload(again), one, "fifo").jobs
    assert ended[0].num_resizes == 0, "a maximum of two does not keep it from starting on one"
    assert again.jobs[0].sweep == sweep.pk
    assert history_workload(again).sweeps == {sweep.pk: types.Sweep(3)}
    added = ("tier", "project", "sweep")
    older = [
        {name: value for name, value in row.items() if name not in added} for row in values["jobs"]
    ]
    assert history_from_dict({**values, "jobs": older}, "file").jobs[0].tier == "normal"
    for count in (1, 2):
        assert again.jobs[0].performance.goodput("cpu", count, 1) == pytest.approx(
            history.jobs[0].performance.goodput("cpu", count, 1)
        )
    del values["jobs"][0]["work"]
    with pytest.raises(ValueError, match=r"job \d+ of file: 'work' is missing"):
        history_from_dict(values, "file")


def test_jobs_that_may_mix_kinds_are_told() -> None:
    world, _ = finished(2)
    Job.objects.update(allow_mixed_kinds=True)
    history = history_read(*whole(world))
    again = history_from_dict(json.loads(json.dumps(history_to_dict(history))), "file")
    (note,) = history_workload(again).notes
    assert note.startswith("1 job may mix kinds of accelerators: simulated on one kind at a time")


def test_quotas_of_projects_are_recorded_and_replayed() -> None:
    world, job = finished(2)
    (kind,) = accelerators_by_kind()
    project = Project.objects.create(
        name="vision", guaranteed=1, limit=1, limit_by_kind={kind: 1}, created_at=at(0)
    )
    Job.objects.update(project=project)
    history = history_read(*whole(world))
    again = history_from_dict(json.loads(json.dumps(history_to_dict(history))), "file")
    assert again.projects == {project.pk: ProjectQuota(1, 1, limit_by_kind={kind: 1})}
    assert again.jobs[0].project == project.pk

    replays_ask(None, [Scenario("weighted_fair", {})], hours=1, now=world.now)
    replay_next(world.now)
    allocation = Replay.objects.get().result["allocation"]
    assert {count for _, number, count in allocation if number == job.pk} == {0, 1}

    Job.objects.update(min_accelerators=2)
    (why,) = history_read(*whole(world)).left_out
    assert why == "larger than what the project may hold now"

    Job.objects.update(accepted_kinds=["gone"])
    (why,) = history_read(*whole(world)).left_out
    assert why == "larger than what there is now of any accepted kind"

    Accelerator.objects.create(node=Node.objects.get(), index=9, kind="b")
    Job.objects.update(accepted_kinds=[])  # one b is too few
    Project.objects.update(limit=None)
    (why,) = history_read(*whole(world)).left_out
    assert why == "larger than what the project may hold now"


def test_other_sizes_are_built_of_the_machines_that_there_are() -> None:
    world = TimedWorld(3, 2)
    history = history_read(*whole(world))
    for number, sizes in ((6, [2, 2, 2]), (3, [2, 1]), (9, [2, 2, 2, 2, 1])):
        cluster = history_cluster(history, {"cpu": number})
        nodes = [one.node_id for one in cluster.accelerators]
        assert [nodes.count(node) for node in sorted(set(nodes))] == sizes


@pytest.mark.database
def test_a_question_is_answered_from_the_record() -> None:
    """Two jobs one after the other on one accelerator, replayed with two."""
    world, first = finished()
    second = finished_job(world, max_accelerators=1)
    scenarios = [Scenario("fifo", {"cpu": 2}), Scenario("priority", {})]
    replay, other = replays_ask(None, scenarios, hours=1, now=world.now)
    assert replay_next(world.now) == replay.pk
    replay.refresh_from_db()
    other.refresh_from_db()
    for name in ("recorded", "as_is", "as_is_policy", "num_jobs"):
        assert other.result[name] == replay.result[name]
    assert other.result["changed"]["makespan_s"] > replay.result["changed"]["makespan_s"]
    assert (replay.status, replay.error, replay.progress) == ("done", "", 1.0)
    result = replay.result
    assert result["num_jobs"] == 2
    assert [row["id"] for row in result["jobs"]] == [first.pk, second.pk]
    taken_s = [
        (job.ended_at - job.events.get(kind="validated").at).total_seconds()
        for job in (first, second)
    ]
    assert [row["recorded_s"] for row in result["jobs"]] == pytest.approx(taken_s)
    assert result["recorded"]["mean_jct_s"] == pytest.approx(sum(taken_s) / 2)
    # Alone on one accelerator: the start, and 100 steps of 8 slices of 18 ms.
    costs = history_read(*whole(world)).costs
    alone_s = costs.start_s + 100 * 8 * 0.018
    assert result["jobs"][0]["changed_s"] == pytest.approx(alone_s, rel=0.05)
    assert (result["as_is_policy"], result["as_is_accelerators"]) == (
        "weighted_fair", {"cpu": 1},
    )  # fmt: skip
    assert result["tiers"] == []
    ends = {job_id: number for _, job_id, number in result["allocation"]}
    assert ends == {first.pk: 0, second.pk: 0}


def test_scenarios_have_resize_costs_of_their_own() -> None:
    """A job alone on one accelerator pays its start only, in each scenario another one."""
    world, _ = finished()
    costs = [0.0, None, 30.0]
    replays_ask(None, [Scenario("fifo", {}, cost) for cost in costs], hours=1, now=world.now)
    replay_next(world.now)
    results = [replay.result for replay in Replay.objects.order_by("id")]
    free_s, measured_s, flat_s = [result["changed"]["mean_jct_s"] for result in results]
    assert flat_s - free_s == pytest.approx(30.0)
    assert measured_s - free_s == pytest.approx(history_read(*whole(world)).costs.start_s)
    assert [result["as_is"] for result in results] == [results[1]["changed"]] * 3


def test_an_answer_is_given_by_tier() -> None:
    world, first = finished()
    jobs = [first, *(finished_job(world, max_accelerators=1) for _ in range(2))]
    Job.objects.filter(id=jobs[0].pk).update(tier="idle")
    replays_ask(None, [Scenario("fifo", {})], hours=1, now=world.now)
    replay_next(world.now)
    result = Replay.objects.get().result
    assert [(row["tier"], row["num_jobs"]) for row in result["tiers"]] == [
        ("normal", 2), ("idle", 1),
    ]  # fmt: skip
    for name in ("recorded", "as_is", "changed"):
        of_jobs = {
            row["id"]: row["recorded_s" if name == "recorded" else f"{name}_s"]
            for row in result["jobs"]
        }
        normal, idle = (row[name]["mean_jct_s"] for row in result["tiers"])
        assert idle == pytest.approx(of_jobs[jobs[0].pk])
        assert normal == pytest.approx((of_jobs[jobs[1].pk] + of_jobs[jobs[2].pk]) / 2)


def test_nothing_to_replay_is_said() -> None:
    world = TimedWorld(1, 1)
    [replay] = replays_ask(None, [Scenario("fifo", {})], hours=1, now=world.now)
    replay_next(world.now)
    replay.refresh_from_db()
    assert (replay.status, replay.error) == (
        "failed", "No job was submitted in that time; ask about more hours.",
    )  # fmt: skip


def test_a_replay_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = finished()
    monkeypatch.setattr(replay_run, "TIME_LIMIT_S", -1.0)
    replays_ask(None, [Scenario("fifo", {})], hours=1, now=world.now)
    replay_next(world.now)
    replay = Replay.objects.get()
    assert (replay.status, "fewer hours" in replay.error) == ("failed", True)


def test_the_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.json"
    call_command("export_history", str(path), hours=2.0)
    assert json.loads(path.read_text())["format"] == "virtualflow-history-1"
    assert "manage.py simulate --workload" in capsys.readouterr().out
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("export_history", str(tmp_path / "nowhere" / "history.json"))
    with pytest.raises(CommandError, match="--hours"):
        call_command("export_history", str(path), hours=-1.0)
