"""Reports of a job that selects its examples: which it chose most often, and that it stops.

Previews are PNG files (ISO/IEC 15948) made here, so that no bytes of a job are served.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from django.db.models import F

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.selection import MOST_CHOSEN_LIMIT, EndReason, SelectionEnd
from controlplane.core.protocol.wire import TrainerReport
from jobs.models import Allocation, ExamplePreview, Job, StepReport
from jobs.selectors.selection import selection_end_text
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.report_context import ReportContext

#: Previews of a job.
PREVIEWS_KEPT = 5 * MOST_CHOSEN_LIMIT


def most_chosen_take(job: Job, data: Mapping[str, Any]) -> None:
    """Keep the examples chosen most often of an epoch's report, and their previews.

    Earlier previews are kept for pages that are open, up to `PREVIEWS_KEPT`.
    """
    if job.selection_spec is None or job.files_deleted_at is not None:
        return
    most_chosen = data.get("most_chosen") or []
    job.update_columns(most_chosen=most_chosen)
    places = {place for place, _ in most_chosen}
    previews = [
        ExamplePreview(
            job=job,
            place=preview["place"],
            label=preview.get("label", ""),
            image=_png(preview.get("picture")),
        )
        for preview in {one.get("place"): one for one in data.get("previews") or []}.values()
        if preview.get("place") in places
    ]
    others = job.example_previews.exclude(place__in=places).order_by("-pk")
    old = others.values_list("pk", flat=True)[PREVIEWS_KEPT - len(places) :]
    ExamplePreview.objects.filter(pk__in=list(old)).delete()
    ExamplePreview.objects.bulk_create(
        previews,
        update_conflicts=True,
        unique_fields=("job", "place"),
        update_fields=("label", "image"),
    )


def _png(picture: Mapping[str, Any] | None) -> bytes | None:
    if picture is None:
        return None
    pixels = base64.b64decode(picture["pixels"])
    return png_encode(picture["height"], picture["width"], picture["channels"], pixels)


def selection_end_take(
    context: ReportContext, _allocation: Allocation, report: TrainerReport
) -> None:
    """Keep why the job stops selecting; only its first report is an event.

    A new leader repeats the report; a job that restarts from an older checkpoint decides again.

    Raises:
        ValueError: the job does not select in the epoch before, or has no such reason.
    """
    job, spec = context.job, context.job.selection_spec
    end = decode(SelectionEnd, report.data)
    if spec is None or not spec.selects(end.epoch - 1):
        raise ValueError(f"epoch {end.epoch} does not follow one that selects")
    if end.reason is EndReason.CONTROL and spec.control_every is None:
        raise ValueError("the job has no control epochs")
    is_first = not job.selection_ended
    job.update_columns(selection_ended=encode(end))
    if is_first:
        text = selection_end_text(end)
        event_add("selection_ended", text, now=context.now, job=job, data=job.selection_ended)


def passes_take(job: Job, passed: Mapping[str, Any]) -> None:
    """Add the selection passes after the job's last step to the report of that step."""
    last = StepReport.objects.filter(job=job).order_by("-last_step").first()
    if last is None or job.selection_spec is None or not passed.get("candidates"):
        return
    seconds = passed.get("seconds", 0.0)
    StepReport.objects.filter(pk=last.pk).update(
        candidates=F("candidates") + passed["candidates"],
        analysed=F("analysed") + passed.get("analysed", 0),
        pass_s=F("pass_s") + seconds,
        seconds=F("seconds") + seconds,
    )


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Colour types by number of channels: grey, and red, green and blue.
_COLOUR_TYPES = {1: 0, 3: 2}


def png_encode(height: int, width: int, channels: int, pixels: bytes) -> bytes:
    """Encode rows of pixels with one or three channels of 8 bits."""
    row = width * channels
    assert len(pixels) == height * row, "one byte for each channel of each pixel"
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    lines = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
