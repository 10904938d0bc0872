"""Levels of lines, windows of a log, and its search: bounds, cursors and context."""

from __future__ import annotations

import pytest

from jobs.models import Job, LogChunk
from jobs.selectors import log_search as module
from jobs.selectors.log_lines import (
    MAX_LINE,
    WINDOW_BYTES,
    has_level,
    level_of,
    may_tell_level,
    window_after,
    window_at,
    window_before,
)
from jobs.selectors.log_search import LogSearch, SearchBound, Wanted, log_search
from tests.support.builders import at, job_make
from tests.support.rows import log_add


def add(job: Job, *texts: str, slot: int = 0) -> None:
    """Store texts as the next chunks of a trainer's log."""
    offset = sum(LogChunk.objects.filter(job=job, slot=slot).values_list("size_bytes", flat=True))
    for text in texts:
        log_add(job, text, slot=slot, offset=offset, now=at(offset))
        offset += len(text.encode())


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("WARNING:root:low disk", "warning"),
        ("2026-03-01 12:00:00,123 - trainer - ERROR - lost", "error"),
        ("2026-03-01 12:00:00 INFO epoch 3", "info"),
        ("[DEBUG] cache", "debug"),
        ("CRITICAL: stop", "error"),
        ("W0301 12:00:00.123456 1234 file.py:7] slow", "warning"),
        ("2026-03-01 12:00:00.123456: I tensorflow/core/x.cc:1] started", "info"),
        ("2026-03-01 12:00:00.123456: F tensorflow/core/x.cc:1] dead", "error"),
        ('{"time": "2026", "level": "WARNING", "message": "x"}', "warning"),
        ('{"levelname":"odd"}', "output"),
        ("/site/keras/layer.py:93: UserWarning: shapes", "warning"),
        ("Traceback (most recent call last):", "error"),
        ("ValueError: no data", "error"),
        ("keras.errors.ShapeError: odd", "error"),
        ("KeyError", "error"),
        ("error rate 0.5", "output"),
        ("INFORMATION", "output"),
        ("Warnings are off", "output"),
        ("Epoch 3/5", "output"),
        ("12:00:00 step 7 loss 0.5", "output"),
        ("", "output"),
    ],
)
def test_a_line_tells_its_level_by_its_form(text: str, level: str) -> None:
    assert level_of(text) == level
    assert level == "output" or may_tell_level(f"one\n{text}\ntwo")


def test_a_filter_passes_its_level_and_above() -> None:
    levels = ["output", "debug", "info", "warning", "error"]
    passed = {wanted: [one for one in levels if has_level(one, wanted)] for wanted in ("", *levels)}
    assert passed == {
        "": levels, "output": ["output"], "debug": levels[1:], "info": levels[2:],
        "warning": levels[3:], "error": ["error"],
    }  # fmt: skip


def texts(found: list[LogSearch]) -> list[str]:
    return [match.line.text for one in found for match in one.matches]


@pytest.mark.django_db
class TestSearch:
    def all_of(self, job: Job, wanted: Wanted) -> list[LogSearch]:
        """Search to the end of the log, by cursors."""
        found = [log_search(job, None, wanted)]
        while found[-1].next_cursor:
            found.append(log_search(job, None, wanted, found[-1].next_cursor))
            assert len(found) < 100
        return found

    @pytest.mark.parametrize("size", [1, 3, 7, 1000])
    @pytest.mark.parametrize("bound", [1, 10**6])
    def test_chunks_and_bounds_change_nothing(
        self, monkeypatch: pytest.MonkeyPatch, size: int, bound: int
    ) -> None:
        monkeypatch.setattr(module, "SEARCHED_BYTES", bound)
        job = job_make()
        text = "é one\n\nTwo one\nthree\nONE" + "\nfour" * 4 + "\none at the end"
        add(job, *(text[start : start + size] for start in range(0, len(text), size)))
        add(job, "one more", slot=4)
        found = self.all_of(job, Wanted("one"))
        lines = [match.line for one in found for match in one.matches]
        expected = ["é one", "Two one", "ONE", "one at the end", "one more"]
        assert [line.text for line in lines] == expected
        assert [(line.slot, line.offset) for line in lines] == [
            (0, 0), (0, 8), (0, 22), (0, 46), (4, 0),
        ]  # fmt: skip

    def test_context_is_that_of_grep(self) -> None:
        job = job_make()
        add(job, *(f"line {i}\n" for i in range(10)), slot=1)
        add(job, "line 0\n", slot=2)
        found = log_search(job, 1, Wanted("line 3", context=2)).matches
        around = [[line.text for line in lines] for lines in (found[0].before, found[0].after)]
        assert around == [["line 1", "line 2"], ["line 4", "line 5"]]
        add(job, "line 33\n", "x\n", "line 34\n", slot=1)
        parts = [
            ([line.text for line in one.before], one.line.text, [line.text for line in one.after])
            for one in log_search(job, None, Wanted("line 3", context=2)).matches
        ]
        assert parts == [
            (["line 1", "line 2"], "line 3", ["line 4", "line 5"]),
            (["line 8", "line 9"], "line 33", ["x"]),
            ([], "line 34", []),
        ]

    def test_a_cut_context_is_whole_after_the_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SEARCHED_BYTES", 8)
        job = job_make()
        add(job, "one\ntwo\n", "three\nfour\n")
        first, second = self.all_of(job, Wanted("three", context=1))
        assert (first.matches, first.stopped, first.next_cursor) == ([], SearchBound.BYTES, "0.8")
        assert [line.text for line in second.matches[0].before] == ["two"]

    def test_matches_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MATCHES_LIMIT", 3)
        job = job_make()
        add(job, "".join(f"match {i}\n" for i in range(7)), "last match")
        found = self.all_of(job, Wanted("match"))
        assert [len(one.matches) for one in found] == [3, 3, 2]
        assert [one.stopped for one in found] == [
            SearchBound.MATCHES,
            SearchBound.MATCHES,
            SearchBound.END,
        ]
        assert texts(found) == [
            *(f"match {i}" for i in range(7)), "last match",
        ]  # fmt: skip

    def test_time_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SEARCHED_S", -1.0)
        job = job_make()
        add(job, "one\n", "two\n", "three\n")
        found = self.all_of(job, Wanted("e"))
        assert [one.stopped for one in found] == [
            SearchBound.TIME,
            SearchBound.TIME,
            SearchBound.END,
        ]
        assert texts(found) == ["one", "three"]

    def test_a_line_without_an_end_is_searched_in_pieces(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_LONGEST", 8)
        monkeypatch.setattr(module, "SEARCHED_BYTES", 1)
        job = job_make()
        add(job, *["abcd"] * 6)
        found = self.all_of(job, Wanted("cd"))
        assert texts(found) == ["abcdabcd"] * 3

    def test_a_long_line_is_searched_to_its_end(self) -> None:
        job = job_make()
        add(job, "x" * MAX_LINE + " found\n")
        (match,) = log_search(job, None, Wanted("FOUND")).matches
        assert match.line.text == "x" * MAX_LINE

    def test_a_cursor_that_is_none(self) -> None:
        for cursor in ("7", "1.", "a.b", "-1.0", "1.2.3", "٣.٣"):
            with pytest.raises(ValueError, match="no cursor"):
                log_search(job_make(), None, Wanted("x"), cursor)


@pytest.mark.django_db
class TestWindows:
    def test_no_log(self) -> None:
        job = job_make()
        assert window_before(job, None, None).lines == window_at(job, 0, 5).lines == []

    def test_lines_of_trainers_go_on_where_they_were(self) -> None:
        job = job_make()
        add(job, "one, ")
        add(job, "other\n", slot=1)
        newest = window_before(job, None, None)
        add(job, "one again\n50 %")
        add(job, "\r100 %\n", slot=0)
        rows = [
            (line.slot, line.text, line.continues, line.replaces)
            for line in window_after(job, None, newest.next_cursor).lines
        ]
        assert rows == [
            (0, "one again", True, False), (0, "50 %", False, False), (0, "100 %", True, True),
        ]  # fmt: skip

    def test_a_place_in_the_log(self) -> None:
        job = job_make()
        add(job, "zero\n", "one\n", "two\n", slot=2)
        found = window_at(job, 2, 9)
        assert [line.text for line in found.lines] == ["one", "two"]
        assert (found.has_earlier, found.has_later) == (True, False)
        assert window_at(job, 2, 7).lines[0].text == "zero"

    def test_a_place_in_full_chunks(self) -> None:
        job = job_make()
        add(job, *(f"{i:07}\n" * (WINDOW_BYTES // 8) for i in range(5)))
        offset = 3 * WINDOW_BYTES + 8
        found = window_at(job, 0, offset)
        assert "0000003" in [line.text for line in found.lines if line.offset == offset]
        assert (found.has_earlier, found.has_later) == (True, False)
        assert len(window_before(job, 0, None).lines) == WINDOW_BYTES // 8
