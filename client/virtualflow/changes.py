"""Server-sent events of a site: what changes, as it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from virtualflow import answers
from virtualflow.errors import VirtualFlowError
from virtualflow.transport import AWAY_LIMIT_S
from virtualflow.typed_site import TypedSite, item_read, unexpected_answer

#: Longest silence of a stream; its site gives a sign of life every 15 s.
_SILENCE_LIMIT_S = 30.0
_LINE_LIMIT_BYTES = 64 * 1024
_RECONNECT_S = 2.0
#: Everything may have changed while no stream was open.
_ANYTHING = answers.Change(jobs=[], cluster=True)


def changes_read(site: TypedSite) -> Iterator[answers.Change]:
    """Yield the changes that a site tells; a broken connection is opened again.

    The first change of every connection says that anything may have changed. Once the site has
    answered, it may be away for some minutes.

    Raises:
        VirtualFlowError: the site refuses a stream, has none, or does not answer.
    """
    away_s = 0.0
    while True:
        address = _address(site, away_s)
        try:
            with site.stream(address, wait_s=_SILENCE_LIMIT_S, away_s=away_s) as response:
                away_s = AWAY_LIMIT_S
                yield _ANYTHING
                yield from _changes(response)
        except VirtualFlowError as error:
            if error.code != "unreachable":
                raise
        site.sleep(_RECONNECT_S)


def _address(site: TypedSite, away_s: float) -> str:
    """Return the address of the stream, which may be another port of the site's host."""
    address = site.get("", answers.Index, away_s=away_s)["stream"]
    if address is None:
        raise VirtualFlowError("This site serves no event streams.", code="no_stream")
    # The token must not be led elsewhere.
    if not isinstance(address, str) or _host(address) != _host(site.server):
        raise unexpected_answer()
    return address


def _host(address: str) -> tuple[str, str | None]:
    try:
        parts = urlsplit(address)
    except ValueError:
        raise unexpected_answer() from None
    return parts.scheme, parts.hostname


def _changes(response: httpx.Response) -> Iterator[answers.Change]:
    for line in _lines(response):
        if line.startswith(b"data: "):
            try:
                data = json.loads(line.removeprefix(b"data: "))
            except (ValueError, RecursionError):
                raise unexpected_answer() from None
            yield item_read(data, answers.Change)


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of an answer, none of which may be long."""
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > _LINE_LIMIT_BYTES:
            raise unexpected_answer()
