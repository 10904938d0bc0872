"""Readings of accelerators: summed up into bins of a minute and of an hour, and deleted in time.

The bins belong to one accelerator each, and one agent writes them, so that no row is contended.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from controlplane.core.protocol.readings import AcceleratorReading, readings_read
from jobs import counters
from jobs.models import Accelerator, Node, ReadingBin
from jobs.selectors.readings import HOUR_S, MINUTE_S

logger = logging.getLogger(__name__)

#: Readings of an accelerator that follow sooner are left out.
SPACING_S = 1.0
#: Rows deleted by one run of the task, of each width.
EXPIRED_AT_ONCE = 50_000
_DELETED_AT_ONCE = 5_000
_MEANS = ("utilisation_percent", "memory_bytes", "temperature_c", "power_w")
_PEAKS = {"utilisation_peak": "utilisation_percent", "memory_peak": "memory_bytes"}

Key = tuple[int, int, datetime.datetime]


def readings_take(node: Node, values: Any, now: datetime.datetime) -> None:
    """Add a batch's readings to the bins of their accelerators.

    Readings that are out of bounds, or of accelerators that the node does not have, are counted as
    refused and left out.
    """
    readings, num_refused = readings_read(values)
    by_index = dict(
        Accelerator.objects.filter(node=node, is_present=True).values_list("index", "pk")
    )
    known = {by_index[one.index]: one for one in readings if one.index in by_index}
    num_refused += len(readings) - len(known)
    if num_refused:
        counters.count("reports_refused", amount=num_refused)
        logger.warning("%d readings of node %s are refused", num_refused, node.name)
    if known:
        _bins_write(known, now)


def _bins_write(readings: Mapping[int, AcceleratorReading], now: datetime.datetime) -> None:
    begins = {
        width_s: datetime.datetime.fromtimestamp(now.timestamp() // width_s * width_s, datetime.UTC)
        for width_s in (MINUTE_S, HOUR_S)
    }
    rows = ReadingBin.objects.filter(accelerator__in=readings, at__in=begins.values())
    found: dict[Key, ReadingBin] = {(row.accelerator_id, row.width_s, row.at): row for row in rows}
    changed = []
    for accelerator_id, reading in readings.items():
        for width_s, at in begins.items():
            row = found.get((accelerator_id, width_s, at))
            if row is None:
                row = ReadingBin(
                    accelerator_id=accelerator_id, width_s=width_s, at=at, num_readings=0
                )
            elif (now - row.read_at).total_seconds() < SPACING_S:
                continue
            _add(row, reading, now)
            changed.append(row)
    # A batch that is sent again at the same time writes the same rows.
    ReadingBin.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["accelerator", "width_s", "at"],
        update_fields=["read_at", "num_readings", *_MEANS, *_PEAKS],
    )


def _add(row: ReadingBin, reading: AcceleratorReading, now: datetime.datetime) -> None:
    """Move a bin's means and peaks by one reading."""
    row.num_readings += 1
    row.read_at = now
    for name in _MEANS:
        value, mean = getattr(reading, name), getattr(row, name)
        if value is not None:
            step = 0.0 if mean is None else (value - mean) / row.num_readings
            setattr(row, name, float(value) if mean is None else mean + step)
    for name, source in _PEAKS.items():
        value, peak = getattr(reading, source), getattr(row, name)
        if value is not None:
            setattr(row, name, float(value) if peak is None else max(peak, float(value)))


def readings_expire(now: datetime.datetime) -> int:
    """Delete bins past their retention, a limited number of them; return their number."""
    kept = {MINUTE_S: settings.READING_MINUTE_DAYS, HOUR_S: settings.READING_HOUR_DAYS}
    num_deleted = 0
    for width_s, days in kept.items():
        old = ReadingBin.objects.filter(
            width_s=width_s, at__lt=now - datetime.timedelta(days=days)
        ).order_by("at")
        for _ in range(EXPIRED_AT_ONCE // _DELETED_AT_ONCE):
            ids = list(old.values_list("pk", flat=True)[:_DELETED_AT_ONCE])
            ReadingBin.objects.filter(pk__in=ids).delete()
            num_deleted += len(ids)
            if len(ids) < _DELETED_AT_ONCE:
                break
    return num_deleted
