"""The event stream as the client reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from virtualflow import Client, VirtualFlowError

from tests.client.scripted_site import Answer, ScriptedSite, problem, scripted_site

ANYTHING = {"jobs": [], "cluster": True}
EVENTS = (
    b"retry: 3000\n\n: still here\n\n"
    b'event: changed\ndata: {"jobs": [3, 7], "cluster": false}\n\n'
    b'event: changed\ndata: {"jobs": [], "cluster": true}\n\n'
)


def index(stream: object) -> Answer:
    return Answer(
        200,
        {
            "api_version": 1, "user": "ada", "is_admin": False, "priority_ceiling": 1000,
            "tier_ceiling": "normal", "scopes": [], "token_expires_at": None, "stream": stream,
            "routes": {},
        },
    )  # fmt: skip


@contextmanager
def site_of(*streams: Answer) -> Iterator[ScriptedSite]:
    """Serve the index and a stream in turn."""
    with scripted_site(index(None)) as site:
        address = index(f"{site.address}/stream/")
        site.answers[:] = [answer for stream in streams for answer in (address, stream)]
        yield site


def client_of(site: ScriptedSite) -> Client:
    return Client(site.address, "vfp_token", timeout_s=5, sleep=lambda _seconds: None)


def test_changes_are_those_of_the_site_and_a_broken_stream_is_opened_again() -> None:
    with site_of(Answer(200, EVENTS), Answer(200, EVENTS[:-30], is_cut=True), problem(403)) as site:
        site.answers[2:2] = [problem(502)] * 10  # while it is upgraded
        changes = client_of(site).changes()
        seen = list(itertools.islice(changes, 5))
        first, second = {"jobs": [3, 7], "cluster": False}, {"jobs": [], "cluster": True}
        assert seen == [ANYTHING, first, second, ANYTHING, first]
        with pytest.raises(VirtualFlowError) as caught:
            next(changes)
        assert caught.value.status == 403
        assert [row.path for row in site.asked if "stream" in row.path] == ["/stream/"] * 3


@pytest.mark.parametrize("address", ["http://127.0.0.2:1/stream/", "https://127.0.0.1/", 7, "//["])
def test_the_token_is_sent_to_no_other_host(address: object) -> None:
    with scripted_site(index(address)) as site:
        with pytest.raises(VirtualFlowError) as caught:
            next(client_of(site).changes())
        assert caught.value.code == "unexpected_answer"
        assert len(site.asked) == 1


def test_a_site_without_streams_says_so() -> None:
    with scripted_site(index(None)) as site, pytest.raises(VirtualFlowError) as caught:
        next(client_of(site).changes())
    assert caught.value.code == "no_stream"


@pytest.mark.parametrize(
    "content",
    [b"data: [" * 20_000 + b"\n", b"data: {}\n", b"data: \xff\n", b"x" * 100_000],
)
def test_nonsense_in_a_stream_is_one_kind_of_error(content: bytes) -> None:
    with site_of(Answer(200, content)) as site, pytest.raises(VirtualFlowError) as caught:
        list(itertools.islice(client_of(site).changes(), 2))
    assert caught.value.code == "unexpected_answer"
