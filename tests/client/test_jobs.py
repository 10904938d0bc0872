"""Jobs by the Python client, on a live site with played nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from virtualflow import Client, VirtualFlowError
from virtualflow.answers import ENDED

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.models import Allocation, Job
from jobs.selectors.job_filter import JobFilter
from tests.client.conftest import SPEC, Site, nodes_now, played_to_the_end
from tests.jobs.world import World
from tests.support.builders import CODE, at, job_make, node_make, submission_values
from tests.support.rows import allocation_make, file_store, log_add


def test_the_ended_statuses_are_the_sites() -> None:
    assert {status.value for status in ENDED_JOB_STATUSES} == ENDED


def test_a_job_is_watched_from_its_submission_to_its_model(site: Site, client: Client) -> None:
    world = nodes_now()
    job = client.submit(submission_values(name="mine"))
    assert (job["name"], job["owner"], job["status"]) == ("mine", "ada", "validating")
    with site.meanwhile(lambda: played_to_the_end(world, Job.objects.get(id=job["id"]))):
        seen = list(client.watch(job["id"], timeout_s=60))
    assert seen[-1]["status"] == "finished"
    assert seen[-1]["metrics"] == {"loss": 0.25}
    versions = [one["version"] for one in seen]
    assert versions == sorted(set(versions))
    assert client.wait(job["id"])["status"] == "finished"
    assert {event["kind"] for event in client.events(job["id"])} >= {"submitted", "running"}
    submitted = client.events(job["id"], kind=["submitted", "tuned"])
    assert [event["kind"] for event in submitted] == ["submitted"]
    assert [row["num_members"] for row in client.generations(job["id"])]
    assert client.metrics(job["id"])["steps"][-1]["step"] == 30


@pytest.mark.parametrize("with_code_file", [False, True])
def test_fields_override_those_of_a_file(
    client: Client, spec: Path, code: Path, with_code_file: bool
) -> None:
    changes: dict[str, Any] = {"priority": 9, "settings.units": 16, "settings.name": "5"}
    changes |= {"stop.limit": 9, "accepted_kinds": ["cpu", "a100"], "shuffle": False}
    changes |= {"settings.words": ["a", "b"], "settings.none": [], "settings.old": None}
    changes |= {"note": None, "tuning": None, "selection.beta": 3}
    file = {"code": code} if with_code_file else {}
    text = SPEC + "note: of the file\nselection: {method: selective_backprop, history: 64}\n"
    if not with_code_file:
        text += f"code: {CODE.decode()!r}\n".replace("'", '"')
    spec.write_text(text)
    job = client.submit(spec, **file, **changes)
    assert (job["name"], job["priority"], job["stop"]["limit"]) == ("from a file", 9, 9)
    lists = {"words": ["a", "b"], "none": [], "old": None}
    assert job["settings"] == {"units": 16, "name": "5", **lists}
    assert job["note"] == ""
    selection = job["selection"]
    assert [selection[name] for name in ("method", "beta", "history")] == [
        "selective_backprop", 3.0, 64
    ]  # fmt: skip
    assert (job["accepted_kinds"], job["shuffle"]) == (["cpu", "a100"], False)
    assert job["code_sha256"] == hashlib.sha256(CODE).hexdigest()


def test_the_same_key_makes_one_job(client: Client) -> None:
    first = client.submit(submission_values(), idempotency_key="once")
    assert client.submit(submission_values(), idempotency_key="once")["id"] == first["id"]
    with pytest.raises(VirtualFlowError) as caught:
        client.submit(submission_values(name="other"), idempotency_key="once")
    assert (caught.value.status, caught.value.code) == (409, "idempotency_key_reused")


def test_a_refusal_names_every_field(client: Client) -> None:
    with pytest.raises(VirtualFlowError) as caught:
        client.submit(submission_values(num_virtual_nodes=64, seed=-1, bogus=1))
    assert (caught.value.status, caught.value.code) == (400, "invalid")
    assert {*caught.value.fields} == {"seed", "bogus", "num_virtual_nodes"}
    assert "seed: Give a whole number from 0" in str(caught.value)
    assert not Job.objects.exists()


def test_a_dry_run_stores_nothing(client: Client) -> None:
    outlook = client.dry_run(submission_values())
    assert outlook["dry_run"]
    assert outlook["reason"]
    assert not Job.objects.exists()


def test_lists_are_read_page_by_page(site: Site, client: Client) -> None:
    jobs = [job_make(site.ada, name=f"job {i}") for i in range(5)]
    job_make(site.admin)
    assert [job["id"] for job in client.jobs(page_size=2)] == [job.pk for job in jobs[::-1]]
    assert [job["name"] for job in client.jobs(name="job 3", fields=("name",))] == ["job 3"]
    assert list(client.jobs(status=["finished", "active"], owner="ada", template="x")) == []
    assert len([*client.jobs(q=f"#{jobs[0].pk}", submitted_after=at(0).isoformat())]) == 1
    assert {*JobFilter.base_filters} <= {*signature(client.jobs).parameters}
    assert list(client.jobs(idle=True)) == list(client.jobs(trial_of=jobs[0].pk)) == []
    with pytest.raises(VirtualFlowError) as caught:
        list(client.jobs(status=["asleep"]))
    assert {*caught.value.fields} == {"status"}


def test_actions(site: Site, client: Client) -> None:
    job = job_make(site.ada).pk
    assert client.pause(job, "lunch")["status"] == "paused"
    assert client.resume(job)["status"] == "pending"
    before = client.job(job)
    changed = client.reprioritise(job, 50, if_match=f'"{before["revision"]}.{before["version"]}"')
    assert changed["priority"] == 50
    with pytest.raises(VirtualFlowError) as caught:
        client.reprioritise(job, 60, if_match=f'"{before["revision"]}.{before["version"]}"')
    assert caught.value.code == "stale_version"
    assert client.describe(job, tags="one")["tags"] == ["one"]
    assert client.cancel(job, "enough")["status_reason"].endswith("enough")
    with pytest.raises(VirtualFlowError) as caught:
        client.resume(job)
    assert (caught.value.status, caught.value.code) == (409, "wrong_status")


def test_a_watch_that_takes_too_long_leaves_the_job_alone(site: Site, client: Client) -> None:
    job = job_make(site.ada).pk
    with pytest.raises(VirtualFlowError) as caught:
        client.wait(job, timeout_s=0.1)
    assert caught.value.code == "timed_out"
    assert client.job(job)["status"] == "pending"


def test_a_log_is_followed_to_its_end(site: Site) -> None:
    """Its last lines come after its end, while its trainer exits."""
    job = job_make(site.ada, status=JobStatus.RUNNING)
    allocation_make(job, node_make()[0].accelerators.all()[0])
    later: list[Callable[[], object]] = [
        lambda: log_add(job, "two\n"),
        lambda: Job.objects.filter(id=job.pk).update(status="finished", ended_at=at(1)),
        lambda: None,
        lambda: log_add(job, "three\n"),
        lambda: Allocation.objects.update(released_at=at(2)),
    ]

    def sleep(_seconds: float) -> None:
        """Let something happen while the client waits."""
        if later:
            later.pop(0)()

    log_add(job, "one\n")
    with site.client(sleep=sleep) as client:
        assert "".join(client.follow_log(job.pk, slot=0)) == "one\ntwo\nthree\n"
        assert "".join(client.whole_log(job.pk, slot=0)) == "one\ntwo\nthree\n"
        assert client.log(job.pk)["slots"] == [0]


def file_make(job: Job, name: str, content: bytes, digest: str | None = None) -> None:
    file_store(job, name, content)
    if digest:
        job.artifacts.filter(name=name).update(sha256=digest)


def test_files_are_checked_before_they_are_there(
    site: Site, client: Client, tmp_path: Path
) -> None:
    job = job_make(site.ada)
    file_make(job, "model.keras", b"weights" * 50_000)
    file_make(job, "checkpoint.npz", b"state", digest="0" * 64)
    assert client.download(job.pk, "model.keras", tmp_path).read_bytes() == b"weights" * 50_000
    with pytest.raises(VirtualFlowError) as caught:
        client.download(job.pk, "checkpoint.npz", tmp_path)
    assert caught.value.code == "wrong_digest"
    with pytest.raises(VirtualFlowError) as caught:
        client.download(job.pk, "no.such", tmp_path / "new")
    assert caught.value.status == 404
    with pytest.raises(VirtualFlowError) as caught:
        client.download(job.pk, "../up", tmp_path)
    assert {*caught.value.fields} == {"name"}
    assert client.download_code(job.pk, tmp_path / "code").read_bytes() == CODE
    there = {path.name for path in tmp_path.iterdir()} - {"media"}
    assert there == {"model.keras", "code"}


def test_other_peoples_jobs_are_not_there(site: Site, client: Client) -> None:
    with pytest.raises(VirtualFlowError) as caught:
        client.job(job_make(site.admin).pk)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_the_index_says_who_one_is(site: Site, client: Client) -> None:
    index = client.index()
    assert (index["user"], index["is_admin"]) == ("ada", False)


def test_nodes_and_policies_of_admins(site: Site, client: Client) -> None:
    World(num_nodes=3)
    nodes = list(client.nodes())
    assert sorted(node["name"] for node in nodes) == ["played0", "played1", "played2"]
    with pytest.raises(VirtualFlowError) as caught:
        client.cordon(nodes[0]["id"])
    assert caught.value.status == 403
    with site.client(site.admin) as admin:
        number = nodes[0]["id"]
        told = [admin.cordon(number, "disk"), admin.drain(number), admin.uncordon(number)]
    assert [node["status"] for node in told] == ["cordoned", "draining", "online"]
    assert [node["is_cordoned"] for node in told] == [True, True, False]
    assert [node["is_draining"] for node in told] == [False, True, False]
    assert client.policy()["policy"] in client.policy()["policies"]
    assert {"name", "title", "settings"} <= {*client.templates()[0]}


def test_a_search_goes_on_over_its_bounds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.selectors.log_search.SEARCHED_BYTES", 1)
    job = job_make(site.ada)
    for text in ("loss 1\n", "loss", " 2\nloss 3\n"):
        log_add(job, text)
    with site.client(site.ada) as client:
        found = list(client.search_log(job.pk, "LOSS", context=1))
    assert [match["text"] for match in found] == ["loss 1", "loss 2", "loss 3"]
