"""Readings of accelerators by the agent: a fake NVML, and real processes of a trainer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from agents.supervision.readings import READING_EVERY_S, AcceleratorReader, Readings
from controlplane.core.protocol.readings import AcceleratorReading
from controlplane.core.protocol.wire import AcceleratorInfo
from tests.agents.conftest import wait_until

GPUS = [
    AcceleratorInfo(index=i, kind="t4", name="T4", memory_bytes=2**34, uuid=f"GPU-{i}")
    for i in range(2)
]
#: Uses a third of a second of processor time in a child as well, then waits.
BUSY = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.3: pass\\n"
child = subprocess.Popen([sys.executable, "-c", burn + "print('done', flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
exec(burn)
print("done", flush=True)
input()
"""


class NvmlError(Exception):
    """Error of the fake in place of pynvml.NVMLError."""


class FakeNvml(SimpleNamespace):
    """pynvml with two GPUs; `silent` names what they do not tell, `is_down` is a lost driver."""

    NVMLError = NvmlError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *silent: str) -> None:
        super().__init__(silent=silent, is_down=False, num_open=0, lost="")

    def nvmlInit(self) -> None:  # noqa: N802
        self._up()
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        self._up()
        if uuid == self.lost:
            raise NvmlError("GPU is lost")
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> Any:  # noqa: N802
        return self._told("utilisation", SimpleNamespace(gpu=83, memory=20))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return self._told("memory", SimpleNamespace(used=2**30 * (handle + 1)))

    def nvmlDeviceGetTemperature(self, _handle: int, _sensor: int) -> Any:  # noqa: N802
        return self._told("temperature", 61)

    def nvmlDeviceGetPowerUsage(self, _handle: int) -> Any:  # noqa: N802
        return self._told("power", 70_500)

    def _told(self, name: str, value: Any) -> Any:
        self._up()
        if name in self.silent:
            raise NvmlError("Not Supported")
        return value

    def _up(self) -> None:
        if self.is_down:
            raise NvmlError("Driver Not Loaded")


def test_gpus_tell_all_that_they_know() -> None:
    readings = AcceleratorReader(GPUS, FakeNvml()).read({})
    assert readings == tuple(
        AcceleratorReading(
            index=i,
            utilisation_percent=83.0,
            memory_bytes=2**30 * (i + 1),
            temperature_c=61.0,
            power_w=70.5,
        )
        for i in range(2)
    )


@pytest.mark.parametrize(
    ("silent", "name"),
    [
        ("utilisation", "utilisation_percent"),
        ("memory", "memory_bytes"),
        ("temperature", "temperature_c"),
        ("power", "power_w"),
    ],
)
def test_a_value_that_a_gpu_does_not_tell_is_none(silent: str, name: str) -> None:
    reading, _ = AcceleratorReader(GPUS, FakeNvml(silent)).read({})
    told = {key: getattr(reading, key) is not None for key in reading.__slots__}
    assert [key for key, is_told in told.items() if not is_told] == [name]


def test_a_driver_that_goes_is_no_error_and_is_opened_again() -> None:
    nvml = FakeNvml()
    reader = AcceleratorReader(GPUS, nvml)
    assert len(reader.read({})) == 2
    nvml.is_down = True
    assert reader.read({}) == () == reader.read({})
    nvml.is_down = False
    assert len(reader.read({})) == 2
    nvml.lost = "GPU-0"
    assert [reading.index for reading in reader.read({})] == [1]
    assert nvml.num_open == 1


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    yield process
    process.communicate(b"\n")


def emulated(threads: int = 1) -> list[AcceleratorInfo]:
    return [AcceleratorInfo(index=4, kind="cpu", name="", memory_bytes=2**30, threads=threads)]


@pytest.mark.parametrize("threads", [1, 4])
def test_an_emulated_accelerator_tells_the_use_by_its_trainer(
    threads: int, trainer: subprocess.Popen[bytes]
) -> None:
    times = iter([2.0, 4.0])
    began_at = psutil.Process(trainer.pid).create_time()
    reader = AcceleratorReader(emulated(threads), clock=lambda: began_at + next(times))
    (first,) = reader.read({4: trainer.pid})
    assert first.utilisation_percent is not None
    assert first.memory_bytes is not None
    # 0.6 s and the starts of two interpreters in 2 s.
    assert 25 / threads < first.utilisation_percent <= 100 / threads
    assert first.memory_bytes > 2**22
    (second,) = reader.read({4: trainer.pid})
    assert second.utilisation_percent == pytest.approx(0.0, abs=5.0)


@pytest.mark.parametrize("pids", [{}, {4: 0}, {4: 2**22 + 1}])
def test_an_emulated_accelerator_without_a_process_is_unused(pids: dict[int, int]) -> None:
    (reading,) = AcceleratorReader(emulated(), clock=lambda: 2e9).read(pids)
    assert (reading.memory_bytes, reading.utilisation_percent or 0.0) == (0, 0.0)


def test_a_reading_is_taken_once_and_the_next_comes_when_due() -> None:
    readings = Readings(AcceleratorReader(emulated()), wake=lambda: None)

    def has_read(now: float) -> bool:
        readings.step(now, {})
        return bool(readings.newest)

    wait_until(lambda: has_read(0.0))
    assert len(readings.take()) == 1
    readings.step(READING_EVERY_S / 2, {})
    assert readings.take() == ()
    wait_until(lambda: has_read(READING_EVERY_S))


def test_a_reader_that_fails_does_not_end_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    reader = AcceleratorReader(GPUS, SimpleNamespace())  # a library without anything in it
    readings = Readings(reader, wake=lambda: None)

    def has_told() -> bool:
        readings.step(0.0, {})
        return "cannot be read" in caplog.text

    wait_until(has_told)
    assert readings.take() == ()
