"""Input of the client that is refused before anything is sent."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from virtualflow import Client, VirtualFlowError

from tests.client.conftest import TOKEN, Connect
from tests.client.scripted_site import Answer, problem, scripted_site


@pytest.mark.parametrize(
    "server",
    ["", "site", "ftp://site", "http://", "http://[", "http://a:b@site", "http://site/?q=1",
     "http://site/#x", "http://site:99999", "http://si\nte", "javascript:alert(1)",
     "http://a..example", "http://\u2603.example"],
)  # fmt: skip
def test_a_wrong_address_names_the_field(server: str) -> None:
    with pytest.raises(VirtualFlowError) as caught:
        Client(server, TOKEN)
    assert (caught.value.code, {*caught.value.fields}) == ("bad_input", {"server"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("HTTPS_PROXY", "ftp://127.0.0.1:9"),
        ("NO_PROXY", "localhost,[::1]"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_a_wrong_input(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as where it is not installed
    monkeypatch.setenv(variable, value)
    with pytest.raises(VirtualFlowError) as caught:
        connect("http://site.example")
    assert (caught.value.code, {*caught.value.fields}) == ("bad_input", {"proxy"})


@pytest.mark.parametrize("token", ["", " ", "a b", "a\nb", "tökén", "x" * 501, "a\x00"])
def test_a_wrong_token_is_not_repeated_in_the_error(token: str) -> None:
    with pytest.raises(VirtualFlowError) as caught:
        Client("https://site.example/", token)
    assert {*caught.value.fields} == {"token"}
    assert len(token) < 4 or token not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "code", "field"),
    [
        ({"a": object()}, None, "spec"),
        ({"a": float("nan")}, None, "a"),
        ({"a": "\ud800"}, None, "spec"),
        (Path("missing.yaml"), None, "spec"),
        (Path(), None, "spec"),
        (Path("bad.yaml"), None, "spec"),
        ({}, Path("missing.py"), "code"),
        ({"a": {1, 2}}, Path("bad.yaml"), "spec"),
    ],
)
def test_a_wrong_submission_is_found_before_it_is_sent(
    connect: Connect,
    spec: Any,
    code: Path | None,
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_bytes(b"name: \xff\n")
    with scripted_site(problem(400)) as site:
        with pytest.raises(VirtualFlowError) as caught:
            connect(site).submit(spec, code=code)
        assert (site.asked, {*caught.value.fields}) == ([], {field})


@pytest.mark.parametrize("text", ["\ud800", "a\udcff"])
def test_text_that_cannot_be_sent_is_a_wrong_input(connect: Connect, text: str) -> None:
    with scripted_site(problem(400)) as site:
        client = connect(site)
        calls: list[Callable[[], Any]] = [
            lambda: client.cancel(1, text),
            lambda: list(client.jobs(name=text)),
            lambda: client.simulate(text),
            lambda: client.submit({}, idempotency_key=text),
            lambda: client.clone(1, idempotency_key=""),  # of a variable that is not set
            lambda: client.download(1, text, Path("unwritten")),
            lambda: client.remove_member(1, ".."),
        ]
        for call in calls:
            with pytest.raises(VirtualFlowError) as caught:
                call()
            assert caught.value.code == "bad_input"
        assert site.asked == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client, x: client.change_user("ada", share_factor=x), "share_factor"),
        (lambda client, x: client.simulate("fifo", resize_cost_s=x), "scenarios.0.resize_cost_s"),
        (lambda client, x: client.submit({"settings": {"rates": [1, x]}}), "settings.rates.1"),
        (lambda client, x: client.dry_run({"settings": {"rate": x}}), "settings.rate"),
        (lambda client, x: client.fork(1, checkpoint="now", seed=x), "seed"),
        (
            lambda client, x: client.submit_sweep({"sweep": {"space": {"a": [x]}}}),
            "sweep.space.a.0",
        ),
        (lambda client, x: client.make_project("a", limit=x), "limit"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_by_its_place(
    connect: Connect, call: Callable[[Client, float], Any], field: str, value: float
) -> None:
    with scripted_site(Answer(200, {})) as site:
        with pytest.raises(VirtualFlowError) as caught:
            call(connect(site), value)
        assert (caught.value.code, caught.value.fields.keys() & {field}) == ("bad_input", {field})
        assert not site.asked
