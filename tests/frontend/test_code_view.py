"""The code on a job's page: numbered lines, files of an archive, bounds, markup as text."""

from __future__ import annotations

import html
import io
import re
import zipfile
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from frontend.text.python_code import python_parts
from jobs.models import AuditEntry, Job
from jobs.selectors.code_text import SHOWN_BYTES, SHOWN_LINES, code_text
from tests.frontend.world import World, make_job
from tests.support.present import present


def give_code(job: Job, name: str, data: bytes) -> None:
    job.code.save(name, ContentFile(data), save=False)
    job.code_name, job.entry_file = name, "job.py"
    job.save()


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return buffer.getvalue()


def shown_text(page: str) -> str:
    """Return what a reader would copy: the text of the lines without their numbers."""
    block = present(re.search(r'<pre class="block code-text".*?>(.*?)</pre>', page, re.DOTALL))
    return html.unescape(re.sub(r"<[^>]+>", "", block[1]))


def test_code_stands_in_numbered_lines_that_can_be_linked(world: World, ada: Client) -> None:
    job = make_job(world.ada, "with code")
    code = "def build(settings):\n\n    return '<b>&amp;</b>'  # ähnlich \u202e\n"
    give_code(job, "mine.py", code.encode())
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert shown_text(page) == code.replace("\u202e", r"\u202e")
    assert '<span class="code-line" id="L3"><a href="#L3" data-line="3"' in page
    assert 'id="L4"' not in page
    assert 'data-copy="code-text"' in page
    # A live page keeps what it has: the code does not change.
    refreshed = ada.get(f"/jobs/{job.pk}/", headers={"X-Requested-With": "live"})
    assert 'id="L1"' not in refreshed.content.decode()


def test_files_of_an_archive_are_chosen(world: World, ada: Client) -> None:
    job = make_job(world.ada, "archive")
    files = {"job.py": b"import parts\n", "parts/net.py": b"SIZE = 3\n", "data.bin": b"a\0b"}
    give_code(job, "mine.zip", archive(files))
    address = f"/jobs/{job.pk}/"
    assert shown_text(ada.get(address).content.decode()) == "import parts\n"
    page = ada.get(f"{address}?file=parts/net.py").content.decode()
    assert shown_text(page) == "SIZE = 3\n"
    assert "<option selected>parts/net.py</option>" in page
    # Each of the page's two forms keeps what the other one chose.
    page = ada.get(f"{address}?file=parts/net.py&scale=log&smoothing=0.6").content.decode()
    kept = {"file": "parts/net.py", "scale": "log", "smoothing": "0.6"}
    for name, value in kept.items():
        assert page.count(f'<input type="hidden" name="{name}" value="{value}">') == 1, name
    assert "The file is no text." in ada.get(f"{address}?file=data.bin").content.decode()
    other = ada.get(f"{address}?file=../../secret").content.decode()
    assert shown_text(other) == "import parts\n"


@pytest.mark.parametrize(
    ("data", "num_lines"),
    [(b"x\n" * (SHOWN_LINES + 5), SHOWN_LINES), (b"x" * (2 * SHOWN_BYTES), 1)],
)
def test_long_files_are_bounded(world: World, ada: Client, data: bytes, num_lines: int) -> None:
    job = make_job(world.ada, "long")
    give_code(job, "mine.py", data)
    found = present(code_text(job))
    assert (len(found.lines), found.is_cut) == (num_lines, True)
    assert max(map(len, found.lines)) <= SHOWN_BYTES
    assert "the download has all" in ada.get(f"/jobs/{job.pk}/").content.decode()


def test_code_that_is_not_there(world: World, ada: Client) -> None:
    job = make_job(world.ada, "gone")
    give_code(job, "mine.zip", b"no archive")
    assert "The archive cannot be read." in ada.get(f"/jobs/{job.pk}/").content.decode()
    Path(job.code.path).unlink()
    assert ada.get(f"/jobs/{job.pk}/").status_code == 200
    assert code_text(job) is None
    Job.objects.filter(pk=job.pk).update(files_deleted_at=timezone.now())
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert 'id="code"' not in page
    assert 'href="#code"' not in page


def test_reading_the_code_of_others_is_noted(world: World, admin: Client) -> None:
    job = make_job(world.ada, "read")
    give_code(job, "mine.py", b"pass\n")
    admin.get(f"/jobs/{job.pk}/")
    assert AuditEntry.objects.filter(object=f"job:{job.pk}/code").count() == 1


def test_python_is_coloured_and_keeps_its_text(world: World, ada: Client) -> None:
    job = make_job(world.ada, "coloured")
    code = (
        "@keep\ndef build(settings):\n"
        "    '''Two <b>\n    lines.'''  # why & how\n"
        "    return 0x1F if x else 'é' \\\n        + \"<i>\"\n"
    )
    give_code(job, "mine.py", code.encode())
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert shown_text(page) == code
    assert re.findall(r'<span class="py-(\w+)">([^<]*)</span>', page) == [
        ("keyword", "def"), ("name", "build"),
        ("string", "&#x27;&#x27;&#x27;Two &lt;b&gt;"),
        ("string", "    lines.&#x27;&#x27;&#x27;"), ("comment", "# why &amp; how"),
        ("keyword", "return"), ("number", "0x1F"), ("keyword", "if"), ("keyword", "else"),
        ("string", "&#x27;é&#x27;"), ("string", "&quot;&lt;i&gt;&quot;"),
    ]  # fmt: skip


def test_other_files_have_no_colours(world: World, ada: Client) -> None:
    job = make_job(world.ada, "archive")
    give_code(job, "mine.zip", archive({"job.py": b"", "notes.txt": b"if 1"}))
    page = ada.get(f"/jobs/{job.pk}/?file=notes.txt").content.decode()
    assert shown_text(page) == "if 1\n"
    assert 'class="py-' not in page


@pytest.mark.parametrize(
    "lines",
    [["x = 1", "'''never closed", "y"], ["x = 1", "(" * 3000], ["x = 1", "  y", " z"],
     ["x = 1", "\0 $ ? !"], ["x = 1", "\f\t\x1c", "\\"], ["x = 1", "0_0_ 1e 0xg 'a"],
     ["x = 1", "y" * 401]],
)  # fmt: skip
def test_what_is_no_python_keeps_the_colours_before_it(lines: list[str]) -> None:
    assert python_parts(lines)[0] == [(4, 5, "number")]
    assert len(python_parts(lines)) == len(lines)


def test_the_time_for_colours_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.text.python_code._TIME_LIMIT_S", -1.0)
    assert python_parts(["x = 1"]) == [[]]


@given(st.lists(st.text("ab 01_'\"\\#()\t\f\r@é.:=\0\u2028", max_size=12), max_size=8))
def test_parts_are_in_order_within_their_lines(lines: list[str]) -> None:
    for line, parts in zip(lines, python_parts(lines), strict=True):
        ends = [0]
        for start, end, _ in parts:
            assert ends[-1] <= start < end <= len(line)
            ends.append(end)
