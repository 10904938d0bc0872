"""Profiles, batches, step times and workload files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from controlplane.simulator import Workload, cluster_make, profiles_read, simulate
from controlplane.simulator.applications.batches import fixed_batch
from controlplane.simulator.applications.step_times import (
    Measurement,
    PlacementStepTimes,
    smallest_rotation,
)
from controlplane.simulator.cluster_files import ClusterFile
from controlplane.simulator.options import (
    cluster_parse,
    costs_parse,
    failures_parse,
    round_parse,
    workload_load,
)
from controlplane.simulator.published.scaled import scaling
from controlplane.simulator.published.speeds import gavel_speeds
from controlplane.simulator.published.synthetic import synthetic_workload, synthetic_write
from controlplane.simulator.settings import FLAT_30, MEASURED, ResizeCosts

ONE_KIND = ClusterFile(cluster_make(1, 4))


def load(path: Path, profiles: Path | None = None, cluster: ClusterFile = ONE_KIND) -> Workload:
    return workload_load(str(path), profiles, cluster, {}, num_jobs=5, seed=0)


def test_step_times_of_known_and_unknown_placements() -> None:
    times = PlacementStepTimes(
        {
            (1,): [(10, 1.0, 0.0), (20, 2.0, 0.0)],
            (1, 2): [(10, 3.0, 1.0), (20, 5.0, 2.0)],
            (4, 4): [(10, 4.0, 1.0), (20, 6.0, 2.0)],
        },
        [Measurement(4, 16, 10, 8.0, 4.0), Measurement(4, 16, 20, 10.0, 5.0)],
    )
    assert smallest_rotation((2, 4, 1)) == (1, 2, 4)
    # (2, 1) is (1, 2) turned; between 10 and 20 examples it is a straight line.
    np.testing.assert_allclose(times.seconds((2, 1), np.array([15, 20])), [[4, 5], [1.5, 2]])
    # (4, 4, 4, 4) was measured by its numbers only.
    np.testing.assert_allclose(times.seconds((4, 4, 4, 4), np.array([10])), [[8], [4]])
    # Far outside the nearest measurement counts.
    assert np.isfinite(times.seconds((4,) * 16, np.array([10]))).all()


def test_resnet_scaling_goes_on_as_it_ended() -> None:
    found = scaling(16)
    assert found[1] == 1.0
    assert found[8] == pytest.approx(8516 / 1248)
    assert found[16] / found[8] == pytest.approx(8516 / 4660)
    assert found[3] == pytest.approx((2446 + 4660) / 2 / 1248)


def test_the_same_seed_makes_the_same_workload() -> None:
    made = synthetic_workload(60, 1.0, 1)
    assert made.jobs == synthetic_workload(60, 1.0, 1).jobs
    assert made.jobs != synthetic_workload(60, 1.0, 2).jobs
    assert {one.application for one in made.jobs} <= set(made.applications)
    assert len(made.applications) == 5


def test_what_is_fitted_comes_near_the_truth() -> None:
    """With the model of seen configurations jobs end nearly as early as with the truth."""
    jobs, cluster = synthetic_workload(12, 0.5, 2), cluster_parse(2, 4, None)
    means = [
        simulate(jobs, cluster, "srtf", knowledge=knowledge, batch="chosen").mean_jct_s
        for knowledge in ("fitted", "true")
    ]
    assert means[0] == pytest.approx(means[1], rel=0.35)
    assert means[0] != means[1]


def test_virtualflow_and_philly_files(tmp_path: Path) -> None:
    trace = tmp_path / "two.json"
    rows = [
        {"arrival_time": 1, "workload": "bert", "priority": 5, "gpu_demand": 2, "batch_size": 8},
        {"arrival_time": 9, "workload": "resnet", "priority": 1, "gpu_demand": 1, "batch_size": 4},
    ]
    trace.write_text(json.dumps(rows))
    measured = {"two": {"0": 178.0, "1": 278.0}}
    (tmp_path / "measured_seconds_at_demand.json").write_text(json.dumps(measured))
    loaded = load(trace)
    assert [job.weight for job in loaded.jobs] == [5.0, 1.0]
    # 100 s beyond the cold start, at the speed of two.
    assert loaded.applications["0-bert"].progress_ends[-1] == pytest.approx(100 * 2446 / 1248)

    philly = tmp_path / "philly.csv"
    philly.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 07:00:55,10.0,4,40.0,11cb48\n"
    )
    loaded = load(philly)
    assert [job.submitted_at for job in loaded.jobs] == [0.0, 60.0]
    assert [job.requested for job in loaded.jobs] == [4, 1]


def test_a_philly_list_may_be_quoted_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text(
        '"timestamp","duration","num_gpus"\n'
        '"2017-10-09 07:01:55","66","1"\n'
        '"2017-10-09 07:01:56","0","1"\n'
        '"2017-10-09 07:01:57","9","0"\n'
    )
    loaded = load(path)
    assert [job.requested for job in loaded.jobs] == [1]
    assert "2 of 3 lines are left out: no duration or no accelerators." in loaded.notes


@pytest.mark.parametrize("separator", [";", "\t", ", "])
def test_a_list_may_come_from_a_spreadsheet(tmp_path: Path, separator: str) -> None:
    """With its byte order mark, its separator, and rows that are empty."""
    path = tmp_path / "list.csv"
    rows = (
        "timestamp,duration,num_gpus", "2017-10-09 07:01:55,66,1", ",,", "",
        "2017-10-09 07:01:56,x,1",
    )  # fmt: skip
    path.write_text("\ufeff" + "\r\n".join(rows).replace(",", separator), newline="")
    with pytest.raises(ValueError, match=r"line 5 of .*: 'duration' must be a number, not 'x'"):
        load(path)
    path.write_text("\ufeff" + "\r\n".join(rows[:4]).replace(",", separator), newline="")
    assert [job.requested for job in load(path).jobs] == [1]


def test_speeds_of_kinds_are_relative_to_the_level(tmp_path: Path) -> None:
    table = {
        kind: {
            job: {"null": rate}
            for job in (
                "('Transformer (batch size 16)', 1)", "('ResNet-18 (batch size 128)', 1)",
                "('LM (batch size 20)', 1)", "('ResNet-50 (batch size 64)', 1)",
                "('Recommendation (batch size 2048)', 1)", "('ResNet-50 (batch size 16)', 1)",
            )
        }
        for kind, rate in (("p100", 2.0), ("v100", 5.0), ("v100_unconsolidated", 9.0))
    }  # fmt: skip
    path = tmp_path / "speeds.json"
    path.write_text(json.dumps(table))
    assert gavel_speeds(path)["ncf"] == {"p100": 1.0, "v100": 2.5}
    path.write_text("{}")
    with pytest.raises(ValueError, match="kind-speeds"):
        gavel_speeds(path)


def test_a_faster_kind_computes_faster_and_exchanges_as_fast(tmp_path: Path) -> None:
    synthetic_write(tmp_path)
    app = profiles_read(tmp_path, {"speech": {"fast": 2.0}})["speech"]
    batch = fixed_batch(app.bounds, 64, 4)
    slow, fast = (app.pace(kind, (4,), batch, 0) for kind in ("slow", "fast"))
    assert fast.sync_s == slow.sync_s
    assert fast.step_s - fast.sync_s == pytest.approx((slow.step_s - slow.sync_s) / 2.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("measured", MEASURED),
        ("flat:30", FLAT_30),
        ("1,2,3", ResizeCosts(1.0, 2.0, 3.0)),
        ("1,2,3,4", ResizeCosts(1.0, 2.0, 3.0, 4.0)),
    ],
)
def test_costs_are_read(text: str, expected: ResizeCosts) -> None:
    assert costs_parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "free", "1,2", "1,2,3,4,5", "flat:x", "1,2,-3", "flat:nan", "flat:inf", "flat:-1",
        "flat:1e300", "nan,1,1", "flat:1,2,3",
    ],
)  # fmt: skip
def test_bad_costs_name_the_option(text: str) -> None:
    with pytest.raises(ValueError, match=r"--resize-cost: give measured, flat:30 or .* 0 to 86400"):
        costs_parse(text)


@pytest.mark.parametrize("text", ["48", "0,1", "nan,1", "inf,1", "1,2,3"])
def test_bad_failures_name_the_option(text: str) -> None:
    with pytest.raises(ValueError, match=r"--failures: give hours .*, as 48,0.5"):
        failures_parse(text)


@pytest.mark.parametrize("seconds", [0.0, 0.5, -60.0, float("nan"), float("inf")])
def test_rounds_last_a_second_at_least(seconds: float) -> None:
    assert round_parse(1.0) == 1.0
    with pytest.raises(ValueError, match="--round: give at least 1 second"):
        round_parse(seconds)


def test_clusters_are_read() -> None:
    assert cluster_parse(3, 2, "v100:1,k80:2").kinds == {"k80": 4, "v100": 2}
    assert cluster_parse(None, None, "v100:1,k80:2").kinds == {"k80": 8, "v100": 4}
    assert cluster_parse(None, None, None).kinds == {"gpu": 64}
    for nodes, kinds in (
        (3, "v100:1"),
        (3, "v100"),
        (0, None),
        (-3, None),
        (10**6, None),
        (2, "a:1,a:1"),
        (None, "a:" + "9" * 5000),
        (None, " :3"),
    ):
        with pytest.raises(ValueError, match="--"):
            cluster_parse(nodes, 2, kinds)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "no format that is known"),
        ("name,time,application\nx,soon,y\n", "line 2"),
        (
            "name,time,application,num_replicas,batch_size\nx,5,speech,two,8\n",
            "line 2 of .*: 'num_replicas' must be a number, not 'two'",
        ),
        ("name,time,application,num_replicas,batch_size\nx,-5,speech,2,64\n", "x arrives -5 s"),
        (
            "name,time,application,num_replicas,batch_size\nx,5,speech,2,1e17\n",
            "--workload: line 2 of .*: 'batch_size' must be at most 9007199254740991, not 1e17",
        ),
        (
            "name,time,application,num_replicas,batch_size\nx,5,speech,1e9,64\n",
            "'num_replicas' must be at most 100000, not 1e9",
        ),
        *(
            (
                f"name,time,application,num_replicas,batch_size\nx,5,speech,1,{size}\n",
                f"batch of job x has {size} examples; speech was measured with 16 to 512",
            )
            for size in (8, 10**12)
        ),
        ("timestamp,duration,num_gpus\nnever,1,1\n", "line 2"),
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,inf,1\n", "'duration' must be a number"),
        ("[1]", "job 0 .* must be an object with 'gpu_demand', not 1"),
        ("[", "--workload: .* is no JSON"),
        ("{", "--workload: .* is no JSON"),
        ('{"format": "mine"}', "export_history"),
        ('[{"arrival_time": 1}]', "job 0 of .*: 'gpu_demand' is missing"),
        ('[{"gpu_demand": -2, "workload": "a"}]', "job 0 of .*: 'gpu_demand' must be at least 1"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "workload.csv"
    path.write_text(content)
    synthetic_write(tmp_path / "profiles")
    with pytest.raises(ValueError, match=message):
        load(path, tmp_path / "profiles")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("validation-256.csv", "progress,iteration\n1,1\n", "'grad_sqr' is missing"),
        ("validation-256.csv", "progress\n", "'epochs' must be 1 to 0"),
        ("validation-x.csv", "progress\n", "as validation-64.csv"),
        ("placements.csv", "placement,local_bsz\n1,64\n", "line 2 of .* 'step_time' is missing"),
        ("placements.csv", "placement\n", "has no rows"),
        ("scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n1,1,8,1,2\n",
         "0 ≤ 'sync_time' ≤ 'step_time'"),
        ("app.json", "{", "app.json is no JSON"),
        ("app.json", '{"epochs": 99}', "'epochs' must be 1 to 12"),
        ("app.json", '{"speeds": {"fast": 0}}', "'speeds' must be positive"),
    ],
)  # fmt: skip
def test_bad_profiles_are_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    synthetic_write(tmp_path)
    (tmp_path / "tabular" / file).write_text(content)
    with pytest.raises(ValueError, match=f"--profiles: .*{message}"):
        profiles_read(tmp_path)


def test_measurements_on_one_node_alone_are_enough() -> None:
    """They span no room to interpolate in: other placements take the nearest."""
    times = PlacementStepTimes({(1,): [(10, 1.0, 0.0)], (2,): [(10, 3.0, 1.0)]}, [])
    np.testing.assert_allclose(times.seconds((1, 1), np.array([10])), [[3.0], [1.0]])


def test_a_run_time_that_nobody_measured_is_told(tmp_path: Path) -> None:
    trace = tmp_path / "one.json"
    row = {"arrival_time": 1, "workload": "bert", "priority": 5, "gpu_demand": 2, "batch_size": 8}
    trace.write_text(json.dumps([row]))
    loaded = load(trace)
    assert loaded.source == str(trace)
    assert loaded.notes == ("Nobody measured how long 1 of 1 jobs run: 15 minutes each.",)
    report = simulate(loaded, cluster_parse(1, 4, None), "fifo")
    assert report.settings["notes"] == loaded.notes[0]


def test_a_missing_folder_is_named_itself(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--profiles: there is no folder /nowhere; name one"):
        profiles_read(Path("/nowhere"))
    synthetic_write(tmp_path / "main")
    (tmp_path / "own").mkdir()
    with pytest.raises(ValueError, match=r"--cluster: there is no folder \S+own/language; measure"):
        profiles_read(tmp_path / "main", by_kind={"a100": tmp_path / "own"})
