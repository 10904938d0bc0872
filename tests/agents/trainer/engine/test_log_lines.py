"""A job's log: its own words, a line for each epoch, and nothing of TensorFlow's start."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agents.supervision.devices import VALIDATION_ENVIRONMENT
from agents.supervision.processes import trainer_environment
from agents.trainer.engine.startup_noise import is_startup_noise, startup_noise_dropped
from agents.trainer.engine.step_reports import epoch_line
from agents.trainer.local.local_cluster import LocalJobError
from agents.trainer.local.local_trainer import REPOSITORY
from agents.trainer.model.history import EpochRow
from agents.trainer.model.progress import Progress
from agents.trainer.model.schedule import TrainingSchedule
from controlplane.core.protocol.wire import StopCondition, StopKind, encode
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.agents.trainer.trial_jobs import HEAD
from tests.support.warm_trainers import trainer_fork

TALKING_JOB = (
    HEAD
    + """
import sys
import warnings

def build(settings):
    print("I load the data")
    warnings.warn("one row is odd")
    print("E0000 this is mine", file=sys.stderr)
    return compiled(net(), metrics=["accuracy"]), (X, Y), (X[:8], Y[:8])
"""
)
EPOCHS = StopCondition(kind=StopKind.EPOCHS, limit=3)
EPOCH_LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ epoch (?P<epoch>\d)/3, step (?P<step>\d): loss [\d.e-]+, "
    r"accuracy [\d.]+, learning_rate [\d.]+, val_loss [\d.e-]+, val_accuracy [\d.]+, "
    r"\d+\.\d\d s, [\d,]+ examples/s, 2 accelerators"
)


def test_the_log_of_a_job_holds_its_words_and_its_epochs(tmp_path: Path) -> None:
    spec = training_spec(stop=EPOCHS, global_batch_size=8)
    with local_job(tmp_path, spec, TALKING_JOB, forked=False) as job:
        # The second one need not import TensorFlow: the first one's log tells what that writes.
        spawns = iter([job.spawn, trainer_fork])
        job.spawn = lambda *start: next(spawns)(*start)
        job.resize(2)
        job.wait_finished()
        logs = [job.trainers[slot].run_dir / "log.txt" for slot in (0, 1)]
    leader, other = ([line for line in log.read_text().splitlines() if line] for log in logs)
    epochs = [found for line in leader if (found := EPOCH_LINE.fullmatch(line))]
    assert [(found["epoch"], found["step"]) for found in epochs] == [
        ("1", "3"),
        ("2", "6"),
        ("3", "9"),
    ]
    own = [line for line in leader if not EPOCH_LINE.fullmatch(line)]
    for lines in (own, other):
        assert sorted(re.sub(r".*/job.py:\d+", "job.py", line) for line in lines) == [
            '  warnings.warn("one row is odd")',
            "E0000 this is mine",
            "I load the data",
            "job.py: UserWarning: one row is odd",
        ]


def test_a_killed_trainer_leaves_what_its_job_has_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    kill = "    __import__('os').kill(__import__('os').getpid(), 9)\n"
    code = TALKING_JOB.replace("    warnings.warn", f"{kill}    warnings.warn")
    with (
        local_job(tmp_path, training_spec(stop=EPOCHS), code, forked=False) as job,
        pytest.raises(LocalJobError, match="I load the data"),
    ):
        job.resize(1)


@pytest.mark.nightly
def test_a_validation_writes_nothing_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(TALKING_JOB)
    spec = training_spec(global_batch_size=8)
    (tmp_path / "orders.json").write_text(json.dumps(encode(spec)))
    done = subprocess.run(
        [sys.executable, "-m", "agents.trainer", "--validate", str(tmp_path)],
        env=trainer_environment(os.environ, tmp_path, VALIDATION_ENVIRONMENT),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120.0,
        check=True,
    )
    assert json.loads((tmp_path / "validation.json").read_text())["ok"]
    assert sorted(
        re.sub(r".*/job.py:\d+", "job.py", line) for line in done.stdout.splitlines()
    ) == [
        '  warnings.warn("one row is odd")',
        "E0000 this is mine",
        "I load the data",
        "job.py: UserWarning: one row is odd",
    ]


@pytest.mark.parametrize(
    ("line", "is_noise"),
    [
        ("WARNING: All log messages before absl::InitializeLog() is called are written to", True),
        ("I0000 00:00:1795435636.827057   20753 port.cc:153] oneDNN custom operations are", True),
        (
            "2026-01-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] T",
            True,
        ),
        ("To enable the following instructions: AVX2 FMA, in other operations, rebuild", True),
        ("W0000 00:00:1795435636.827057 20753 computation_placer.cc:177] computation placer", True),
        (
            "E0000 00:00:1795435636.8 1 cuda_dnn.cc:8] cuDNN factory has already been registered",
            True,
        ),
        ("E0000 00:00:1795435636.8 1 cuda_platform.cc:52] failed call to cuInit: INTERNAL", False),
        ("F0000 00:00:1795435636.8 1 tensor.cc:1] Check failed", False),
        ("ImportError: libcudart.so.12: cannot open shared object file", False),
        ("I load the data", False),
        ("WARNING: my own", False),
    ],
)
def test_only_start_up_chatter_is_dropped(line: str, is_noise: bool) -> None:
    assert is_startup_noise(line.encode()) is is_noise


def test_everything_else_on_standard_error_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        os.write(2, b"I0000 00:00:1.5 1 port.cc:153] chatter\nan error\n")
        raise ImportError

    with pytest.raises(ImportError), startup_noise_dropped():
        fail()
    os.write(2, b"I0000 00:00:1.5 1 port.cc:153] afterwards all is told\n")
    assert capfd.readouterr().err == (
        "an error\nI0000 00:00:1.5 1 port.cc:153] afterwards all is told\n"
    )


def test_what_took_standard_error_over_keeps_it(tmp_path: Path) -> None:
    before = os.dup(2)
    log = os.open(tmp_path / "log.txt", os.O_WRONLY | os.O_CREAT)
    try:
        with startup_noise_dropped():
            os.dup2(log, 2)
        os.write(2, b"in the new log\n")
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(log)
    assert (tmp_path / "log.txt").read_text() == "in the new log\n"


def test_what_a_line_says() -> None:
    at = datetime.datetime(
        2026, 1, 2, 4, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=1))
    )
    row = EpochRow(
        1, 24, {"loss": 0.1234567, "val_loss": float("nan")}, seconds=12.345, examples_per_s=5120.4
    )
    assert epoch_line(row, EPOCHS, 1, at) == (
        "2026-01-02T03:05:06Z epoch 2/3, step 24: loss 0.123457, val_loss nan, 12.35 s, "
        "5,120 examples/s, 1 accelerator"
    )
    steps = StopCondition(kind=StopKind.STEPS, limit=500)
    assert " epoch 2, step 24/500: " in epoch_line(row, steps, 2, at)


def test_seconds_are_those_of_the_epoch_and_survive_a_change_of_trainers() -> None:
    schedule = TrainingSchedule(num_train=10, num_validation=4, batch_size=5, stop=EPOCHS)
    progress = Progress()
    for seconds in (1.0, 3.0):
        progress = schedule.after_batch(progress, seconds)
        progress = Progress.from_json(progress.to_json())
    progress = schedule.after_activity(progress, {"loss": 1.0})
    progress = Progress.from_json(progress.to_json())
    progress = schedule.after_activity(schedule.after_batch(progress, 0.5), {"loss": 2.0})
    (row,) = progress.history
    assert (row.seconds, row.examples_per_s) == (4.5, 2.5)
    assert (progress.activity_s, progress.train_s) == (0.0, 0.0)
