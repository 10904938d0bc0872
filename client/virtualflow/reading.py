"""Answers of the site as the types that the client promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import httpx

from virtualflow.errors import VirtualFlowError

T = TypeVar("T")


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
