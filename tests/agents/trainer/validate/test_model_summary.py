"""The summary of a model, as a job's page shows it."""

from __future__ import annotations

from pathlib import Path

import keras

from agents.trainer.validate.job_file import job_load
from agents.trainer.validate.model_summary import model_facts, model_summary
from controlplane.core.protocol.plain_text import plain_text
from tests.agents.trainer.faulty_jobs import LABEL_OUT_OF_RANGE


class TestSummary:
    def test_nothing_is_cut(self) -> None:
        inputs = keras.Input((4,), name="measurements_of_the_last_twenty_four_hours")
        parts = [
            keras.layers.Dense(1000, name=f"a_dense_layer_with_quite_a_long_name_{n}")(inputs)
            for n in range(3)
        ]
        outputs = keras.layers.Concatenate(name="all_of_them")(parts)
        text = model_summary(keras.Model(inputs, outputs))
        assert "…" not in text
        for column in ("Layer (type)", "Output Shape", "Param #", "Connected to"):
            assert column in text
        for number in range(3):
            assert f"a_dense_layer_with_quite_a_long_name_{number} (Dense)" in text
            assert f"a_dense_layer_with_quite_a_long_name_{number}[0][0]" in text
        assert "5,000" in text
        assert plain_text(text) == text

    def test_a_small_model_needs_no_width(self) -> None:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")])
        text = model_summary(model)
        assert max(len(line) for line in text.splitlines()) == 88
        assert "Param #" in text
        assert "Total params: 5" in text

    def test_it_stays_with_a_job_that_builds(self, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(LABEL_OUT_OF_RANGE)
        job = job_load(tmp_path, "job.py", {})
        assert "Param #" in model_summary(job.model)

    def test_a_model_that_keras_cannot_describe_has_facts(self) -> None:
        model = keras.Model()
        model.table = keras.layers.Embedding(3, 2)
        model.table.build(None)
        facts = model_facts(model, is_trained=False)
        assert facts["num_parameters"] == 6
        assert facts["summary"].startswith("Keras cannot describe the model: TypeError")
