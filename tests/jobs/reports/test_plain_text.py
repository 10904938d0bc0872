"""No terminal escape of a job's code gets past the control plane's edge."""

from __future__ import annotations

import dataclasses

import pytest

from controlplane.core.protocol import node_messages
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.plain_text import parts_shown
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, LogChunk
from jobs.selectors import logs
from jobs.selectors.log_lines import (
    WINDOW_BYTES,
    LogWindow,
    window_after,
    window_at,
    window_before,
)
from jobs.selectors.log_search import Wanted, log_search
from jobs.selectors.logs import log_since, log_tail, log_text
from jobs.services.reports.batches import batch_take
from jobs.services.reports.log_chunks import ROWS_LIMIT, log_chunks_store
from jobs.services.submission.validations import validation_start
from tests.jobs.world import World, settled
from tests.support.builders import at, job_make, node_make
from tests.support.messages import batch_of
from tests.support.rows import log_add

pytestmark = pytest.mark.django_db

BOLD = "\x1b[1m{}\x1b[0m"


def test_failures_are_told_in_plain_text() -> None:
    world, job = settled()
    played, trainer = world.trainers_of(job)[0]
    texts = {"message": BOLD.format("It broke"), "traceback": "\x1b]0;title\x07File\r\n  line\x07"}
    played.say(trainer, ReportKind.FAILED, code="user_code", **texts)
    batch_take(played.node, played.batch(), world.now)
    job.refresh_from_db()
    assert job.status_reason == "It broke"
    assert job.error_traceback == "File\n  line"
    assert job.events.get(kind="failed").message == "It broke"


def test_names_of_metrics_are_plain() -> None:
    world, job = settled()
    played, trainer = world.leader_of(job)
    values = {BOLD.format("loss"): 1.0}
    played.say(trainer, ReportKind.EPOCH, epoch=0, step=4, logs=values)
    batch_take(played.node, played.batch(), world.now)
    assert job.epoch_reports.get().logs == {"loss": 1.0}


def test_validations_are_told_in_plain_text() -> None:
    node, _ = node_make()
    job = job_make(status=JobStatus.VALIDATING)
    validation_start(job.validation, at(0))
    report = ValidationReport(
        validation_id=job.validation.pk,
        attempt=1,
        ok=False,
        code="user_code",
        field="code.build",
        message=BOLD.format("It does not build"),
        traceback=BOLD.format("Traceback"),
        facts={"summary": "\x1b[38;5;33mdense\x1b[0m │", "warnings": [BOLD.format("slow")]},
    )
    batch_take(node, batch_of(node, validations=(report,)), at(1))
    job.refresh_from_db()
    assert (job.status, job.status_reason) == ("invalid", "It does not build")
    assert job.error_traceback == "Traceback"
    assert job.facts == {"summary": "dense │", "warnings": ["slow"]}


def shown(window: LogWindow) -> list[str]:
    return [line.text for line in window.lines]


class TestLogs:
    def store(self, world: World, job: Job, text: str, cuts: list[int]) -> None:
        """Store a log in chunks, one batch each."""
        (played,) = world.nodes
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            offset = len(text[:start].encode())
            chunk = node_messages.LogChunk(
                job_id=job.pk, slot=0, offset=offset, text=text[start:end]
            )
            log_chunks_store(played.node, [chunk], world.now)

    @pytest.mark.parametrize("cut", range(1, 41, 3))
    def test_a_sequence_may_be_cut_anywhere(self, cut: int) -> None:
        world, job = settled()
        self.store(world, job, "é\x1b[1;31mred\x1b[0m \x1b]0;my title\x1b\\done\r\nnext\n", [cut])
        assert "".join(log_text(job, 0)) == "éred done\nnext\n"
        last = LogChunk.objects.filter(job=job).order_by("offset").last()
        assert last is not None
        assert last.offset + last.size_bytes == 42  # offsets count what the trainer wrote

    def test_many_cuts_in_one_sequence(self) -> None:
        world, job = settled()
        text = "a\x1b[38;5;196mb\x1b]8;;https://example.org\x07c"
        self.store(world, job, text, list(range(1, len(text))))
        assert "".join(log_text(job, 0)) == "abc"

    def test_a_repeat_that_has_grown_goes_on_in_the_middle_of_a_sequence(self) -> None:
        world, job = settled()
        (played,) = world.nodes
        chunk = node_messages.LogChunk(job_id=job.pk, slot=0, offset=0, text="a\x1b[3")
        log_chunks_store(played.node, [chunk], world.now)
        grown = dataclasses.replace(chunk, text="a\x1b[31mb")
        log_chunks_store(played.node, [grown], world.now)
        log_chunks_store(played.node, [grown], world.now)
        assert "".join(log_text(job, 0)) == "ab"

    def test_a_progress_bar_is_one_line_for_every_reader(self) -> None:
        world, job = settled()
        bar = "".join(f"\r{value:3}% loaded" for value in range(0, 101, 10))
        text = f"begin\n{bar}\nend\n"
        seen = log_since(job, 0, 0)
        shown = ""
        (played,) = world.nodes
        for start in range(0, len(text), 17):
            chunk = node_messages.LogChunk(
                job_id=job.pk, slot=0, offset=start, text=text[start : start + 17]
            )
            log_chunks_store(played.node, [chunk], world.now)
            seen = log_since(job, 0, seen.next_cursor)
            if seen.text.startswith("\r"):  # as the page does
                shown = shown[: shown.rfind("\n") + 1]
            shown += seen.text.removeprefix("\r")
        assert shown == "begin\n100% loaded\nend\n"
        assert "".join(log_text(job, 0)) == shown
        assert log_tail(job, 0).text == shown
        (match,) = log_search(job, 0, Wanted("loaded")).matches
        assert (match.line.offset, match.line.text) == (6, "100% loaded")

    @pytest.mark.parametrize("piece", ["loss 0.5 " * 18, "\r 50% loaded"])
    def test_a_line_that_never_ends_is_not_copied_with_each_part(
        self, piece: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many parts as a log may have; with a copy for each they would take an hour."""
        parts = [LogChunk(slot=0, text=piece)] * ROWS_LIMIT
        monkeypatch.setattr(logs, "chunks_from", lambda *_: parts)
        text = "".join(log_text(Job(), 0))
        assert text == parts_shown(piece * len(parts))

    def test_escape_sequences_alone_hide_no_line(self) -> None:
        """A window of them has no line, from which a page would not go on."""
        world, job = settled()
        nothing = "\x1b[0m" * (WINDOW_BYTES // 4 + 1)
        text = f"before\n{nothing}after\n{nothing}"
        end = len("before\n") + len(nothing)
        self.store(world, job, text, [7, end, end + 6])
        first, *_, last = LogChunk.objects.filter(job=job).order_by("offset")
        assert (first.text, last.text) == ("before\n", "")
        assert shown(window_before(job, None, None)) == ["before", "after"]
        assert shown(window_after(job, 0, first.pk)) == ["after"]
        assert shown(window_at(job, 0, end)) == ["after"]
        assert log_tail(job, 0).text == "before\nafter\n"
        assert log_since(job, 0, first.pk).text == "after\n"
        other = job_make()
        LogChunk.objects.filter(pk=last.pk).update(job=other, offset=0)
        assert shown(window_at(other, 0, 0)) == []

    def test_rows_stored_before_have_no_unfinished_sequence(self) -> None:
        job = job_make()
        log_add(job, "old ")
        assert "".join(log_text(job, 0)) == "old "
