"""Downloads, of REST, pages and agents: stored files, under WSGI and ASGI alike, and logs.

A slow client holds a thread of the WSGI server, so that a few downloads can stop a site. They have
a bounded number of places there.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File
from django.core.handlers.asgi import ASGIRequest
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponseNotModified,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header, parse_etags

from jobs.exceptions import BusyError, NotFoundError, RangeError, problem_response
from jobs.origins import client_network
from jobs.places import Places

#: Seconds that a download waits for a place.
TURN_S = 1.0
_CHUNK_BYTES = 256 * 1024
_CONTENT_TYPE = "application/octet-stream"
#: `bytes=5-9`, `bytes=5-` or the last ones, `bytes=-5`.
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class ThreadResponse(StreamingHttpResponse):
    """A download that a thread of the WSGI server sends; it holds a place until it is closed."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        with ExitStack() as place:
            place.enter_context(places().held(client_network(request), TURN_S))
            super().__init__(*args, **kwargs)
            # At the latest when it is forgotten: nobody closes what a middleware has replaced.
            self._leave = weakref.finalize(self, place.pop_all().close)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._leave()


class FilePart:
    """Some bytes of an open file, to be read in order."""

    def __init__(self, opened: IO[Any], wanted: range) -> None:
        opened.seek(wanted.start)
        self._opened = opened
        self._left = len(wanted)

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""
        piece: bytes = self._opened.read(min(size, self._left))
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


class ThreadFileResponse(ThreadResponse, FileResponse):
    """A file that a thread of the WSGI server sends."""

    block_size = _CHUNK_BYTES


@functools.cache
def places() -> Places:
    """Return the places of this process for downloads under way."""
    limit = settings.DOWNLOADS_LIMIT
    return Places(
        limit,
        max(limit - 1, 1),
        "Too many files are being sent at once; try again in a few seconds.",
    )


def file_response(request: HttpRequest, file: File, *, name: str, sha256: str) -> HttpResponseBase:
    """Send a stored file, or the range of it that is asked for, as a download called `name`.

    304 if the reader has it (`If-None-Match`). `X-Sha256` and the ETag are the digest of the whole
    file. Under ASGI, Django reads a plain file completely before sending it; so there it is wrapped
    in an asynchronous iterator.

    Raises:
        BusyError: too many downloads are under way.
        NotFoundError: the file is missing, as after a restored backup.
    """
    tag = f'"{sha256}"'
    known = parse_etags(request.headers.get("If-None-Match", ""))
    if tag in (one.removeprefix("W/") for one in known):
        return HttpResponseNotModified(headers={"ETag": tag})
    try:
        size_bytes = file.size
    except FileNotFoundError:
        text = f"{name} is missing among the site's files, as after a restored backup."
        raise NotFoundError(text, code="file_missing") from None
    wanted = _range_wanted(request, size_bytes, tag)
    if wanted is not None and not wanted:
        refused = problem_response(RangeError(f"The file has {size_bytes} bytes; ask for these."))
        refused.headers["Content-Range"] = f"bytes */{size_bytes}"
        return refused
    part = FilePart(file.open("rb"), range(size_bytes) if wanted is None else wanted)
    response: StreamingHttpResponse
    if isinstance(request, ASGIRequest):
        response = StreamingHttpResponse(_chunks(part), content_type=_CONTENT_TYPE)
        response.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
    else:
        try:
            response = ThreadFileResponse(
                request, part, as_attachment=True, filename=name, content_type=_CONTENT_TYPE
            )
        except BusyError:
            part.close()
            raise
    response.headers["X-Sha256"], response.headers["ETag"] = sha256, tag
    response.headers["Accept-Ranges"] = "bytes"
    response.headers["Content-Length"] = str(size_bytes if wanted is None else len(wanted))
    if wanted is not None:
        response.status_code = HTTPStatus.PARTIAL_CONTENT
        first, last = wanted[0], wanted[-1]
        response.headers["Content-Range"] = f"bytes {first}-{last}/{size_bytes}"
    return response


def download(request: HttpRequest, file: File, *, name: str, sha256: str) -> HttpResponseBase:
    """Send a stored file to a person; see `file_response`.

    Raises:
        NotFoundError: the file was deleted or replaced since its row was read.
        BusyError: too many downloads are under way.
    """
    try:
        return file_response(request, file, name=name, sha256=sha256)
    except FileNotFoundError:
        raise NotFoundError("The file was deleted or replaced just now.") from None


def _range_wanted(request: HttpRequest, size_bytes: int, tag: str) -> range | None:
    """Return the bytes that a request asks for, none if it has none of these; None: the whole file.

    As HTTP has it, all else is answered with the whole file: several ranges, ranges that end before
    they begin, and a range of another version of the file (`If-Range`).
    """
    found = _RANGE.fullmatch(request.headers.get("Range", ""))
    if found is None or found[0] == "bytes=-" or request.headers.get("If-Range", tag) != tag:
        return None
    first, last = found.groups()
    if not first:
        return range(max(size_bytes - int(last), 0), size_bytes)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(int(last) + 1, size_bytes) if last else size_bytes)


def text_response(request: HttpRequest, pieces: Iterator[str], name: str) -> StreamingHttpResponse:
    """Send text as a download called `name`.

    Raises:
        BusyError: too many downloads are under way.
    """
    response = ThreadResponse(
        request, (piece.encode() for piece in pieces), content_type="text/plain; charset=utf-8"
    )
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


async def _chunks(part: FilePart) -> AsyncIterator[bytes]:
    try:
        while chunk := await sync_to_async(part.read, thread_sensitive=False)(_CHUNK_BYTES):
            yield chunk
    finally:
        part.close()
