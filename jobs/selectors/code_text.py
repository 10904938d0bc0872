"""Code of a job as text, bounded: of a single file, or of one file of an archive."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass

from controlplane.core.protocol.plain_text import REORDERING
from jobs.exceptions import GoneError
from jobs.models import Job
from jobs.selectors.retention import code_open

#: Most bytes and lines of a file that are shown.
SHOWN_BYTES = 128 * 1024
SHOWN_LINES = 2_000
#: Code must not look like other code than it is: with these a comment can pass for a statement.
_VISIBLE = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in REORDERING})
#: Most files of an archive that are named.
_FILES_LIMIT = 200


@dataclass(frozen=True, slots=True)
class CodeText:
    """A file of a job's code.

    Attributes:
        names: files of the archive; empty if the code is a single file.
        is_cut: the file goes on.
        problem: why there are no lines; else empty.
    """

    name: str
    names: list[str]
    lines: list[str]
    is_cut: bool = False
    problem: str = ""


def code_text(job: Job, name: str = "") -> CodeText | None:
    """Read a file of a job's code, by default the entry file; archives were checked as they came.

    Returns:
        None if the code is deleted, or an archive has no such file.
    """
    try:
        with code_open(job) as file:
            if not job.code_name.lower().endswith(".zip"):
                return None if name else _text(job.code_name, [], file.read(SHOWN_BYTES + 1))
            with zipfile.ZipFile(file) as archive:
                return _of_archive(archive, name or job.entry_file)
    except (GoneError, OSError):
        return None
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return CodeText(job.code_name, [], [], problem="The archive cannot be read.")


def _of_archive(archive: zipfile.ZipFile, name: str) -> CodeText | None:
    names = [one for one in archive.namelist() if not one.endswith("/")][:_FILES_LIMIT]
    if name not in names:
        return None
    with archive.open(name) as file:
        return _text(name, names, file.read(SHOWN_BYTES + 1))


def _text(name: str, names: list[str], data: bytes) -> CodeText:
    if b"\0" in data:
        return CodeText(name, names, [], problem="The file is no text.")
    text = io.StringIO(data[:SHOWN_BYTES].decode(errors="replace"), newline=None).read()
    text = text.translate(_VISIBLE)
    lines = text.removesuffix("\n").split("\n")  # as Python counts them
    is_cut = len(data) > SHOWN_BYTES or len(lines) > SHOWN_LINES
    return CodeText(name, names, lines[:SHOWN_LINES], is_cut)
