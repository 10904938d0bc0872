"""Checks and unpacks the code of a job: one Python file, or a zip with one entry file.

Uploads are not trusted: an archive may write nothing outside its target, contain only plain files,
and cost no more than the limits below, whatever it claims about itself.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: Largest upload, in bytes.
UPLOAD_LIMIT_BYTES = 64 * 1024**2
#: Largest single Python file, in bytes.
FILE_LIMIT_BYTES = 1024**2
#: Largest unpacked size of an archive, in bytes.
UNPACKED_LIMIT_BYTES = 256 * 1024**2
#: Largest number of files and folders in an archive.
ENTRIES_LIMIT = 2_000
#: Largest growth by unpacking, for archives of more than `RATIO_FREE_BYTES` unpacked.
RATIO_LIMIT = 100
RATIO_FREE_BYTES = 8 * 1024**2
NAME_LENGTH_LIMIT = 200
DEPTH_LIMIT = 12
#: Of file systems, for one file or folder.
_NAME_LIMIT_BYTES = 255
CHUNK_BYTES = 1024**2

#: The entry file of an archive with several Python files at its top.
ENTRY_FILE = "job.py"
#: Folders that packers add on their own.
IGNORED_TOP_FOLDERS = frozenset({"__MACOSX"})

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\.py")
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED_FLAG = 0x1
#: End record of an archive: mark, four numbers of disks and entries, all entries, table's size and
#: start, length of the comment (APPNOTE.TXT 4.3.16); and the mark of a Zip64 record before it.
_END_RECORD = struct.Struct("<4s3H1H2LH")
_END_MARK, _ZIP64_MARK = b"PK\x05\x06", b"PK\x06\x07"
_COMMENT_LIMIT_BYTES = 2**16
#: Bytes of a table's entry: 46, a name, and what packers add.
_ENTRY_LIMIT_BYTES = 512


class CodeArchiveError(ValueError):
    """The uploaded code cannot be used. `code` is machine-readable, the text names the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def archive_check(data: bytes, name: str) -> str:
    """Check uploaded code completely, writing nothing.

    Args:
        data: the content of the uploaded file.
        name: its name as uploaded; ends in ".py" or ".zip".

    Returns:
        The entry file, relative to the unpacked code.

    Raises:
        CodeArchiveError: see its code and text.
    """
    if len(data) > UPLOAD_LIMIT_BYTES:
        raise CodeArchiveError(
            "code_too_large",
            f"{name!r:.80} has {len(data):,} bytes, at most {UPLOAD_LIMIT_BYTES:,} are accepted; "
            "load large data from storage in build(settings)",
        )
    if name.lower().endswith(".zip"):
        return _zip_check(data)
    if name.lower().endswith(".py"):
        return _file_check(data, name)
    raise CodeArchiveError(
        "code_type", f"the code must be a .py or a .zip file, {name!r:.80} is neither"
    )


def archive_unpack(data: bytes, name: str, target: Path) -> str:
    """Check uploaded code and write it into `target`, which must be empty or not exist yet.

    Returns:
        The entry file, relative to `target`.

    Raises:
        CodeArchiveError: the code is refused; nothing was written.
        FileExistsError: `target` holds something already.
        OSError: writing failed.
    """
    entry = archive_check(data, name)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty")
    if name.lower().endswith(".py"):
        (target / entry).write_bytes(data)
        return entry
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in _wanted(archive.infolist()):
            path = target.joinpath(*PurePosixPath(info.filename).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            if info.is_dir():
                path.mkdir(exist_ok=True)
                continue
            with path.open("xb") as file:
                for chunk in _chunks(archive, info):
                    file.write(chunk)
    return entry


def _file_check(data: bytes, name: str) -> str:
    file_name = PurePosixPath(name.replace("\\", "/")).name
    if not _FILE_NAME.fullmatch(file_name) or len(file_name) > NAME_LENGTH_LIMIT:
        raise CodeArchiveError(
            "code_name",
            f"{file_name!r:.80} is no usable file name; use a-z, A-Z, 0-9, '_', '-' and '.', "
            "and end it with .py",
        )
    if len(data) > FILE_LIMIT_BYTES:
        raise CodeArchiveError(
            "code_too_large",
            f"{file_name} has {len(data):,} bytes, at most {FILE_LIMIT_BYTES:,} are accepted for "
            "one Python file; put data beside it into a zip",
        )
    if not data.strip() or b"\0" in data:
        raise CodeArchiveError("code_empty", f"{file_name} holds no Python text")
    return file_name


def _zip_check(data: bytes) -> str:
    _check_end_record(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = _wanted(archive.infolist())
            _check_totals(infos, len(data))
            for info in infos:
                _check_entry(info)
            _check_collisions(infos)
            for info in infos:
                for _ in _chunks(archive, info):
                    pass  # reading to the end checks sizes and checksums
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise CodeArchiveError("zip_broken", f"the zip file cannot be read: {error}") from error
    return _entry_file([info.filename for info in infos])


def _check_end_record(data: bytes) -> None:
    """Check the size of the archive's table before `zipfile` reads it into memory.

    The record is found as by `zipfile`. Its count may lie, so the table's bytes are bounded too.
    """
    at = len(data) - _END_RECORD.size
    if at < 0 or data[at : at + 4] != _END_MARK or data[-2:] != b"\0\0":
        at = data.rfind(_END_MARK, max(0, at - _COMMENT_LIMIT_BYTES))
    if at < 0 or at + _END_RECORD.size > len(data):
        raise CodeArchiveError("zip_broken", "the zip file cannot be read: it has no end record")
    if data[max(0, at - 20) : at].startswith(_ZIP64_MARK):
        raise CodeArchiveError(
            "zip_method", "the zip file is in the Zip64 format; pack it without, it is small enough"
        )
    *_, num_entries, num_bytes, _start, _comment = _END_RECORD.unpack_from(data, at)
    if num_entries > ENTRIES_LIMIT or num_bytes > ENTRIES_LIMIT * _ENTRY_LIMIT_BYTES:
        raise CodeArchiveError(
            "zip_too_many_files",
            f"the zip file has {num_entries:,} entries in a table of {num_bytes:,} bytes, at most "
            f"{ENTRIES_LIMIT:,} entries are accepted",
        )


def _wanted(infos: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    return [info for info in infos if info.filename.split("/")[0] not in IGNORED_TOP_FOLDERS]


def _check_totals(infos: list[zipfile.ZipInfo], num_packed_bytes: int) -> None:
    """Check the archive's own table before any unpacking."""
    if len(infos) > ENTRIES_LIMIT:
        raise CodeArchiveError(
            "zip_too_many_files",
            f"the zip file has {len(infos):,} entries, at most {ENTRIES_LIMIT:,} are accepted",
        )
    num_bytes = sum(info.file_size for info in infos)
    if num_bytes > UNPACKED_LIMIT_BYTES:
        raise CodeArchiveError(
            "zip_too_large",
            f"the zip file holds {num_bytes:,} bytes, at most {UNPACKED_LIMIT_BYTES:,} are accepted"
            "; load large data from storage in build(settings)",
        )
    if num_bytes > max(RATIO_FREE_BYTES, RATIO_LIMIT * num_packed_bytes):
        raise CodeArchiveError(
            "zip_ratio",
            f"the zip file grows from {num_packed_bytes:,} to {num_bytes:,} bytes, more than "
            f"{RATIO_LIMIT}-fold; that looks like an attack. Store such data another way",
        )


def _check_entry(info: zipfile.ZipInfo) -> None:
    """Refuse names that could leave the target, and anything but plain files and folders."""
    name = info.filename
    parts = name.rstrip("/").split("/")
    is_unsafe = (
        name.startswith("/")
        or "\\" in name
        or ":" in parts[0]
        or any(part in ("", ".", "..") for part in parts)
        or not name.isprintable()
        # zipfile cuts names at a NUL and keeps the original of the table
        or "\0" in info.orig_filename
        or len(name) > NAME_LENGTH_LIMIT
        or any(len(part.encode()) > _NAME_LIMIT_BYTES for part in parts)
        or len(parts) > DEPTH_LIMIT
    )
    if is_unsafe:
        raise CodeArchiveError(
            "zip_name",
            f"the zip entry {name!r:.80} has a name that is not accepted; use relative names "
            f"without '..', at most {DEPTH_LIMIT} folders deep, of {NAME_LENGTH_LIMIT} characters "
            f"and {_NAME_LIMIT_BYTES} bytes a name",
        )
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise CodeArchiveError(
            "zip_link", f"the zip entry {name!r:.80} is a link or a device; pack plain files only"
        )
    if info.flag_bits & _ENCRYPTED_FLAG or info.compress_type not in _COMPRESSIONS:
        raise CodeArchiveError(
            "zip_method",
            f"the zip entry {name!r:.80} is encrypted or packed in an unusual way; pack with plain "
            "deflate",
        )


def _check_collisions(infos: list[zipfile.ZipInfo]) -> None:
    """Refuse two entries for one path, and a file where another entry needs a folder."""
    names = [info.filename.rstrip("/").casefold() for info in infos]
    files = {name for name, info in zip(names, infos, strict=True) if not info.is_dir()}
    parents = {
        str(parent) for name in names for parent in PurePosixPath(name).parents if parent.name
    }
    if len(set(names)) < len(names) or files & parents:
        raise CodeArchiveError("zip_duplicate", "the zip file has several entries for one path")


def _chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Read an entry, never more than its stated size (against which the totals were checked)."""
    num_left = info.file_size
    with archive.open(info) as file:
        while chunk := file.read(min(CHUNK_BYTES, num_left + 1)):
            num_left -= len(chunk)
            if num_left < 0:
                raise CodeArchiveError(
                    "zip_broken", f"the zip entry {info.filename!r:.80} is larger than it says"
                )
            yield chunk


def _entry_file(names: list[str]) -> str:
    top_files = sorted(name for name in names if "/" not in name and name.endswith(".py"))
    if ENTRY_FILE in top_files:
        return ENTRY_FILE
    if len(top_files) == 1:
        return top_files[0]
    found, fix = "no Python file there", "pack the files themselves, not the folder around them"
    if top_files:
        found, fix = ", ".join(top_files[:5]), f"name the one with build() {ENTRY_FILE}"
    raise CodeArchiveError(
        "no_entry_file",
        f"the zip file needs {ENTRY_FILE}, or a single .py file, at its top (found {found}); {fix}",
    )
