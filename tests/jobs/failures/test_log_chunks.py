"""Chunks of logs: repeated, out of order, left out, and of logs beyond their limit."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import Sum

from controlplane.core.protocol import node_messages
from jobs.models import Job, LogChunk
from jobs.services.reports import log_chunks
from jobs.services.reports.log_chunks import log_chunks_store
from tests.jobs.world import World, settled

pytestmark = pytest.mark.django_db


class TestLogs:
    def store(self, world: World, job: Job, *chunks: tuple[int, str]) -> str:
        (played,) = world.nodes
        rows = [node_messages.LogChunk(job_id=job.pk, slot=0, offset=o, text=t) for o, t in chunks]
        log_chunks_store(played.node, rows, world.now)
        return "".join(
            LogChunk.objects.filter(job=job).order_by("offset").values_list("text", flat=True)
        )

    def test_chunks_join_whatever_comes_again(self) -> None:
        world, job = settled()
        assert self.store(world, job, (0, "one ")) == "one "
        assert self.store(world, job, (0, "one "), (4, "two ")) == "one two "
        assert self.store(world, job, (4, "two three")) == "one two three"
        assert self.store(world, job, (4, "two three")) == "one two three"

    def test_offsets_are_bytes_not_letters(self) -> None:
        world, job = settled()
        assert self.store(world, job, (0, "é"), (2, "è")) == "éè"
        assert self.store(world, job, (2, "èê")) == "éèê"

    def test_what_the_agent_left_out_is_noted(self) -> None:
        world, job = settled()
        assert self.store(world, job, (0, "one\ntw"), (1_000_006, "\rnew\n")) == (
            "one\ntw\n[1,000,000 bytes of this log are left out]\nnew\n"
        )

    def test_of_a_long_log_beginning_and_newest_part_are_kept(self, settings: Any) -> None:
        settings.LOG_LIMIT_BYTES = 160
        world, job = settled()
        lines = [f"{number:09}\n" for number in range(40)]
        for number, line in enumerate(lines):
            text = self.store(world, job, (10 * number, line))
            size = LogChunk.objects.aggregate(size=Sum("size_bytes"))["size"]
            assert size <= 160
            assert text.startswith("".join(lines[: min(number + 1, 4)]))
            assert text.endswith("".join(lines[max(0, number - 9) : number + 1]))
        kept = text.partition("]\n")[2]
        left_out = 400 - 40 - len(kept)
        assert text == (
            "".join(lines[:4]) + f"\n[{left_out} bytes of this log are left out]\n" + kept
        )

    def test_a_long_log_in_large_parts_keeps_its_newest_part(self, settings: Any) -> None:
        settings.LOG_LIMIT_BYTES = 16
        world, job = settled()
        chunks = [(20 * number, f"{number:020}") for number in range(4)]
        text = self.store(world, job, *chunks)
        assert text.startswith("0" * 20)
        assert text.endswith(f"{3:020}")
        assert "[40 bytes of this log are left out]" in text

    @pytest.mark.parametrize("distance", [1, 3, 10**15])
    def test_a_log_in_tiny_parts_has_few_rows(
        self, distance: int, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.LOG_LIMIT_BYTES = 4_000
        monkeypatch.setattr(log_chunks, "ROWS_LIMIT", 40)
        world, job = settled()
        for batch in range(10):
            numbers = range(20 * batch, 20 * batch + 20)
            text = self.store(world, job, *((n * distance, chr(97 + n % 26)) for n in numbers))
            assert LogChunk.objects.count() <= 40
            assert text.startswith("a")
            assert text.endswith(chr(97 + numbers[-1] % 26))
        assert "bytes of this log are left out]" in text
