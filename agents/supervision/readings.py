"""Readings of accelerators: utilisation and memory, of GPUs also temperature and power.

GPUs are read by NVML. Of an emulated accelerator the processes of its trainer are read: processor
time as a part of its threads, and resident memory. A value that a device does not tell is None.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psutil
import pynvml

from agents.session.background import Background
from controlplane.core.protocol.readings import AcceleratorReading
from controlplane.core.protocol.wire import AcceleratorInfo

log = logging.getLogger("agents")

#: Time between two readings. Each is sent with the next report, once.
READING_EVERY_S = 10.0
#: Processes of one trainer that are read, at most.
PROCESSES_LIMIT = 256


@dataclass(frozen=True, slots=True)
class _ProcessorTime:
    """Processor time that a trainer's processes had used at a time, both in seconds."""

    pid: int
    used_s: float
    at: float


class AcceleratorReader:
    """Reads a node's accelerators, one reading at a time, in any thread."""

    def __init__(
        self,
        accelerators: Sequence[AcceleratorInfo],
        nvml: Any = pynvml,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare only; `clock` gives seconds since the epoch."""
        self._accelerators = accelerators
        self._nvml = nvml
        self._clock = clock
        self._is_open = False
        self._is_told = False
        self._before: dict[int, _ProcessorTime] = {}

    def read(self, pids: Mapping[int, int]) -> tuple[AcceleratorReading, ...]:
        """Read all accelerators that can be read.

        Args:
            pids: index of an accelerator -> process id of its trainer.
        """
        found = []
        if any(item.uuid for item in self._accelerators):
            found += self._gpus()
        for item in self._accelerators:
            if not item.uuid:
                found.append(self._emulated(item, pids.get(item.index, 0)))
        return tuple(found)

    def _gpus(self) -> list[AcceleratorReading]:
        nvml, handles = self._nvml, {}
        error = None
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
        except nvml.NVMLError as failed:
            error = failed
        for item in self._accelerators if self._is_open else ():
            try:
                if item.uuid:
                    handles[item.index] = nvml.nvmlDeviceGetHandleByUUID(item.uuid)
            except nvml.NVMLError as failed:  # of one GPU, or of the driver
                error = failed
        if error and not self._is_told:
            log.warning("the GPUs cannot be read, or not all: %s", error)
            self._is_told = True
        if not handles and self._is_open:
            # A driver that was updated or reset is opened again at the next reading.
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            self._is_open = False
        return [self._gpu(index, handle) for index, handle in handles.items()]

    def _gpu(self, index: int, handle: Any) -> AcceleratorReading:
        nvml = self._nvml

        def told(call: Callable[[], float]) -> float | None:
            try:
                return float(call())
            except nvml.NVMLError:  # this device does not tell it
                return None

        memory = told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        celsius = nvml.NVML_TEMPERATURE_GPU
        milliwatts = told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return AcceleratorReading(
            index=index,
            utilisation_percent=told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            memory_bytes=None if memory is None else int(memory),
            temperature_c=told(lambda: nvml.nvmlDeviceGetTemperature(handle, celsius)),
            power_w=None if milliwatts is None else milliwatts / 1000.0,
        )

    def _emulated(self, accelerator: AcceleratorInfo, pid: int) -> AcceleratorReading:
        if not pid:
            self._before.pop(accelerator.index, None)
            return AcceleratorReading(
                index=accelerator.index, utilisation_percent=0.0, memory_bytes=0
            )
        used_s, memory_bytes, began_at = _processes_read(pid)
        now = self._clock()
        before = self._before.get(accelerator.index)
        if before is None or before.pid != pid:
            before = _ProcessorTime(pid, 0.0, began_at)
        self._before[accelerator.index] = _ProcessorTime(pid, used_s, now)
        available_s = (now - before.at) * max(1, accelerator.threads)
        if available_s <= 0.0:
            return AcceleratorReading(index=accelerator.index, memory_bytes=memory_bytes)
        # Processes that have ended take their time with them.
        share = max(0.0, used_s - before.used_s) / available_s
        return AcceleratorReading(
            index=accelerator.index,
            utilisation_percent=round(min(1.0, share) * 100.0, 1),
            memory_bytes=memory_bytes,
        )


def _processes_read(pid: int) -> tuple[float, int, float]:
    """Return processor seconds and resident bytes of a process with its children, and its birth.

    A process that has gone, or whose /proc is not readable, counts nothing.
    """
    used_s, memory_bytes, began_at = 0.0, 0, time.time()
    try:
        parent = psutil.Process(pid)
        began_at = parent.create_time()
        processes = [parent, *parent.children(recursive=True)[: PROCESSES_LIMIT - 1]]
    except psutil.Error:
        return used_s, memory_bytes, began_at
    for process in processes:
        with contextlib.suppress(psutil.Error), process.oneshot():
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
            memory_bytes += process.memory_info().rss
    return used_s, memory_bytes, began_at


class Readings:
    """Newest readings for the next report; reading happens in the background.

    Attributes:
        newest: readings that have not been taken yet.
    """

    def __init__(self, reader: AcceleratorReader, wake: Callable[[], None]) -> None:
        self.newest: tuple[AcceleratorReading, ...] = ()
        self._reader = reader
        self._background = Background(1, wake)
        self._reading: Future[tuple[AcceleratorReading, ...]] | None = None
        self._due_at = float("-inf")
        self._is_told = False

    def step(self, now: float, pids: Mapping[int, int]) -> None:
        """Collect a finished reading, and start one when it is due; never blocks."""
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            error = reading.exception()
            if error is None:
                self.newest = reading.result()
            elif not self._is_told:
                log.warning("the accelerators cannot be read", exc_info=error)
                self._is_told = True
        if self._reading is None and now >= self._due_at:
            self._due_at = now + READING_EVERY_S
            taken = dict(pids)
            self._reading = self._background.start("readings", lambda: self._reader.read(taken))

    def take(self) -> tuple[AcceleratorReading, ...]:
        """Return the newest readings, each only once."""
        taken, self.newest = self.newest, ()
        return taken
