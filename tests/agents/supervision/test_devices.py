"""What an agent finds on its machine, what it was told, and what a trainer sees of both."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from agents.settings import AgentSettings, settings_from
from agents.supervision import devices
from agents.supervision.devices import accelerator_environment, accelerators_found, kind_of
from agents.supervision.processes import trainer_environment
from agents.supervision.trainer_handle import Stage, TrainerHandle
from agents.trainer.contract.environment import FILTER_VARIABLE, heap_environment
from controlplane.core.protocol.node_messages import WantedTrainer
from controlplane.core.protocol.wire import AcceleratorInfo
from tests.agents.builders import agent_settings, membership, run_directory, training_spec

GIBIBYTE = 1024**3

#: Name, memory in bytes, UUID.
Gpu = tuple[str, int, str]


class NvmlError(Exception):
    """Error of the fake in place of pynvml.NVMLError."""


def fake_nvml(gpus: list[Gpu], *, has_driver: bool = True) -> SimpleNamespace:
    """Answer like pynvml on a machine with these GPUs; `opened` counts what was not shut down."""
    nvml = SimpleNamespace(NVMLError=NvmlError, opened=0)

    def start() -> None:
        if not has_driver:
            raise NvmlError("Driver Not Loaded")
        nvml.opened += 1

    def shut_down() -> None:
        nvml.opened -= 1

    def lost(index: int) -> None:
        if not gpus[index][1]:
            raise NvmlError("GPU is lost")

    nvml.nvmlInit = start
    nvml.nvmlShutdown = shut_down
    nvml.nvmlDeviceGetCount = lambda: len(gpus)
    nvml.nvmlDeviceGetHandleByIndex = lambda index: lost(index) or gpus[index]
    nvml.nvmlDeviceGetName = lambda gpu: gpu[0]
    nvml.nvmlDeviceGetMemoryInfo = lambda gpu: SimpleNamespace(total=gpu[1])
    nvml.nvmlDeviceGetUUID = lambda gpu: gpu[2]
    return nvml


MIXED: list[Gpu] = [("Tesla T4", 15 * GIBIBYTE, "GPU-1"), ("NVIDIA H200", 141 * GIBIBYTE, "GPU-2")]


def settings(tmp_path: Path, **changes: Any) -> AgentSettings:
    return agent_settings("http://127.0.0.1:8000", tmp_path, **changes)


def test_gpus_come_from_nvml_and_emulated_ones_after_them(tmp_path: Path) -> None:
    nvml = fake_nvml(MIXED)
    found = accelerators_found(settings(tmp_path, gpus="all", emulated=1, threads=2), nvml)
    assert [(item.index, item.kind, item.uuid, item.threads) for item in found] == [
        (0, "t4", "GPU-1", 0),
        (1, "h200", "GPU-2", 0),
        (2, "cpu", "", 2),
    ]
    assert found[1].memory_bytes == 141 * GIBIBYTE
    assert not nvml.opened
    # One that fell off the bus leaves the others theirs.
    for gpus in ("all", "0,1", "GPU-1,GPU-2"):
        alone = settings(tmp_path, gpus=gpus, emulated=0)
        rest = accelerators_found(alone, fake_nvml([("T4", 0, ""), MIXED[1]]))
        assert rest == (found[1],)
        both = settings(tmp_path, gpus=gpus, emulated=1, threads=2)
        assert accelerators_found(both, fake_nvml([MIXED[0], ("H200", 0, "")])) == found[::2]


def test_a_choice_of_gpus_keeps_their_indices(tmp_path: Path) -> None:
    chosen = settings(tmp_path, gpus="1", emulated=1)
    found = accelerators_found(chosen, fake_nvml(MIXED))
    assert [(item.index, item.kind) for item in found] == [(1, "h200"), (2, "cpu")]
    by_uuid = accelerators_found(settings(tmp_path, gpus="GPU-2"), fake_nvml(MIXED))
    assert by_uuid[0] == found[0]
    with pytest.raises(ValueError, match="--gpus names 5; there are 0, 1, GPU-1, GPU-2"):
        accelerators_found(settings(tmp_path, gpus="5"), fake_nvml(MIXED))


def test_no_driver_is_no_gpu_unless_one_was_asked_for(tmp_path: Path) -> None:
    none = fake_nvml([], has_driver=False)
    assert len(accelerators_found(settings(tmp_path, gpus="all", emulated=2), none)) == 2
    with pytest.raises(ValueError, match="give --emulate 2"):
        accelerators_found(settings(tmp_path, gpus="all", emulated=0), none)
    with pytest.raises(ValueError, match="--gpus 0: NVML does not start"):
        accelerators_found(settings(tmp_path, gpus="0"), none)


@pytest.mark.parametrize(
    ("product", "kind"),
    [
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA GeForce RTX 3090", "geforce-rtx-3090"),
        ("NVIDIA", "gpu"),
    ],
)
def test_kinds(product: str, kind: str) -> None:
    assert kind_of(product) == kind


def test_a_running_trainer_holds_its_gpu_at_whatever_index(tmp_path: Path) -> None:
    """The first GPU has fallen off the bus between two agent processes."""
    directory = run_directory(tmp_path)
    wanted = WantedTrainer(
        spec=training_spec("0" * 64),
        slot=2,
        accelerator_index=1,
        membership=membership(1, 2),
        go=True,
        code_name="job.py",
    )

    def handle(nvml: Any) -> tuple[TrainerHandle, dict[int, AcceleratorInfo]]:
        found = accelerators_found(settings(tmp_path, gpus="all", emulated=1), nvml)
        offered = {item.index: item for item in found}
        isolation = SimpleNamespace(reach=lambda *_: None)
        context: Any = SimpleNamespace(
            settings=settings(tmp_path), accelerators=offered, isolation=isolation
        )
        return TrainerHandle(directory, context), offered

    first, _ = handle(fake_nvml(MIXED))
    first._write_orders(wanted)
    second, offered = handle(fake_nvml([MIXED[1]]))
    second._orders, second.stage = directory.read_orders(), Stage.RUNNING
    second.follow(dataclasses.replace(wanted, go=False))
    assert [offered[0].uuid, offered[1].kind] == ["GPU-2", "cpu"]
    assert [second.holds(item) for item in offered.values()] == [True, False]


def test_a_trainer_sees_its_own_accelerator_only(tmp_path: Path) -> None:
    both = accelerators_found(settings(tmp_path, gpus="1", emulated=1, threads=3), fake_nvml(MIXED))
    gpu, emulated = (accelerator_environment(item) for item in both)
    assert gpu["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    assert emulated == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "OMP_NUM_THREADS": "3",
        **heap_environment(3),
    }
    assert "MALLOC_ARENA_MAX" not in gpu


def test_environment_of_a_trainer_is_built_not_inherited(tmp_path: Path) -> None:
    around = {"PATH": "/bin", "HOME": "/home/a", "REDIS_URL": "secret", "PYTHONPATH": "/lib/x"}
    environment = trainer_environment(around, tmp_path, {"CUDA_VISIBLE_DEVICES": "-1"})
    assert environment["PATH"] == "/bin"
    assert environment["PYTHONPATH"].split(os.pathsep)[1:] == ["/lib/x"]
    assert "REDIS_URL" not in environment
    assert environment[FILTER_VARIABLE] == "1"
    kept = trainer_environment(around, tmp_path, {}, kept=["REDIS_URL"], filters_peers=False)
    assert kept["REDIS_URL"] == "secret"
    assert kept[FILTER_VARIABLE] == "0"


def test_settings_from_variables_and_a_token_file(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one-time\n")
    variables = {
        "VIRTUALFLOW_SERVER": "https://web:8000/",
        "VIRTUALFLOW_NODE": "node-b",
        "VIRTUALFLOW_STATE_DIR": str(tmp_path),
        "VIRTUALFLOW_ENROLMENT_TOKEN_FILE": str(secret),
        "VIRTUALFLOW_EMULATE": "3",
        "VIRTUALFLOW_PORTS": "30000-30099",
        "VIRTUALFLOW_KEEP_ENVIRONMENT": "DATA_HOME, HF_HOME",
    }
    found = settings_from(["--node", "node-c"], variables)
    assert (found.server, found.node) == ("https://web:8000", "node-c")
    assert (found.emulated, found.gpus, found.enrolment_token) == (3, "none", "one-time")
    assert (found.first_port, found.last_port) == (30000, 30099)
    assert found.kept_environment == ("DATA_HOME", "HF_HOME")
    assert found.peer_filter is True
    without = variables | {"VIRTUALFLOW_PEER_FILTER": "0"}
    assert settings_from([], without).peer_filter is False
    assert settings_from(["--peer-filter"], without).peer_filter is True
    assert settings_from(["--no-peer-filter"], variables).peer_filter is False
    with pytest.raises(ValueError, match="--peer-filter must be 0 or 1"):
        settings_from([], variables | {"VIRTUALFLOW_PEER_FILTER": "no"})


def test_a_driver_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Queue[str] = Queue()
    monkeypatch.setattr(devices, "SLOW_S", 0.001)
    monkeypatch.setattr(devices.log, "warning", told.put)
    nvml = fake_nvml(MIXED)
    nvml.nvmlInit = lambda: told.put(told.get(timeout=10))
    accelerators_found(settings(tmp_path, gpus="all"), nvml)
    assert "nvidia-smi" in told.get(timeout=10)
