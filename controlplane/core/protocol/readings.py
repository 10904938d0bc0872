"""Readings of accelerators, which agents send with their reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.protocol.reported_values import BYTES_LIMIT, number, whole

#: Readings of one batch: the accelerators of a node.
READINGS_LIMIT = 64
#: Largest plausible temperature in °C and power in W of one accelerator.
_CELSIUS_LIMIT, _WATTS_LIMIT = 200.0, 10_000.0

_READERS = {
    "index": whole(0, 2**15),
    "utilisation_percent": number(0.0, 100.0),
    "memory_bytes": whole(0, BYTES_LIMIT),
    "temperature_c": number(-_CELSIUS_LIMIT, _CELSIUS_LIMIT),
    "power_w": number(0.0, _WATTS_LIMIT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorReading:
    """Use of one accelerator at a moment; None for what the device does not tell.

    Attributes:
        utilisation_percent: of a GPU, the part of the last moments in which a kernel ran; of an
            emulated accelerator, the part of its threads that its trainer used since the last one.
        memory_bytes: memory in use on the GPU, or resident in the trainer's processes.
    """

    index: int
    utilisation_percent: float | None = None
    memory_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


def readings_read(values: Any) -> tuple[list[AcceleratorReading], int]:
    """Read the readings of a batch; return them by accelerator, and the number of refused ones.

    A reading is refused if a value is out of its bounds, or its accelerator has one already.
    """
    if not isinstance(values, list | tuple):
        return [], 1
    found: dict[int, AcceleratorReading] = {}
    num_refused = max(0, len(values) - READINGS_LIMIT)
    for value in values[:READINGS_LIMIT]:
        try:
            reading = _reading_read(value)
        except ValueError:
            num_refused += 1
            continue
        num_refused += reading.index in found
        found.setdefault(reading.index, reading)
    return list(found.values()), num_refused


def _reading_read(value: Any) -> AcceleratorReading:
    if not isinstance(value, Mapping) or value.get("index") is None:
        raise ValueError("has no index")
    told = {
        name: reader(value[name])
        for name, reader in _READERS.items()
        if value.get(name) is not None
    }
    return AcceleratorReading(**told)
