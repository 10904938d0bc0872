"""Faults of an OpenID Connect provider are told, and are no errors of the site."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from axes.models import AccessAttempt
from django.test import Client

from jobs import oidc
from jobs.demo.stack.ports import free_port
from tests.support.oidc_login import log_in, refusals, user_of, visitor, way_back_of
from tests.support.oidc_provider import Provider, start_provider

pytestmark = pytest.mark.django_db


FAULTS: dict[str, tuple[Callable[[Provider], Any], str]] = {
    "a server error": (lambda p: p.answers.update({"/token": (500, b"")}), "unavailable"),
    "a redirect": (
        lambda p: p.answers.update({"/token": (307, f"{p.address}/keys".encode())}),
        "unavailable",
    ),
    "too much": (lambda p: p.answers.update({"/keys": (200, b" " * 2**21)}), "unavailable"),
    "no end": (lambda p: setattr(p, "slow", "/token"), "unavailable"),
    "another issuer's document": (
        lambda p: p.discovery.update(issuer="https://elsewhere.example"),
        "misconfigured",
    ),
    "no document": (
        lambda p: p.answers.update({"/.well-known/openid-configuration": (404, b"")}),
        "unavailable",
    ),
    "a file as an address": (
        lambda p: p.discovery.update(token_endpoint="file:///etc/passwd"),
        "misconfigured",
    ),
    "a list as an address": (lambda p: p.discovery.update(jwks_uri=[1]), "misconfigured"),
    "secrets as signatures": (
        lambda p: p.discovery.update(id_token_signing_alg_values_supported=["HS256"]),
        "misconfigured",
    ),
    "no way to log the site in": (
        lambda p: p.discovery.update(token_endpoint_auth_methods_supported=["private_key_jwt"]),
        "misconfigured",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_provider_are_told_and_count_for_nobody(
    name: str, provider: Provider, settings: Any
) -> None:
    fault, reason = FAULTS[name]
    settings.OIDC_TIMEOUT_S = 0.5
    fault(provider)
    response = outcome(visitor())
    assert (response.status_code, response.context["reason"]) == (502, reason)
    if reason == "misconfigured":  # which the document tells, so nothing else is asked
        assert provider.seen == ["/.well-known/openid-configuration"]
    assert not AccessAttempt.objects.exists()
    assert refusals() == []


def outcome(client: Client) -> Any:
    """Begin a login and go as far as it goes."""
    begun = client.get("/login/oidc/")
    return begun if begun.status_code != 302 else client.get(way_back_of(begun))


def test_a_provider_that_is_down_is_told(provider: Provider, settings: Any) -> None:
    settings.OIDC_ISSUER = f"http://127.0.0.1:{free_port(19700)}"
    response = visitor().get("/login/oidc/")
    assert (response.status_code, response.context["reason"]) == (502, "unavailable")
    assert b"The lab cannot be reached" in response.content


def test_a_provider_that_says_nothing_is_told(provider: Provider, settings: Any) -> None:
    settings.OIDC_TIMEOUT_S = 0.5
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.OIDC_ISSUER = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert visitor().get("/login/oidc/").context["reason"] == "unavailable"


def test_a_slow_provider_holds_few_threads(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.oidc._CALL_WAIT_S", 0)
    held = []
    while oidc._CALLS.acquire(blocking=False):
        held.append(1)
    try:
        response = visitor().get("/login/oidc/")
    finally:
        for _ in held:
            oidc._CALLS.release()
    assert (response.status_code, response.context["reason"]) == (503, "busy")
    assert log_in(visitor()).status_code == 302


BODIES = [b"", b"[]", b"{}", b'{"keys": [1]}', b'{"access_token": 1, "id_token": []}',
          b'{"error": []}', b"null", b'"text"', b"{", b"\xff", b'{"keys": 1}', b'{"keys": []}',
          b'{"access_token": "a", "id_token": "..", "token_type": "x", "expires_in": "soon"}',
          b'{"id_token": "a.b.c", "expires_at": {}}', b'{"sub": 1}',
          b'{"issuer": "x", "verify": false}', b"1" * 5000, b"[" * 100_000]  # fmt: skip


PATHS = ["/.well-known/openid-configuration", "/token", "/keys", "/userinfo"]


def answer_with(body: bytes, path: str, status: int, provider: Provider) -> None:
    provider.answers = {path: (status, body)}
    client = visitor()
    assert outcome(client).status_code in (403, 502), (body, status)
    assert user_of(client) == ""


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_of_the_provider_is_an_error_of_the_site(path: str, provider: Provider) -> None:
    for body in BODIES[:6]:
        answer_with(body, path, 200, provider)


@pytest.mark.nightly
@pytest.mark.parametrize("status", [200, 400, 404])
@pytest.mark.parametrize("path", PATHS)
def test_none_of_many_answers_is_either(
    path: str, status: int, provider: Provider, settings: Any
) -> None:
    settings.AXES_FAILURE_LIMIT = 1000
    for body in BODIES:
        answer_with(body, path, status, provider)


def test_nothing_else_of_the_document_is_heeded(provider: Provider) -> None:
    provider.discovery.update(verify=False, proxies={"http": "http://127.0.0.1:1"}, scope="all")
    assert log_in(visitor()).status_code == 302


def test_the_document_is_kept_for_a_time(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert log_in(visitor()).status_code == 302
    assert provider.seen.count("/.well-known/openid-configuration") == 1
    provider.discovery.update(issuer="https://elsewhere.example")
    later = time.monotonic() + 301
    monkeypatch.setattr("jobs.oidc.time.monotonic", lambda: later)
    assert visitor().get("/login/oidc/").context["reason"] == "misconfigured"


def test_certificates_are_checked(
    provider: Provider, settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    other = start_provider(tls=context)
    try:
        settings.OIDC_ISSUER = other.address
        assert visitor().get("/login/oidc/").context["reason"] == "unavailable"
        settings.OIDC_CA_FILE = str(tmp_path / "authority.pem")
        authority.cert_pem.write_to_path(settings.OIDC_CA_FILE)
        assert visitor().get("/login/oidc/").status_code == 302
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            monkeypatch.setattr("jobs.oidc._newest", None)
            other.discovery = {name: "http://127.0.0.1/"}  # http is for an issuer with http alone
            assert visitor().get("/login/oidc/").context["reason"] == "misconfigured", name
    finally:
        other.stop()
