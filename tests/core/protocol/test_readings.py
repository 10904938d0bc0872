"""Readings of accelerators: bounded, and refused one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.node_messages import ReportBatch
from controlplane.core.protocol.readings import AcceleratorReading, readings_read

SOUND = {"index": 1, "utilisation_percent": 40.5, "memory_bytes": 2**30}
HOSTILE = [
    {"index": 0, "utilisation_percent": math.nan}, {"index": 0, "utilisation_percent": -0.1},
    {"index": 0, "utilisation_percent": 100.1}, {"index": 0, "utilisation_percent": True},
    {"index": 0, "utilisation_percent": "40"}, {"index": 0, "memory_bytes": 2**63},
    {"index": 0, "memory_bytes": -1}, {"index": 0, "memory_bytes": 0.5},
    {"index": 0, "temperature_c": math.inf}, {"index": 0, "temperature_c": 1e9},
    {"index": 0, "power_w": -math.inf}, {"index": 0, "power_w": 10**400}, {"index": -1},
    {"index": 2**40}, {"index": None}, {"index": "0"}, {"index": [0]}, {}, [], None, 7, "text",
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_reading_out_of_bounds_is_refused_alone(hostile: Any) -> None:
    expected = AcceleratorReading(index=1, utilisation_percent=40.5, memory_bytes=2**30)
    assert readings_read([hostile, SOUND]) == ([expected], 1)


def test_values_that_are_not_told_or_not_known_are_no_fault() -> None:
    told = {"index": 0, "power_w": None, "fan": 7}
    assert readings_read([told]) == ([AcceleratorReading(index=0)], 0)


def test_repeated_and_too_many_readings_are_counted() -> None:
    readings, num_refused = readings_read([{"index": i} for i in (0, 0, *range(1, 70))])
    assert (len(readings), num_refused) == (63, 8)


@pytest.mark.parametrize("values", [7, "text", {"index": 0}, True])
def test_no_list_is_one_refusal(values: Any) -> None:
    assert readings_read(values) == ([], 1)


def test_a_batch_carries_any_readings_and_old_agents_send_none() -> None:
    batch = ReportBatch(
        boot_id="b", sent_at=0.0, trainers=(), reports=(), logs=(), validations=(),
        readings=(AcceleratorReading(index=3, power_w=70.0),),
    )  # fmt: skip
    sent = encode(batch)
    assert readings_read(decode(ReportBatch, sent).readings)[0] == list(batch.readings)
    assert decode(ReportBatch, {**sent, "readings": 5}).readings == 5
    del sent["readings"]
    assert decode(ReportBatch, sent).readings == ()
