"""Requests whose answers are of the types that the client promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import httpx

from virtualflow.errors import VirtualFlowError
from virtualflow.transport import Transport

#: Rows of a page, unless a caller wants another number.
PAGE_SIZE = 100

T = TypeVar("T")


class TypedSite(Transport):
    """Connections to a site, with typed answers.

    All methods raise `VirtualFlowError`, also for an answer that lacks fields of its type.
    """

    def get(self, path: str, kind: type[T], **content: Any) -> T:
        """Read one object."""
        return answer_read(self.request("GET", path, **content), kind)

    def patch(self, path: str, kind: type[T], **content: Any) -> T:
        """Change parts of an object; on a condition (If-Match) it is not repeated."""
        return self._changed("PATCH", path, kind, **content)

    def post(self, path: str, kind: type[T], **content: Any) -> T:
        """Post what does no harm when it is done twice; on a condition it is not repeated."""
        return self._changed("POST", path, kind, **content)

    def _changed(self, method: str, path: str, kind: type[T], **content: Any) -> T:
        # A condition would refuse the second of two, as if somebody else had been the first.
        is_repeatable = "If-Match" not in content.get("headers", {})
        return answer_read(self.request(method, path, is_repeatable=is_repeatable, **content), kind)

    def rows(self, path: str, kind: type[T], method: str = "GET", **content: Any) -> list[T]:
        """Read a list without pages."""
        found = answer_json(self.request(method, path, **content))
        if not isinstance(found, list):
            raise unexpected_answer()
        return [item_read(row, kind) for row in found]

    def pages(
        self,
        path: str,
        kind: type[T],
        given: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[T]:
        """Yield the rows of a list, page after page.

        Args:
            given: query parameters; None values are left out.
            fields: the fields that were asked for; by default those of the type.
        """
        params: Any = given_only(given or {"page_size": PAGE_SIZE})
        while True:
            page = answer_json(self.request("GET", path, params=params))
            if not isinstance(page, dict) or not isinstance(page.get("results"), list):
                raise unexpected_answer()
            for row in page["results"]:
                yield item_read(row, kind, fields)
            if not page["results"] or not page.get("next"):
                return
            # Only the query: the address of the next page must not lead the token elsewhere.
            params = parse_qsl(urlsplit(str(page["next"])).query)


def given_only(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that have a value."""
    return {name: value for name, value in params.items() if value is not None}


def answer_json(response: httpx.Response) -> Any:
    """Return the JSON of an answer.

    Raises:
        VirtualFlowError: it is none.
    """
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise unexpected_answer() from None


def answer_read(response: httpx.Response, kind: type[T], fields: Sequence[str] | None = None) -> T:
    """Return an answer of a type; see `item_read`."""
    return item_read(answer_json(response), kind, fields)


def item_read(item: Any, kind: type[T], fields: Sequence[str] | None = None) -> T:
    """Check that an object has the fields of its type, or those that were asked for.

    Raises:
        VirtualFlowError: it has not.
    """
    wanted = kind.__annotations__ if fields is None else fields
    if not isinstance(item, dict) or not {*wanted} <= item.keys():
        raise unexpected_answer()
    return cast(T, item)


def unexpected_answer() -> VirtualFlowError:
    """Return the error of an answer that is none of the REST API."""
    return VirtualFlowError(
        "The answer is none of the REST API. Is this the address of a VirtualFlow site, at least "
        "as new as this client?",
        code="unexpected_answer",
    )
