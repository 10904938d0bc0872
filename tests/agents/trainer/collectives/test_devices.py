"""Which device a trainer takes, and how its collectives are told to travel."""

from __future__ import annotations

import pytest
import tensorflow as tf

from agents.trainer.collectives.devices import configure_devices, is_emulated
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.failures import TrainerError
from controlplane.core.protocol.wire import AcceleratorInfo

GPU = AcceleratorInfo(index=0, kind="h200", name="NVIDIA H200", memory_bytes=1, uuid="GPU-1")
CPU = AcceleratorInfo(index=0, kind="slow", name="emulated", memory_bytes=1, threads=2)


def test_a_gpu_that_tensorflow_does_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(TrainerError, match=r"0 GPUs where it should see NVIDIA H200.*and-cuda"):
        configure_devices(GPU)


def test_memory_of_the_one_gpu_grows_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[tuple[str, bool]] = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind}:0"])
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, on: grown.append((gpu, on))
    )
    configure_devices(GPU)
    assert grown == [("GPU:0", True)]


def test_gpus_speak_nccl_and_emulated_accelerators_the_ring() -> None:
    assert (is_emulated(GPU), is_emulated(CPU)) == (False, True)
    assert CollectiveRuntime(0, GPU).hint == "nccl"
    assert CollectiveRuntime(0, CPU).hint == "auto"
