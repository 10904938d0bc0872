"""The results of a prediction job: files with some examples each, and their join in one file.

A part holds the predictions of the examples `[first, end)`, one array by output name with dimension
0 in the order of the data. Predictions are a function of the job alone, so parts from different
writers are interchangeable, and parts may overlap: repeated rows are equal.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

RESULT_FILE = "predictions.npz"
_PART_NAME = re.compile(r"predictions-(\d{1,15})-(\d{1,15})\.npz")
#: Name of an output, from which follows that of its array's entry.
OUTPUT_NAME = re.compile(r"[^/\\\0]{1,200}")
_ARRAY_NAME = re.compile(rf"{OUTPUT_NAME.pattern}\.npy")
#: Files of a job: what a trainer writes in 16 weeks, at one each ten seconds.
PARTS_LIMIT = 1_000_000
#: Outputs of a model.
ARRAYS_LIMIT = 256
_CHUNK_BYTES = 1024**2


@dataclass(frozen=True, slots=True, order=True)
class PredictionPart:
    """A file with the predictions of the examples `[first, end)`."""

    first: int
    end: int

    @property
    def name(self) -> str:
        """The part's file name."""
        return f"predictions-{self.first}-{self.end}.npz"


@dataclass(frozen=True, slots=True)
class PartShare:
    """Contribution of a part to the whole: its rows except the first `num_left_out`."""

    part: PredictionPart
    num_left_out: int

    @property
    def num_rows(self) -> int:
        """Number of contributed rows."""
        return self.part.end - self.part.first - self.num_left_out


def part_of(name: str) -> PredictionPart | None:
    """Read a part from its file name; None for any other name."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return None
    part = PredictionPart(int(match[1]), int(match[2]))
    return part if part.first < part.end and part.name == name else None


def parts_shares(parts: Iterable[PredictionPart]) -> list[PartShare]:
    """Choose consecutive parts from example 0 on, up to the first gap."""
    shares: list[PartShare] = []
    done = 0
    for part in sorted(parts, key=lambda part: (part.first, -part.end)):
        if part.first <= done < part.end:
            shares.append(PartShare(part, done - part.first))
            done = part.end
    return shares


def examples_safe(parts: Iterable[PredictionPart]) -> int:
    """Count the examples from the first on whose predictions are complete."""
    shares = parts_shares(parts)
    return shares[-1].part.end if shares else 0


def parts_join(
    parts: Iterable[PredictionPart],
    num_examples: int,
    part_open: Callable[[PredictionPart], IO[bytes]],
    target: IO[bytes],
) -> None:
    """Write all parts as one uncompressed NumPy archive, with at most one chunk in memory.

    The output bytes depend on the predictions alone, not on how they were cut into parts.

    Raises:
        ValueError: parts are missing, or they do not fit each other.
    """
    shares = parts_shares(parts)
    num_done = shares[-1].part.end if shares else 0
    if num_done != num_examples:
        raise ValueError(f"there are predictions of {num_done} of {num_examples} examples")
    names: list[str] = []
    for share in shares:
        with part_open(share.part) as stream, zipfile.ZipFile(_SmallReads(stream)) as archive:
            found = _names_checked(archive, share.part)
        if names and found != names:
            raise ValueError(f"{share.part.name} has other arrays than the parts before it")
        names = found
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as whole:
        for name in names:
            with whole.open(zipfile.ZipInfo(name), "w", force_zip64=True) as entry:
                _array_join(shares, name, part_open, entry)


class _SmallReads:
    """A stream of which at most a chunk is read at once.

    `zipfile` reads the table of all entries before it tells how many they are.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size if 0 <= size <= _CHUNK_BYTES else _CHUNK_BYTES + 1)
        if len(data) > _CHUNK_BYTES:
            raise ValueError(f"a part has a table of over {_CHUNK_BYTES} bytes, or none")
        return data


def _names_checked(archive: zipfile.ZipFile, part: PredictionPart) -> list[str]:
    """Return the names of a part's arrays, sorted.

    Raises:
        ValueError: an entry is compressed or no array, or the entries share bytes: they would grow
            by being read.
    """
    infos = archive.infolist()
    names = sorted(info.filename for info in infos)
    is_plain = all(
        info.compress_type == zipfile.ZIP_STORED and _ARRAY_NAME.fullmatch(info.filename)
        for info in infos
    )
    if not is_plain or len(set(names)) < len(names) or len(names) > ARRAYS_LIMIT:
        raise ValueError(f"{part.name} has entries that are no arrays, or packed ones")
    if sum(info.file_size for info in infos) > archive.start_dir:
        raise ValueError(f"{part.name} has arrays that are larger than itself")
    return names


def _array_join(
    shares: Sequence[PartShare],
    name: str,
    part_open: Callable[[PredictionPart], IO[bytes]],
    target: IO[bytes],
) -> None:
    expected: tuple[tuple[int, ...], np.dtype] | None = None
    for share in shares:
        with (
            part_open(share.part) as stream,
            zipfile.ZipFile(_SmallReads(stream)) as archive,
            archive.open(name) as entry,
        ):
            num_rows, found = _header_read(entry)
            if expected is None:
                expected = found
                total = shares[-1].part.end
                descr, shape = np.lib.format.dtype_to_descr(found[1]), (total, *found[0])
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(target, header)
            if found != expected or num_rows != share.part.end - share.part.first:
                raise ValueError(f"{name!r} in {share.part.name} is {num_rows} times {found}")
            row_bytes = math.prod(found[0]) * found[1].itemsize
            for _ in _chunks(entry, share.num_left_out * row_bytes):
                pass
            for chunk in _chunks(entry, share.num_rows * row_bytes):
                target.write(chunk)


def _header_read(entry: IO[bytes]) -> tuple[int, tuple[tuple[int, ...], np.dtype]]:
    """Read the number of rows of an array, and the shape and type of one row."""
    if np.lib.format.read_magic(entry) != (1, 0):
        raise ValueError("the array has a header of another version")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(entry)
    if is_fortran or not shape or min(shape) < 0 or dtype.hasobject:
        raise ValueError(f"an array of shape {shape} and type {dtype} holds no rows")
    return shape[0], (shape[1:], dtype)


def _chunks(stream: IO[bytes], num_bytes: int) -> Iterator[bytes]:
    """Read exactly `num_bytes`.

    Raises:
        ValueError: the stream ends earlier.
    """
    left = num_bytes
    while left:
        chunk = stream.read(min(left, _CHUNK_BYTES))
        if not chunk:
            raise ValueError(f"an array ends {left} bytes too early")
        left -= len(chunk)
        yield chunk
