"""Answers by which a control plane ends trainers or drops reports, and who may give them."""

from __future__ import annotations

import httpx
import pytest

from agents.session.client import (
    ConflictResponseError,
    ControlPlaneAwayError,
    ControlPlaneClient,
    NodeRemovedError,
    NotAuthorisedError,
    RequestRefusedError,
)


def test_no_proxy_on_the_way_ends_trainers_or_drops_reports() -> None:
    client = ControlPlaneClient("http://127.0.0.1:9", 15.0)
    judgements = {
        400: RequestRefusedError,
        401: NotAuthorisedError,
        403: NotAuthorisedError,
        409: ConflictResponseError,
        410: NodeRemovedError,
        422: RequestRefusedError,
    }
    for status, judgement in judgements.items():
        for kind, expected in (
            ("text/html", ControlPlaneAwayError),
            ("application/problem+json", judgement),
        ):
            answer = httpx.Response(status, headers={"Content-Type": kind})
            transport = httpx.MockTransport(lambda _, answer=answer: answer)
            client._http = httpx.Client(base_url="http://a", transport=transport)
            with pytest.raises(expected) as raised:
                client.wanted("", 0.0)
            assert raised.type is expected
