"""The ready jobs: complete for the form, accepted by validation, and they learn."""

import json
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest

from agents.trainer.validate.job_file import LoadedJob, job_load
from agents.trainer.validate.run import job_validate
from controlplane.core.protocol.code_archive import archive_check
from controlplane.core.protocol.wire import ReductionMode, TrainingSpec
from jobs.job_templates import FOLDER, JOB_TEMPLATES, JobTemplate
from tests.support.cases import some

SMALL: dict[str, dict[str, Any]] = {
    "digits_cnn": {"filters": 8, "hidden_units": 32, "dropout": 0.1, "learning_rate": 0.005},
    "tabular": {"learning_rate": 0.003, "dropout": 0.1},
    "residual": {"filters": 8, "decay_steps": 200},
    "char_transformer": {
        "context": 16,
        "width": 32,
        "num_heads": 2,
        "num_blocks": 1,
        "decay_steps": 120,
        "num_characters": 30_000,
    },
}


def loaded(template: JobTemplate) -> LoadedJob:
    settings = template.settings | SMALL[template.name]
    return job_load(template.path.parent, template.path.name, settings, seed=1)


def fitted(job: LoadedJob, batch_size: int, epochs: int) -> dict[str, float]:
    """Train with plain Keras; returns the validation metrics afterwards."""
    assert job.validation is not None
    train, validation = (
        source.fetch(np.arange(len(source))) for source in (job.train, job.validation)
    )
    job.model.fit(*train, batch_size=batch_size, epochs=epochs, verbose=0)
    metrics: dict[str, float] = job.model.evaluate(*validation, verbose=0, return_dict=True)
    return metrics


def test_every_job_file_is_in_the_form() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert files == set(JOB_TEMPLATES) == set(SMALL)


@pytest.mark.parametrize("template", JOB_TEMPLATES.values(), ids=lambda template: template.name)
def test_a_template_is_a_complete_submission(template: JobTemplate) -> None:
    assert template.title
    assert template.description.endswith(".")
    assert json.loads(json.dumps(template.settings)) == template.settings
    assert 1 <= template.max_accelerators <= template.num_virtual_nodes
    assert template.num_virtual_nodes <= template.global_batch_size
    assert archive_check(template.code.encode(), template.path.name) == template.path.name
    documented = template.code.split('"""')[1]
    for name in template.settings:
        assert f"    {name}: " in documented, f"{name} is not documented in {template.path.name}"


def test_settings_are_copies() -> None:
    template = JOB_TEMPLATES["tabular"]
    template.settings["hidden_units"].append(7)
    assert template.settings["hidden_units"] == [32, 16]


def test_the_list_of_templates_needs_no_tensorflow() -> None:
    program = (
        "import sys, jobs.job_templates as t; [x.settings for x in t.JOB_TEMPLATES.values()]; "
        "sys.exit(bool({'tensorflow', 'keras', 'sklearn', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("name", some(JOB_TEMPLATES, JOB_TEMPLATES.keys() - {"tabular"}))
def test_a_template_passes_validation_without_a_warning(name: str) -> None:
    template = JOB_TEMPLATES[name]
    spec = TrainingSpec(
        job_id=1,
        name=template.name,
        entry_file=template.path.name,
        code_sha256="",
        settings=template.settings | SMALL[template.name],
        global_batch_size=template.global_batch_size,
        num_virtual_nodes=template.num_virtual_nodes,
        seed=1,
        reduction=ReductionMode.EXACT,
        stop=template.stop,
    )
    report = job_validate(spec, template.path.parent)
    assert report.ok, f"{report.code}: {report.message}\n{report.traceback}"
    assert report.facts["warnings"] == []
    assert report.facts["num_validation_examples"] > 0


@pytest.mark.parametrize(
    ("name", "epochs", "least_accuracy"),
    [
        ("digits_cnn", 4, 0.93),
        pytest.param("tabular", 20, 0.92, marks=pytest.mark.nightly),
        pytest.param("residual", 8, 0.9, marks=pytest.mark.nightly),
    ],
)
def test_a_classifier_learns(name: str, epochs: int, least_accuracy: float) -> None:
    job = loaded(JOB_TEMPLATES[name])
    metrics = fitted(job, batch_size=64, epochs=epochs)
    assert metrics["accuracy"] >= least_accuracy


@pytest.mark.nightly  # says nothing of the engine
def test_the_transformer_learns_more_than_the_frequency_of_characters() -> None:
    job = loaded(JOB_TEMPLATES["char_transformer"])
    _, following = job.train.fetch(np.arange(len(job.train)))
    shares = np.bincount(following.ravel()) / following.size
    entropy = -sum(share * np.log(share) for share in shares if share)
    metrics = fitted(job, batch_size=64, epochs=5)
    assert metrics["loss"] < entropy - 0.3


def test_the_transformer_sees_no_later_characters() -> None:
    model = loaded(JOB_TEMPLATES["char_transformer"]).model
    codes = np.arange(16)[None] + 40
    changed = codes.copy()
    changed[0, 10:] = 99
    before, after = (keras.ops.convert_to_numpy(model(value)) for value in (codes, changed))
    np.testing.assert_allclose(before[0, :10], after[0, :10], atol=1e-5)
    assert np.abs(before[0, 10:] - after[0, 10:]).max() > 1e-3
