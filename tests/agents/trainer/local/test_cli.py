"""The standalone command line."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agents.trainer.__main__ import main
from agents.trainer.local import cli
from agents.trainer.local.cli import resizes_read, selection_read, settings_read
from agents.trainer.local.local_cluster import LocalJob, LocalJobError
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec

REPOSITORY = Path(__file__).resolve().parents[4]


def test_help_does_not_load_tensorflow() -> None:
    code = (
        "import sys, agents.trainer.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded' if {'tensorflow', 'keras'} & set(sys.modules) else 'light')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.splitlines()[-1] == "light"
    assert "--virtual-nodes" in result.stdout


@pytest.mark.nightly
def test_a_trainer_has_scikit_learn_only_when_its_job_wants_it(tmp_path: Path) -> None:
    """Keras would import it for wrappers, which takes a fifth of a trainer's start."""
    job = tmp_path / "job.py"
    job.write_text(
        "import gc, sys\n"
        "is_collected, num_frozen = gc.isenabled(), gc.get_freeze_count()\n"
        "were_there = sorted({'keras', 'sklearn', 'tensorflow'} & set(sys.modules))\n"
        "from sklearn.datasets import load_iris\n"
        "import keras\n"
        "def build(settings):\n"
        "    assert were_there == ['keras', 'tensorflow'], were_there\n"
        "    assert is_collected and num_frozen > 100_000, num_frozen\n"
        "    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "    data, targets = load_iris(return_X_y=True)\n"
        "    return model, (data.astype('float32'), targets), None\n"
    )
    assert main([str(job), "--steps", "2", "--virtual-nodes", "2"]) == 0


def test_resizes_are_read_in_order() -> None:
    assert resizes_read("") == []
    assert resizes_read("20:3, 40:2,60:4") == [(20, 3), (40, 2), (60, 4)]


@pytest.mark.parametrize("text", ["20", "20:", "20:0", "a:2", "40:2,20:3", "20:-1"])
def test_resizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--resize"):
        resizes_read(text)


def test_settings_are_json_or_text() -> None:
    pairs = [
        "units=[8, 4]",
        "rate=0.5",
        "name=wide net",
        "deep=true",
        "path=a=b",
        "off=False",
        "no=None",
    ]
    assert settings_read(pairs) == {
        "units": [8, 4],
        "rate": 0.5,
        "name": "wide net",
        "deep": True,
        "path": "a=b",
        "off": False,
        "no": None,
    }
    with pytest.raises(ValueError, match="write NAME=VALUE"):
        settings_read(["units"])


def test_a_missing_job_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.py"]) == 1
    assert "there is no file nowhere.py" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
    assert "give a JOB.py" in capsys.readouterr().err


def test_more_workers_than_virtual_nodes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.py"
    job.write_text("def build(settings): ...\n")
    assert main([str(job), "--virtual-nodes", "2", "--workers", "3"]) == 1
    assert "2 virtual nodes cannot occupy 3 accelerators" in capsys.readouterr().err


#: A module beside `job.py`, which compares the examples of a batch.
RIVALS = """
from keras import ops


def rivalry(y_true, y_pred):
    return ops.square(y_true - y_pred + ops.mean(y_pred))
"""
RIVAL_JOB = """
import keras
import numpy as np
from losses import rivalry


def build(settings):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", rivalry)
    return model, (np.arange(60.0).reshape(20, 3), np.arange(20.0)), None
"""


def test_a_zip_is_validated_as_by_a_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("job.py", RIVAL_JOB)
        archive.writestr("losses.py", RIVALS)
    assert main([str(path), "--batch-size", "8", "--virtual-nodes", "2"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: loss_not_additive: The loss of a batch (")
    assert "training" not in said.out


@pytest.mark.parametrize(
    ("facts", "merges"), [({"is_merged": False}, False), ({"is_merged": True}, True), ({}, True)]
)
def test_virtual_nodes_run_together_only_if_the_validation_has_found_them_able(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, bool], merges: bool
) -> None:
    """As on a site: a merged pass of some models would leave weights untrained."""
    started: list[bool] = []

    def train(job: LocalJob, *_: object) -> None:
        started.append(job.spec.merges)
        raise LocalJobError("far enough")

    monkeypatch.setattr(cli, "job_validate", lambda *_: facts)
    monkeypatch.setattr(cli, "_train", train)
    path = tmp_path / "job.py"
    path.write_text("def build(settings): ...\n")
    assert main([str(path), "--reduction", "fast"]) == 1
    assert started == [merges]


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"PK", "job.zip", "error: "),
        (b"", "job.py", "error: job.py holds no Python text"),
        (b"x = 1", "my job.py", "error: 'my job.py' is no usable file name"),
        (b"x = 1", "job.txt", "error: "),
    ],
)
def test_a_file_that_a_site_would_not_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, name: str, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main([str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith(said)


def test_a_selection_is_read_with_its_bounds() -> None:
    read = selection_read(["method=selective_backprop", "beta=2.5", "end=9"])
    method = SelectionMethod.SELECTIVE_BACKPROP
    assert read == SelectionSpec(method=method, beta=2.5, end=9)
    assert selection_read([]) is None


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("gamma=1", "--selection gamma=...: there is only method, beta, history, "),
        ("beta=0", "selection.beta must be from 0.1 to 10, got 0"),
        ("start=0", "selection.start must be from 1 to "),
        ("end=1", "selection.end must be from 2 to "),
        ("method=best", "--selection.method must be one of none, selective_backprop, "),
        ("history=many", "--selection.history must be "),
        ("beta", "--selection 'beta': write NAME=VALUE"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(pair: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        selection_read(["method=selective_backprop", pair])
