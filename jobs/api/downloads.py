"""Downloads, of REST, pages and agents: stored files, under WSGI and ASGI alike, and logs.

A slow client holds a thread of the WSGI server, so that a few downloads can stop a site. They have
a bounded number of places there.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files import File
from django.core.handlers.asgi import ASGIRequest
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

from jobs.exceptions import BusyError
from jobs.origins import client_network
from jobs.places import Places

#: Seconds that a download waits for a place.
TURN_S = 1.0
_CHUNK_BYTES = 256 * 1024
_CONTENT_TYPE = "application/octet-stream"


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


def file_response(
    request: HttpRequest, file: File, *, name: str, sha256: str
) -> StreamingHttpResponse:
    """Send a stored file as a download called `name`; `X-Sha256` is its digest.

    Under ASGI, Django reads a plain file completely before sending it; so there the file is wrapped
    in an asynchronous iterator.

    Raises:
        BusyError: too many downloads are under way.
    """
    opened = file.open("rb")
    response: StreamingHttpResponse
    if isinstance(request, ASGIRequest):
        response = StreamingHttpResponse(_chunks(opened), content_type=_CONTENT_TYPE)
        response.headers["Content-Length"] = str(file.size)
        response.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
    else:
        try:
            response = ThreadFileResponse(
                request, opened, as_attachment=True, filename=name, content_type=_CONTENT_TYPE
            )
        except BusyError:
            opened.close()
            raise
    response.headers["X-Sha256"] = sha256
    return response


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


async def _chunks(opened: IO[Any]) -> AsyncIterator[bytes]:
    try:
        while chunk := await sync_to_async(opened.read, thread_sensitive=False)(_CHUNK_BYTES):
            yield chunk
    finally:
        opened.close()
