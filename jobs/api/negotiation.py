"""Choice of the renderer of an answer, and of the parser of a body."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.request import Request


class ShortNegotiation(DefaultContentNegotiation):
    """DRF's negotiation, without its parsing where a client takes anything or the first type."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the parser of a body.

        Raises:
            UnsupportedMediaType: the body is compressed, which looks like malformed JSON.
        """
        coding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
        if coding not in ("", "identity"):
            raise UnsupportedMediaType(coding, "Send the body as it is, without Content-Encoding.")
        return super().select_parser(request, parsers)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> Any:
        first = renderers[0]
        is_short = request.META.get("HTTP_ACCEPT", "*/*") in ("*/*", first.media_type)
        if is_short and not format_suffix and "format" not in request.query_params:
            return first, first.media_type
        return super().select_renderer(request, renderers, format_suffix)


class OneFormat(BaseContentNegotiation):
    """The first parser and renderer, whatever the client accepts: for answers in other formats."""

    def select_parser(self, _request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, _request: Request, renderers: Any, _suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type
