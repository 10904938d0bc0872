"""Loading a job: what `build` may return, and whose fault an error is."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.validate.job_file import LoadedJob, job_load
from tests.agents.trainer.local_jobs import training_spec
from tests.agents.trainer.trial_jobs import run_to_validate

MODEL = """
import keras
import numpy as np

def compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

X, Y = np.ones((6, 2)), np.zeros((6, 1))
"""


def write(folder: Path, code: str, name: str = "job.py") -> None:
    (folder / name).write_text(textwrap.dedent(code))


def loaded(folder: Path, code: str, settings: dict[str, Any] | None = None) -> LoadedJob:
    write(folder, code)
    return job_load(folder, "job.py", settings or {})


def refusal(folder: Path, code: str) -> JobCodeError:
    with pytest.raises(JobCodeError) as caught:
        loaded(folder, code)
    return caught.value


def test_a_job_is_a_model_and_its_data(tmp_path: Path) -> None:
    body = "def build(settings):\n    return compiled(), (X, Y), (X[:2], Y[:2])\n"
    job = loaded(tmp_path, MODEL + body)
    assert isinstance(job.model, keras.Model)
    assert len(job.train) == 6
    assert job.validation is not None
    assert len(job.validation) == 2


def test_settings_reach_build_as_a_copy(tmp_path: Path) -> None:
    settings = {"units": [3, 4]}
    body = """
def build(settings):
    settings["units"].append(5)
    x = np.ones((len(settings["units"]), 2))
    return compiled(), (x, x[:, :1]), None
"""
    job = loaded(tmp_path, MODEL + body, settings)
    assert len(job.train) == 3
    assert job.validation is None
    assert settings == {"units": [3, 4]}


def test_random_generators_start_from_the_jobs_seed(tmp_path: Path) -> None:
    write(
        tmp_path,
        MODEL
        + """
import random

def build(settings):
    x = np.random.normal(size=(4, 2)) + random.random()
    return compiled(), (x, x[:, :1]), None
""",
    )
    first, same, other = (job_load(tmp_path, "job.py", {}, seed) for seed in (1, 1, 2))
    everything = np.arange(4)
    np.testing.assert_array_equal(first.train.fetch(everything)[0], same.train.fetch(everything)[0])
    np.testing.assert_array_equal(first.model.get_weights()[0], same.model.get_weights()[0])
    assert not np.array_equal(first.train.fetch(everything)[0], other.train.fetch(everything)[0])
    assert not np.array_equal(first.model.get_weights()[0], other.model.get_weights()[0])


def test_helper_modules_beside_the_entry_file_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    write(tmp_path, MODEL, "shared_parts_of_job.py")
    body = """
from dataclasses import dataclass
from shared_parts_of_job import X, Y, compiled

@dataclass
class Sizes:
    rows: int = 4

def build(settings):
    return compiled(), (X[: Sizes().rows], Y[: Sizes().rows]), None
"""
    assert len(loaded(tmp_path, body).train) == 4


@pytest.mark.parametrize("weights", ["{1: 4.0}", "{np.int64(1): np.float32(4)}"])
def test_class_weight_stands_in_a_fourth_element(weights: str, tmp_path: Path) -> None:
    body = f"""
def build(settings):
    return compiled(), (X, np.array([0, 1, 0, 1, 0, 1])), None, {{"class_weight": {weights}}}
"""
    job = loaded(tmp_path, MODEL + body)
    assert job.train.has_sample_weight
    assert job.train.fetch(np.arange(2))[2].tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("train", "validation"),
    [("(X, (Y, Y), W)", "(X, (Y, Y))"), ("(X, (Y, Y))", "(X, (Y, Y), W)")],
)
def test_weights_of_one_data_set_give_the_other_weights_of_one(
    train: str, validation: str, tmp_path: Path
) -> None:
    body = f"""
W = (np.full(6, 2.0), np.full((6, 1), 3.0))

def build(settings):
    return compiled(), {train}, {validation}
"""
    job = loaded(tmp_path, MODEL + body)
    assert job.validation is not None
    assert job.train.has_sample_weight
    assert job.validation.has_sample_weight
    everything = np.arange(6)
    weights = [job.train.fetch(everything)[2], job.validation.fetch(everything)[2]]
    given, added = weights if "W" in train else reversed(weights)
    assert [leaf.tolist() for leaf in given] == [[2.0] * 6, [[3.0]] * 6]
    assert [leaf.tolist() for leaf in added] == [[1.0] * 6, [[1.0]] * 6]


TYPES = ["bool", "uint8", "int32", "int64", "float32"]


@pytest.mark.parametrize("of_validation", TYPES)
@pytest.mark.parametrize("of_training", TYPES)
def test_validation_data_take_the_types_of_the_training_data(
    of_training: str, of_validation: str, tmp_path: Path
) -> None:
    body = f"""
Y = np.array([0, 1, 0, 1, 1, 0])

def build(settings):
    train, validation = Y.astype("{of_training}"), Y.astype("{of_validation}")
    return compiled(), (X, train, np.arange(6)), (X, validation, np.full(6, 0.5))
"""
    job = loaded(tmp_path, MODEL + body)
    assert job.validation is not None
    _, labels, weights = job.validation.fetch(np.array([3, 0]))
    assert (labels.dtype, labels.tolist()) == (of_training, [1, 0])
    assert (weights.dtype, weights.tolist()) == ("float32", [0.5, 0.5])


CHANGED = {
    "a half": ("Y.astype('int32')", "Y + 0.5"),
    "not a number": ("Y.astype('int64')", "np.full(6, np.nan)"),
    "too large": ("Y.astype('uint8')", "Y + 300"),
    "below zero": ("Y.astype('uint16')", "Y - 1"),
    "no truth value": ("Y.astype(bool)", "Y + 1"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_validation_data_that_another_type_would_change_are_refused(
    case: str, tmp_path: Path
) -> None:
    train, validation = CHANGED[case]
    body = f"""
Y = np.array([0, 1, 0, 1, 1, 0])

def build(settings):
    return compiled(), (X, {train}), (X, {validation})
"""
    error = refusal(tmp_path, MODEL + body)
    assert (error.code, error.field) == ("data_type", "data.validation")
    assert "training data" in error.message


@pytest.mark.parametrize("kinds", [("X", "TEXT"), ("TEXT", "X"), ("X", "Late()"), ("Late()", "X")])
def test_text_and_numbers_in_training_and_validation_are_refused(
    kinds: tuple[str, str], tmp_path: Path
) -> None:
    body = f"""
TEXT = X.astype(str)

class Late:
    __len__, __getitem__ = TEXT.__len__, TEXT.__getitem__

def build(settings):
    return compiled(), {kinds[0]}, {kinds[1]}
"""
    error = refusal(tmp_path, MODEL + body)
    assert (error.code, error.field) == ("data_type", "data.validation")
    assert "text" in error.message


def test_validation_data_read_later_are_looked_at_when_they_are_read(tmp_path: Path) -> None:
    body = """
class Lazy:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index], np.int64([0, 255, 256][index])

def build(settings):
    return compiled(), (X, np.zeros(6, "uint8")), Lazy()
"""
    job = loaded(tmp_path, MODEL + body)
    assert job.validation is not None
    assert job.validation.fetch(np.array([1, 0]))[1].tolist() == [255, 0]
    with pytest.raises(JobCodeError, match="uint8 of the training data cannot hold"):
        job.validation.fetch(np.array([2]))


def test_validation_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    body = """
def build(settings):
    return compiled(), (X, Y, np.ones(6)), (X, Y, np.ones((6, 1)))
"""
    error = refusal(tmp_path, MODEL + body)
    assert (error.code, error.field) == ("data_structure", "data.validation")


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("build", "disable_v2_behavior"),
        pytest.param("top", "disable_v2_behavior", marks=pytest.mark.nightly),
        pytest.param("build", "disable_eager_execution", marks=pytest.mark.nightly),
        pytest.param("top", "disable_eager_execution", marks=pytest.mark.nightly),
    ],
)
def test_turning_eager_execution_off_is_refused_and_no_thread_waited_for(
    place: str, call: str, tmp_path: Path
) -> None:
    """In a process of its own: what is turned off stays off, and threads stay until it ends."""
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    off = f"__import__('tensorflow').compat.v1.{call}()\n"
    first, inside = (off, "") if place == "top" else ("", f"    {off}")
    body = f"{thread}{first}def build(settings):\n{inside}    return None\n"
    report = run_to_validate(tmp_path, body, training_spec())
    assert (report.ok, report.code) == (False, "eager_execution_disabled")
    assert "leave such calls out" in report.message


def test_validation_data_of_another_shape_is_refused(tmp_path: Path) -> None:
    error = refusal(
        tmp_path, MODEL + "def build(s):\n    return compiled(), (X, Y), (X[:, :1], Y)\n"
    )
    assert (error.code, error.field) == ("data_structure", "data.validation")
    assert "float32[1]" in error.message
    assert "float32[2]" in error.message


@pytest.mark.parametrize(
    ("returned", "code", "part"),
    [
        ("compiled(), (X, Y)", "build_result", "2 elements"),
        ("compiled()", "build_result", "Sequential"),
        ("'model', (X, Y), None", "build_result", "a str, not a keras.Model"),
        ("keras.Sequential([keras.layers.Dense(1)]), (X, Y), None", "not_compiled", "compile"),
        ("compiled(), (X, Y[:3]), None", "length_mismatch", "x: 6; y: 3"),
        ("compiled(), (X, Y), (X, Y[:3])", "length_mismatch", "x: 6; y: 3"),
        ("compiled(), (X, Y), None, {'batch_size': 3}", "build_result", "global batch size"),
        ("compiled(), (X, Y), None, {'mood': 3}", "build_result", "'mood'"),
        ("compiled(), (X, Y), None, 7", "build_result", "must be a dict"),
        ("compiled(), (X, Y), None, {'class_weight': [1, 2]}", "class_weight", "dict"),
        ("compiled(), (X, Y), None, {'class_weight': {0: 'a'}}", "class_weight", "dict"),
    ],
)
def test_other_results_are_refused_with_the_fix(
    returned: str, code: str, part: str, tmp_path: Path
) -> None:
    error = refusal(tmp_path, MODEL + f"def build(settings):\n    return {returned}\n")
    assert error.code == code
    assert part in error.message


def test_a_file_without_build_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, "def built(settings): ...\n")
    assert (error.code, error.field) == ("no_build", "code")


def test_a_build_that_takes_no_settings_is_the_users_fault(tmp_path: Path) -> None:
    error = refusal(tmp_path, "def build(): ...\n")
    assert (error.code, error.field) == ("user_code", "code")
    assert "build() takes 0 positional arguments but 1 was given" in error.message


@pytest.mark.parametrize("name", ["missing.py", "../outside.py", "notes.txt"])
def test_the_entry_file_must_be_python_in_the_code(name: str, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    write(tmp_path, MODEL, "outside.py")
    write(code, "hello", "notes.txt")
    with pytest.raises(JobCodeError) as caught:
        job_load(code, name, {})
    assert (caught.value.code, caught.value.field) == ("no_entry_file", "entry_file")


def test_a_traceback_shows_the_users_frames_only(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        MODEL
        + """
def hidden_size(settings):
    return settings["hidden"] * 2

def build(settings):
    return compiled(), (X, hidden_size(settings)), None
""",
    )
    assert (error.code, error.field) == ("user_code", "code")
    assert "KeyError: 'hidden'" in error.message
    lines = error.traceback.splitlines()
    assert [line.strip() for line in lines if "File" in line] == [
        'File "job.py", line 16, in build',
        'File "job.py", line 13, in hidden_size',
    ]
    assert lines[-1] == "KeyError: 'hidden'"
    assert str(tmp_path) not in error.traceback


def test_an_error_inside_a_library_shows_the_users_call(tmp_path: Path) -> None:
    body = "def build(settings):\n    return keras.layers.Dense(-3), (X, Y), None\n"
    error = refusal(tmp_path, MODEL + body)
    assert "keras.layers.Dense(-3)" in error.traceback
    assert "site-packages" not in error.traceback
    assert "ValueError" in error.traceback.splitlines()[-1] + error.message


def test_causes_are_shown_too(tmp_path: Path) -> None:
    body = """
def build(settings):
    try:
        open("/nowhere/data.csv")
    except OSError as error:
        raise RuntimeError("no data") from error
"""
    error = refusal(tmp_path, body)
    assert "FileNotFoundError" in error.traceback
    assert error.traceback.rstrip().endswith("RuntimeError: no data")


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def build(settings:\n    pass\n", "job.py, line 1, is not valid Python"),
        ("import no_such_module_anywhere\n", "no module 'no_such_module_anywhere'"),
        ("import sys\nsys.exit(0)\n", "Importing job.py raised SystemExit: 0 (job.py, line 2)"),
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('lr')\n"
            "parser.parse_args([])\n",
            "Importing job.py raised SystemExit: 2 (job.py, line 4); a job has no command line of "
            "its own: give parse_args([]), and values as settings of the job",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_is_the_users_fault(
    code: str, part: str, tmp_path: Path
) -> None:
    error = refusal(tmp_path, code)
    assert error.code == "user_code"
    assert part in error.message
    assert "job.py" in error.traceback


def test_endless_messages_are_cut(tmp_path: Path) -> None:
    error = refusal(tmp_path, "raise ValueError('long ' * 100_000)\n")
    assert len(error.message) <= 4_000
    assert len(error.traceback) <= 20_000
