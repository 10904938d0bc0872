"""Commands about nodes, users, projects, templates and replays, on a live site."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from virtualflow.cli.common import ExitCode
from virtualflow.credentials import TOKEN_VARIABLE

from jobs.models import Node, Project, ProjectMembership, Replay, ReplayStatus
from tests.client.conftest import Shell, Site, nodes_now
from tests.support.builders import job_make, node_make
from tests.support.rows import allocation_make


def test_nodes_and_drain(site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_now()
    rows = [line.split("\t") for line in logged_in("nodes").out.splitlines()]
    assert [row[:3] for row in rows[1:]] == [[f"played{i}", "online", "2 cpu"] for i in range(2)]
    assert logged_in("drain", "played0").code == ExitCode.REFUSED
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    ended = logged_in("drain", "nowhere")
    assert (ended.code, "played0, played1" in ended.err) == (ExitCode.USAGE, True)
    told = json.loads(logged_in("cordon", "played0", "--reason", "disk", "--json").out)
    assert (told["is_cordoned"], told["is_draining"]) == (True, False)
    assert "its jobs move away" in logged_in("drain", "played0").out
    assert Node.objects.get(name="played0").is_draining
    assert "takes work again" in logged_in("uncordon", "played0").out
    first, second = Node.objects.order_by("name")
    assert not first.is_cordoned
    Node.objects.filter(pk=first.pk).update(name=str(second.pk))
    logged_in("cordon", second.pk)
    assert Node.objects.get(is_cordoned=True) == first  # a name goes before a number


def test_maintenance(site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_now()
    start = datetime.now(UTC) + timedelta(hours=2)
    times = ("--starts", start.isoformat(), "--ends", (start + timedelta(hours=1)).isoformat())
    plan = ("nodes", "window", "plan")
    assert len(logged_in("nodes", "window", "ls").out.splitlines()) == 1
    assert logged_in(*plan, "played0", *times, "--reason", "disk").code == ExitCode.REFUSED
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    assert logged_in(*plan, "played0", *times).code == ExitCode.USAGE
    preview = json.loads(logged_in(*plan, "played0", "--dry-run", "--json").out)
    assert preview["change"] == "maintenance"
    ended = logged_in(*plan, "played0", "played1", *times, "--reason", "disk", "--json")
    first, second = json.loads(ended.out)
    assert [first["node_name"], second["node_name"]] == ["played0", "played1"]
    ended = logged_in(*plan, "played0", *times, "--reason", "again")
    assert (ended.code, "nodes: played0 has maintenance" in ended.err) == (ExitCode.REFUSED, True)
    assert "from " in logged_in("nodes").out.splitlines()[1]
    assert "cancelled" in logged_in("nodes", "window", "cancel", first["id"]).out
    (left,) = json.loads(logged_in("nodes", "window", "ls", "--json").out)
    assert left == second


def test_users(site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged_in("users").code == ExitCode.REFUSED
    assert logged_in("users", "--factor", "2").code == ExitCode.USAGE
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    rows = [line.split("\t") for line in logged_in("users").out.splitlines()]
    assert [row[0] for row in rows] == ["user", "admin", "ada"]
    options = ("--factor", "2", "--ceiling", "300", "--storage-gib", "1.5", "--inactive")
    row = logged_in("users", "ada", *options).out.splitlines()[1].split("\t")
    assert row[:8] == ["ada", "no", "no", "300", "normal", "2", "0 of 1000", "0.00 of 1.5"]
    changed = json.loads(logged_in("users", "ada", "--reset", "--active", "--json").out)
    assert (changed["share_factor"], changed["is_active"], changed["chosen"]) == (1.0, True, [])
    ended = logged_in("users", "ada", "--factor", "11")
    assert (ended.code, "share_factor: " in ended.err) == (ExitCode.REFUSED, True)


def test_projects_and_usage(site: Site, logged_in: Shell) -> None:
    now = timezone.now()
    vision = Project.objects.create(
        name="vision", guaranteed=2, limit_by_kind={"t4": 3}, created_at=now
    )
    assert logged_in("projects", "vision").code == ExitCode.USAGE
    ProjectMembership.objects.create(project=vision, user=site.ada, role="operator", since=now)
    rows = [line.split("\t") for line in logged_in("projects").out.splitlines()]
    assert rows[1] == ["vision", "0", "2", "none, of t4 3", "0", "0", "0", "operator"]
    rows = [line.split("\t") for line in logged_in("projects", "vision").out.splitlines()]
    assert ["t4", "0", "0", "3", "0"] in rows
    assert ["ada", "operator"] in [row[:2] for row in rows]
    ended = logged_in("projects", "speech")
    assert (ended.code, "use vision" in ended.err) == (ExitCode.USAGE, True)
    ended = logged_in("submit", "--template", "tabular", "--project", "vision", "--json")
    assert json.loads(ended.out)["project"] == "vision"
    listed = json.loads(logged_in("ls", "--project", "vision", "--json").out)
    assert [job["project"] for job in listed] == ["vision"]
    assert json.loads(logged_in("usage", "--by", "user", "--json").out)["rows"] == []
    accelerator = node_make()[0].accelerators.all()[0]
    allocation_make(job_make(site.ada), accelerator, granted_at=now - timedelta(hours=1))
    lines = logged_in("usage", "--by", "user", "--csv").out.splitlines()
    assert lines[0] == "user,accelerator hours,cpu hours,idle hours,paused hours,cost"
    assert re.fullmatch(r"ada,(1\.0\d*),\1,.*", lines[1])
    assert lines[2] == lines[1].replace("ada", "total")


def test_templates(logged_in: Shell) -> None:
    assert "tabular" in logged_in("templates").out
    assert json.loads(logged_in("templates", "--json").out)[0]["name"]


FIGURES = {"mean_jct_s": 1234.5, "utilisation": 0.5, "resizes_per_job": 1.5}


@pytest.mark.parametrize("status", [ReplayStatus.DONE, ReplayStatus.FAILED])
def test_simulate(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, status: ReplayStatus
) -> None:
    nodes_now()
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    result = {"recorded": FIGURES, "as_is": FIGURES, "changed": {}, "as_is_policy": "fifo"}

    def answer() -> None:
        Replay.objects.update(status=status, result=result, error="It is stuck.")

    monkeypatch.setattr("jobs.services.cluster.replays.nudges.replay_enqueue", answer)
    options = ("--accelerators", "cpu=8", "--resize-cost", "2.5", "--hours", "2")
    ended = logged_in("simulate", "priority", *options)
    replay = Replay.objects.get()
    assert (replay.accelerators, replay.resize_cost_s) == ({"cpu": 8}, 2.5)
    if status == ReplayStatus.DONE:
        rows = [line.split("\t") for line in ended.out.splitlines()]
        title = "with priority, resize cost 2.5 s"
        assert rows[0][1:] == ["recorded", "replayed as it was (fifo)", title]
        assert rows[1] == ["mean completion time", "1,234 s", "1,234 s", "\N{EN DASH}"]
    else:
        assert (ended.code, "It is stuck." in ended.err) == (ExitCode.JOB_FAILED, True)


def test_simulate_scenarios_side_by_side(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three over one history, as a table and as JSON; one of them fails the second time."""
    nodes_now()
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))

    def answer() -> None:
        for replay in Replay.objects.filter(result={}):
            changed = {**FIGURES, "mean_jct_s": 1000.0 * replay.pk}
            replay.result = {"recorded": FIGURES, "as_is": FIGURES, "changed": changed,
                             "num_jobs": 3, "as_is_policy": "fifo",
                             "as_is_accelerators": {"cpu": 4}}  # fmt: skip
            replay.status = ReplayStatus.DONE
            replay.save()

    monkeypatch.setattr("jobs.services.cluster.replays.nudges.replay_enqueue", answer)
    sia = "sia,cpu=8,resize-cost=30"
    command = ("simulate", "priority", "--scenario", sia, "--scenario", "fifo")
    ended = logged_in(*command)
    assert ended.code == 0, ended.err
    rows = [line.split("\t") for line in ended.out.splitlines()]
    told = ["recorded", "replayed as it was (fifo)"]
    assert rows[0][1:4] == [*told, "with priority"]
    assert [row.policy for row in Replay.objects.order_by("pk")] == ["priority", "sia", "fifo"]
    assert "with sia, 8 cpu, resize cost 30 s" in rows[0]
    means = [f"{1000 * row.pk:,} s" for row in Replay.objects.order_by("pk")]
    assert rows[1] == ["Mean completion time", "1,234 s", "1,234 s", *means]
    found = json.loads(logged_in(*command, "--json").out)
    assert [one["resize_cost_s"] for one in found["scenarios"]] == [None, 30.0, None]
    assert found["rows"][0]["name"] == "mean_jct_s"
    monkeypatch.setattr(
        "jobs.services.cluster.replays.nudges.replay_enqueue",
        lambda: Replay.objects.filter(result={}).update(
            status=ReplayStatus.FAILED, error="It is stuck."
        ),
    )
    ended = logged_in(*command)
    assert (ended.code, ended.err.count("It is stuck.")) == (ExitCode.JOB_FAILED, 3)
    ended = logged_in(*command, "--scenario", "fifo", "--scenario", "sia")
    assert (ended.code, "1 to 4 scenarios" in ended.err) == (ExitCode.REFUSED, True)


@pytest.mark.parametrize("size", ["cpu", "cpu=", "=3", "cpu=-1", "cpu=x", "cpu=1e9"])
def test_a_wrong_size_of_a_cluster(logged_in: Shell, size: str) -> None:
    for option, text in (("--accelerators", size), ("--scenario", f"fifo,{size}")):
        ended = logged_in("simulate", "fifo", option, text)
        assert (ended.code, "KIND=NUMBER" in ended.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("cost", "code"),
    [
        ("-1", ExitCode.REFUSED), ("86401", ExitCode.REFUSED),
        ("nan", ExitCode.USAGE), ("inf", ExitCode.USAGE),
    ],
)  # fmt: skip
def test_a_wrong_resize_cost(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, cost: str, code: ExitCode
) -> None:
    nodes_now()
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    alone = logged_in("simulate", "fifo", f"--resize-cost={cost}")
    beside = logged_in("simulate", "fifo", "--scenario", f"sia,resize-cost={cost}")
    for ended, field in ((alone, "resize_cost_s"), (beside, "scenarios.1.resize_cost_s")):
        assert (ended.code, f"{field}: Give" in ended.err) == (code, True), ended.err
    assert not Replay.objects.exists()


@pytest.mark.parametrize("part", ["resize-cost=", "resize-cost=much"])
def test_a_resize_cost_that_is_no_number(logged_in: Shell, part: str) -> None:
    ended = logged_in("simulate", "fifo", "--scenario", f"fifo,{part}")
    assert (ended.code, "such as resize-cost=30" in ended.err) == (ExitCode.USAGE, True)
