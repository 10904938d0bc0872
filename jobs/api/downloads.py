"""Downloads, of REST, pages and agents: stored files, under WSGI and ASGI alike, and logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.core.files import File
from django.core.handlers.asgi import ASGIRequest
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

_CHUNK_BYTES = 1024**2
_CONTENT_TYPE = "application/octet-stream"


def file_response(
    request: HttpRequest, file: File, *, name: str, sha256: str
) -> StreamingHttpResponse:
    """Send a stored file as a download called `name`; `X-Sha256` is its digest.

    Under ASGI, Django reads a plain file completely before sending it; so there the file is wrapped
    in an asynchronous iterator.
    """
    opened = file.open("rb")
    response: StreamingHttpResponse
    if isinstance(request, ASGIRequest):
        response = StreamingHttpResponse(_chunks(opened), content_type=_CONTENT_TYPE)
        response.headers["Content-Length"] = str(file.size)
        response.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
    else:
        response = FileResponse(
            opened, as_attachment=True, filename=name, content_type=_CONTENT_TYPE
        )
    response.headers["X-Sha256"] = sha256
    return response


def text_response(pieces: Iterator[str], name: str) -> StreamingHttpResponse:
    """Send text as a download called `name`."""
    response = StreamingHttpResponse(
        (piece.encode() for piece in pieces), content_type="text/plain; charset=utf-8"
    )
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


async def _chunks(opened: IO[Any]) -> AsyncIterator[bytes]:
    try:
        while chunk := await sync_to_async(opened.read, thread_sensitive=False)(_CHUNK_BYTES):
            yield chunk
    finally:
        opened.close()
