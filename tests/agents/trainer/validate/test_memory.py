"""What a validation measures: memory and time of growing slices, and what it does not try."""

from __future__ import annotations

from mmap import PAGESIZE, mmap
from pathlib import Path

import numpy as np
import pytest

from agents.trainer.model.keras_private import model_build
from agents.trainer.validate import trial_steps
from agents.trainer.validate.job_file import job_load
from agents.trainer.validate.trial_steps import free_bytes, memory_read, slice_ladder, steps_try
from controlplane.core.estimates.memory import memory_need_read
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from tests.agents.trainer.trial_jobs import HEAD, returning, run_to_validate, spec_of

#: An example becomes 8 MiB twice, in the layer and its square; a slice of the batch has 8.
WIDE = """
class Wide(layers.Layer):
    def call(self, inputs):
        return ops.mean(ops.square(ops.tile(inputs, (1, 2**19))), axis=-1, keepdims=True)


def build(settings):
    model = net(Wide())
    model.compile("sgd", "mse")
    return model, (np.ones((64, 4), "float32"), np.ones((64, 1), "float32")), None
"""
WIDE_EXAMPLE_BYTES = 4 * 2**19 * 4


@pytest.fixture(autouse=True)
def few_trial_steps() -> None:
    """Validate with as many steps as the peak of their memory needs."""


def test_sizes_grow_to_the_largest_by_way_of_its_half() -> None:
    assert slice_ladder(64, 1000) == [2, 8, 32, 64]
    assert slice_ladder(5, 1000) == [2, 5]
    assert slice_ladder(1, 1000) == [1, 2]
    assert slice_ladder(1, 1) == [1]


def test_the_kernels_counts_follow_what_is_held() -> None:
    before = memory_read("VmRSS")
    # Not from the heap, which may have as much free memory from before.
    with mmap(-1, 2**25) as held:
        held[::PAGESIZE] = bytes(2**25 // PAGESIZE)
        after = memory_read("VmRSS")
    if before is None or after is None:
        pytest.skip("no /proc here")
    assert after - before > 0.9 * 2**25
    assert memory_read("VmNothing") is None
    assert free_bytes() > 0


def test_memory_of_an_example_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Forward and backward hold the tiled input, its square and gradients: up to 6 times 8 MiB.

    What shares a buffer depends on processor and threads; the tiled input is always there. Seen at
    slice 1 with one buffer more, it hides an eighth of what an example needs.
    """
    report = run_to_validate(tmp_path, HEAD + WIDE, spec_of(global_batch_size=16))
    assert report.ok, report.message
    assert report.facts["memory"]["measured_slices"] == [1, 4, 8]
    need = memory_need_read(report.facts)
    assert need is not None
    assert 0.8 * WIDE_EXAMPLE_BYTES < need.bytes_per_example < 6 * WIDE_EXAMPLE_BYTES
    assert need.process_bytes > 100e6


def test_a_slice_that_would_not_fit_is_foretold_and_not_tried(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HEAD + WIDE)
    job = job_load(tmp_path, "job.py", {})
    model_build(job.model, job.train.fetch(np.arange(2)))
    budget = 6 * WIDE_EXAMPLE_BYTES  # holds a pair of slices of one example, but not of sixteen
    tried = steps_try(spec_of(global_batch_size=32), job, [16, 16], budget)
    slices = tried.facts["memory"]["measured_slices"]
    assert slices[0] == 2
    assert max(slices) < 16
    (warning,) = tried.warnings
    assert "a slice of 16 examples was not tried" in warning
    assert tried.facts["slice_examples"] == 16


def test_parallel_trials_shorter_than_their_start_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text(HEAD + returning("compiled(net())", "(X, Y)"))
    job = job_load(tmp_path, "job.py", {})
    model_build(job.model, job.train.fetch(np.arange(2)))
    space = {"learning_rate": TunableRange(low=1e-4, high=1.0, log=True)}
    serial = spec_of(global_batch_size=8, tuning=TuningSpec(space=space))
    parallel = spec_of(global_batch_size=8, tuning=TuningSpec(space=space, parallel=True))
    (warning,) = steps_try(parallel, job, [4, 4]).warnings
    assert "the 100 steps of a trial take about" in warning
    assert steps_try(serial, job, [4, 4]).warnings == []
    monkeypatch.setattr(trial_steps, "TRAINER_START_S", 1e-6)
    assert steps_try(parallel, job, [4, 4]).warnings == []


def test_one_example_makes_one_size(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HEAD + returning("compiled(net())", "(X[:1], Y[:1])"))
    job = job_load(tmp_path, "job.py", {})
    model_build(job.model, job.train.fetch(np.arange(1)))
    tried = steps_try(spec_of(global_batch_size=1, num_virtual_nodes=1), job, [1])
    assert tried.facts["memory"]["measured_slices"] == [1]
    assert tried.warnings == []
