"""The headlines of failed jobs, tried with real faults of real Keras code."""

from __future__ import annotations

import textwrap
from pathlib import Path

import keras
import pytest

from agents.trainer.contract.error_sentences import known_sentence
from agents.trainer.contract.failures import TrainerError
from agents.trainer.contract.user_errors import JobCodeError, own_frames_kept, user_code
from controlplane.core.protocol.plain_text import plain_text
from controlplane.core.protocol.wire import ReportKind
from tests.agents.trainer.faulty_jobs import FAULTS, LABEL_OUT_OF_RANGE
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.agents.trainer.trial_jobs import HEAD, validated


@pytest.mark.parametrize("family", FAULTS)
def test_the_headline_says_what_is_wrong(family: str, tmp_path: Path) -> None:
    code, headline, *at_fault = FAULTS[family]
    keras.backend.clear_session()  # names of layers count from the beginning
    report = validated(tmp_path, code)
    text = (HEAD + textwrap.dedent(code)).splitlines()
    line = 0
    if at_fault:
        line = next(n for n, written in enumerate(text, 1) if at_fault[0] in written)
    assert report.message == headline.format(line=line)
    assert not report.ok
    assert report.code in ("user_code", "build_result")
    assert plain_text(report.traceback) == report.traceback
    assert "\\x1b" not in report.traceback
    assert "site-packages" not in report.traceback
    if at_fault:
        assert f"job.py, line {line}" in report.traceback.splitlines()[0]
    elif report.code == "user_code":  # the place where the model is made, or a line in it
        assert "job.py, line " in report.traceback.splitlines()[0]


def test_weights_of_as_many_dimensions_as_the_loss_fit(tmp_path: Path) -> None:
    """The fix that the headline gives."""
    code, headline = FAULTS["a weight for each example and a loss for each of its pixels"]
    assert headline.endswith("weights.reshape(-1, 1, 1)")
    weights = 'np.ones(24, "float32")'
    report = validated(tmp_path, code.replace(weights, f"{weights}.reshape(-1, 1, 1)"))
    assert report.ok, report


def test_the_original_message_stands_below(tmp_path: Path) -> None:
    report = validated(tmp_path, FAULTS["features"][0])
    assert report.traceback.startswith("The model is made in job.py, line ")
    assert "expected axis -1 of input shape to have value 4, but received" in report.traceback
    assert "dense (Dense)" in report.facts["summary"]  # with the model, as far as it went


def test_an_own_error_of_another_kind_is_told_with_its_first_line(tmp_path: Path) -> None:
    code = "def build(settings):\n    raise RuntimeError('\\x1b[1mno\\x1b[0m disk\\nsecond line')\n"
    report = validated(tmp_path, code)
    assert "raised RuntimeError: no disk (job.py, line " in report.message
    assert "second line" not in report.message
    assert "second line" in report.traceback


def test_a_slice_on_which_the_loss_fails_is_told_with_the_line(tmp_path: Path) -> None:
    code = """
    def build(settings):
        return compiled(net(), loss=pairs), (X, Y), None

    def pairs(y_true, y_pred):
        return ops.mean(y_pred[::2] - y_pred[1::2])
    """
    report = validated(tmp_path, code, global_batch_size=24, num_virtual_nodes=6)
    assert report.code == "loss_not_additive"
    assert "take 8 examples, but not 7 of them" in report.message
    line = (
        (HEAD + textwrap.dedent(code))
        .splitlines()
        .index("    return ops.mean(y_pred[::2] - y_pred[1::2])")
    )
    assert report.traceback.startswith(f"job.py, line {line + 1}, in pairs")


@pytest.mark.parametrize(
    "text",
    [
        "Layer expects 2 input(s) with keys [nonsense, but it received 1 input tensors",
        "Input 0 of layer 'x' is incompatible with the layer: expected axis 7 of input shape to "
        "have value 4, but received input with shape ()",
        f"indices[0] = {'9' * 5000} is not in [0, 3)",
        "Exception encountered when calling a\n\nb\n\nArguments received by " * 50,
    ],
)
def test_words_of_keras_without_their_sense_do_no_harm(text: str, tmp_path: Path) -> None:
    known_sentence(text)
    with pytest.raises(JobCodeError), user_code(tmp_path, "code", "a test"):
        raise ValueError(text)
    with pytest.raises(JobCodeError), user_code(tmp_path, "code", "a test"):
        raise KeyError


def test_a_step_that_fails_is_told_in_the_same_words(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec(shuffle=False), LABEL_OUT_OF_RANGE) as job:
        membership = job.plan(1, None)
        job.prepare(membership)
        job.wait_ready(membership)
        job.go(membership)
        trainer = job.trainers[0]
        trainer.process.wait(timeout=120.0)
        trainer.read()
        report = trainer.last(ReportKind.FAILED)
    assert report is not None
    assert report.data["code"] == "user_code"
    assert report.data["message"] == (
        "A label is out of range: there is a label 12, the model has 3 classes (0 to 2)"
    )
    assert report.data["traceback"].startswith("The model is made in job.py, line 5, in build")
    assert "is not in [0, 3)" in report.data["traceback"]


def test_frames_without_a_file_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # as in a trainer, whose folder has the code
    frames = '  File "<frozen runpy>", line 88, in _run_code\n  File "<string>", line 2, in f\n'
    theirs = f'  File "{tmp_path}/job.py", line 7, in call\n'
    for text, place in ((frames + theirs, "job.py, line 7, in call"), (frames, "")):
        error = own_frames_kept(TrainerError("user_code", f"a step: Detected at\n{text}"), tmp_path)
        assert error.traceback.startswith(place)
        assert "<" not in error.traceback


def test_a_trainer_tells_a_fault_of_the_code_in_the_same_words(tmp_path: Path) -> None:
    code = HEAD + textwrap.dedent(FAULTS["features"][0])
    with local_job(tmp_path, training_spec(global_batch_size=8), code) as job:
        job.prepare(job.plan(1, None))
        trainer = job.trainers[0]
        trainer.process.wait(timeout=120.0)
        trainer.read()
        report = trainer.last(ReportKind.FAILED)
    assert report is not None
    assert report.data["message"] == FAULTS["features"][1]
