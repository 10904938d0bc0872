"""Cluster files: nodes of several sizes and kinds, and the speeds of the kinds."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from controlplane.simulator import FREE, NodeGroup, Workload, cluster_build, profiles_read, simulate
from controlplane.simulator.applications.batches import fixed_batch
from controlplane.simulator.cluster_files import ClusterFile, cluster_read
from controlplane.simulator.options import cluster_load, workload_load
from controlplane.simulator.published.synthetic import synthetic_workload, synthetic_write
from tests.simulator.worlds import job, workload

DOCS = Path(__file__).parents[2] / "docs" / "simulator.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> ClusterFile:
    """Read the mixed cluster of Sia as the documents show it."""
    (tmp_path / "rtx2080ti").mkdir()
    block = re.search(r"^    nodes:\n(?:    .*\n)+", DOCS.read_text(), re.MULTILINE)
    assert block is not None
    return cluster_read(write(tmp_path, re.sub("^    ", "", block[0], flags=re.MULTILINE)))


def test_sias_mixed_cluster_is_read(mixed: ClusterFile, tmp_path: Path) -> None:
    cluster = mixed.cluster
    assert cluster.kinds == {"a100": 16, "rtx2080ti": 24, "t4": 24}
    assert cluster.per_node == {"t4": 4, "rtx2080ti": 8, "a100": 8}
    nodes = {one.node_id: one.kind for one in cluster.accelerators}
    assert [nodes[node] for node in range(11)] == ["t4"] * 6 + ["rtx2080ti"] * 3 + ["a100"] * 2
    assert [one.id for one in cluster.accelerators] == list(range(64))
    assert mixed.profiles == {"rtx2080ti": tmp_path / "rtx2080ti"}
    assert mixed.speeds["cifar10"].keys() == {"a100"}
    groups = [NodeGroup("t4", 6, 4), NodeGroup("rtx2080ti", 3, 8), NodeGroup("a100", 2, 8)]
    assert cluster == cluster_build(groups)


def test_a_kind_may_have_nodes_of_several_sizes() -> None:
    """One accelerator and two beside it: 400 examples at 3 a second."""
    cluster = cluster_build([NodeGroup("gpu", 1, 1), NodeGroup("gpu", 1, 2)])
    assert cluster.per_node == {"gpu": 2}
    report = simulate(workload(job("a")), cluster, "weighted_fair", costs=FREE)
    assert report.jobs[0].ended_at == pytest.approx(400.0 / 3.0)
    assert report.jobs[0].fair_s == pytest.approx(400.0 / 3.0)


def test_steps_of_a_kind_come_from_its_own_profiles(tmp_path: Path) -> None:
    """Its steps take twice as long as in the main folder, on every placement."""
    synthetic_write(tmp_path / "main")
    synthetic_write(tmp_path / "own")
    for path in (tmp_path / "own").glob("*/*.csv"):
        _double(path)
    apps = profiles_read(tmp_path / "main", {"speech": {"fast": 2.0}}, {"slow": tmp_path / "own"})
    batch = fixed_batch(apps["speech"].bounds, 64, 4)
    for placement in ((4,), (2, 2), (1,) * 4):
        paces = {kind: apps["speech"].pace(kind, placement, batch, 0) for kind in ("t4", "slow")}
        assert paces["slow"].step_s == pytest.approx(2.0 * paces["t4"].step_s)
        assert paces["slow"].sync_s == pytest.approx(2.0 * paces["t4"].sync_s)


def _double(path: Path) -> None:
    rows = list(csv.DictReader(path.open()))
    for row in rows:
        for name in {"step_time", "sync_time"} & row.keys():
            row[name] = str(2.0 * float(row[name]))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_jobs_run_at_the_speed_of_their_kind(tmp_path: Path) -> None:
    """The same jobs, alone, end sooner where the file says that all are ten times as fast."""
    factors = ", ".join(f"{name}: 10" for name in synthetic_workload(1).applications)
    nodes = "nodes: [{kind: a100, count: 1, accelerators: 4}]\n"
    means = []
    for text in (nodes, nodes + f"kinds: {{a100: {{speeds: {{{factors}}}}}}}"):
        file = cluster_read(write(tmp_path, text))
        jobs = workload_load("synthetic", None, file, {}, num_jobs=2, seed=3)
        means.append(simulate(jobs, file.cluster, "weighted_fair").mean_jct_s)
    assert means[1] < means[0] / 2.0


ROW = "nodes:\n - {kind: t4, count: 6, accelerators: 4}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [", "cluster.yaml is no YAML"),
        (ROW + ROW, r"cluster.yaml is no YAML: 'nodes' is there twice \(line 3\); delete one"),
        (ROW + "kinds: {t4: {speeds: {a: 1, a: 2}}}", "'a' is there twice"),
        (ROW + "kinds: {t4: {speeds: {a: 1}}, t4: {speeds: {a: 2}}}", "'t4' is there twice"),
        (ROW + " - {kind: a, count: 1, count: 2, accelerators: 1}", "'count' is there twice"),
        ("- 1", "cluster.yaml: the file must have the fields kinds, nodes"),
        ("kinds: {}", "'nodes' must be a list with a row for each group"),
        (ROW + "racks: 2", "the file has 'racks'; known are kinds, nodes"),
        (" nodes: [{count: 1, accelerators: 1}]", "row 1 of 'nodes' in .*: 'kind' is missing"),
        (ROW + " - {kind: a, count: two, accelerators: 1}",
         "row 2 of 'nodes' in .*cluster.yaml: 'count' must be a number, not 'two'"),
        (ROW + " - {kind: a, count: 1, accelerators: 0}", "'accelerators' must be at least 1"),
        (ROW + r' - {kind: "a\nb", count: 1, accelerators: 1}', "row 2 .*: a kind needs a name"),
        (ROW + " - {kind: a, count: 1, accelerators: 1, gpus: 1}", "the row has 'gpus'; known are"),
        (ROW + " - {kind: a, count: 99999, accelerators: 99}", "are not between 1 and 100000"),
        (ROW + "kinds: {k80: {speeds: {a: 1}}}", "'kinds' has 'k80'; known are t4"),
        (ROW + "kinds: {t4: {speed: 2}}", "kind t4 has 'speed'; known are profiles, speeds"),
        (ROW + "kinds: {t4: {}}", "kind t4 in .*: give either 'profiles' or 'speeds'"),
        (ROW + "kinds: {t4: {speeds: {a: 0}}}", "kind t4 in .*: 'speeds' must be positive"),
        (ROW + "kinds: {t4: {speeds: {a: .nan}}}", "'a' must be a number, not 'nan'"),
        (ROW + "kinds: {t4: {speeds: [a, 2]}}", "'speeds' must be numbers by application, as"),
        (ROW + "kinds: {t4: {profiles: gone}}", "there is no folder .*gone; name one"),
        (ROW + " - {kind: [a], count: 1, accelerators: 1}", "'kind' must be a single value, not "),
    ],
)  # fmt: skip
def test_mistakes_name_file_field_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--cluster: .*{message}"):
        cluster_read(write(tmp_path, text))


def test_a_kind_may_be_a_number(tmp_path: Path) -> None:
    nodes = "nodes: [{kind: 100, count: 1, accelerators: 1}]\n"
    file = cluster_read(write(tmp_path, nodes + "kinds: {100: {speeds: {imagenet: 2}}}"))
    assert file.cluster.kinds == {"100": 1}
    assert file.speeds == {"imagenet": {"100": 2.0}}


def test_a_missing_file_and_contradicting_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--cluster: cannot read .*none.yaml: No such file"):
        cluster_load(tmp_path / "none.yaml", None, None, None, "synthetic")
    with pytest.raises(ValueError, match="--cluster: the file says all of the nodes; leave out"):
        cluster_load(write(tmp_path, ROW), 3, None, None, "synthetic")


def notes(file: ClusterFile, name: str = "synthetic", profiles: Path | None = None) -> str:
    found: Workload = workload_load(name, profiles, file, {}, num_jobs=40, seed=0)
    return " ".join(found.notes)


def test_speeds_that_are_missing_or_unused_are_told(tmp_path: Path) -> None:
    two = ROW + " - {kind: a100, count: 2, accelerators: 8}\n"
    assert "No speeds on a100 are given of " in notes(cluster_read(write(tmp_path, two)))
    told = notes(cluster_read(write(tmp_path, two + "kinds: {a100: {speeds: {speach: 2}}}")))
    assert "Speeds of speach in --cluster are not used: no job runs these." in told
    assert notes(cluster_read(write(tmp_path, ROW))) == ""
    assert "--profiles is not used" in notes(cluster_read(write(tmp_path, ROW)), profiles=tmp_path)
    table = tmp_path / "gavel.json"
    table.write_text('{"t4": {"(\'A\', 1)": {"null": 1.0}}}')
    file = cluster_read(write(tmp_path, ROW + "kinds: {t4: {speeds: {a: 2}}}"))
    assert "are not used: the jobs of this workload bring" in notes(file, str(table))


def test_speeds_of_a_profile_are_used_without_a_word(tmp_path: Path) -> None:
    """app.json names the speed on the second kind, so nothing is taken to be equally fast."""
    synthetic_write(tmp_path)
    (tmp_path / "speech" / "app.json").write_text('{"speeds": {"t4": 1, "a100": 3}}')
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("name,time,application,num_replicas,batch_size\nx,0,speech,2,64\n")
    two = cluster_read(write(tmp_path, ROW + " - {kind: a100, count: 2, accelerators: 8}\n"))
    assert notes(two, str(jobs), tmp_path) == ""
