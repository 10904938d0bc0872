"""Logins by OpenID Connect cannot be forged, replayed, stolen or led astray."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Any

import pytest
from axes.models import AccessAttempt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from jobs.models import AuditEntry, ExternalIdentity
from tests.support.oidc_login import (
    PASSWORD,
    known,
    log_in,
    refusals,
    user_of,
    visitor,
    way_back,
    way_back_of,
)
from tests.support.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    Provider,
    encoded,
    part,
    signed,
    signing_key,
)

pytestmark = pytest.mark.django_db

HOUR = 3600


def mac_signed(key: bytes) -> Callable[[dict[str, Any]], str]:
    def sign(claims: dict[str, Any]) -> str:
        text = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(claims)}"
        return f"{text}.{encoded(hmac.digest(key, text.encode(), hashlib.sha256))}"

    return sign


def public_pem() -> bytes:
    return signing_key("honest").public_key().public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip


def unsigned(algorithm: str) -> Callable[[dict[str, Any]], str]:
    return lambda claims: f"{part({'alg': algorithm, 'kid': 'first'})}.{part(claims)}."


def with_claims(**claims: Any) -> Callable[[Provider], None]:
    return lambda provider: provider.claims.update(claims)


def with_subject(subject: Any) -> Callable[[Provider], None]:
    """Name another account, and all that the site asks for, so that it asks nothing more."""
    return with_claims(sub=subject, preferred_username="somebody")


def with_token(
    sign: Callable[[dict[str, Any]], str], *algorithms: str
) -> Callable[[Provider], None]:
    """Sign otherwise; the discovery document says that it may."""

    def lie(provider: Provider) -> None:
        provider.sign = sign
        offered = ["RS256", *algorithms]
        provider.discovery["id_token_signing_alg_values_supported"] = offered

    return lie


def of_somebody_else(provider: Provider) -> None:
    provider.userinfo.update(sub="s-grace", preferred_username="grace")


FORGED: dict[str, tuple[Callable[[Provider], None], str]] = {
    "another issuer": (with_claims(iss="https://elsewhere.example"), "token"),
    "no issuer": (with_claims(iss=None), "token"),
    "another audience": (with_claims(aud="another-site"), "token"),
    "another audience, this party": (with_claims(aud="another-site", azp=CLIENT_ID), "token"),
    "several audiences, another party": (
        with_claims(aud=[CLIENT_ID, "another-site"], azp="another-site"),
        "token",
    ),
    "no audience": (with_claims(aud=None), "token"),
    "another nonce": (with_claims(nonce="of-another-login"), "token"),
    "no nonce": (with_claims(nonce=None), "token"),
    "expired": (with_claims(exp=int(time.time()) - HOUR), "clock"),
    "no expiry": (with_claims(exp=None), "token"),
    "expiry in words": (with_claims(exp="never"), "token"),
    "from the future": (with_claims(iat=int(time.time()) + HOUR), "clock"),
    "not valid yet": (with_claims(nbf=int(time.time()) + HOUR), "clock"),
    "no subject": (with_subject(None), "token"),
    "two subjects": (with_subject(["s-ada", "s-grace"]), "token"),
    "an empty subject": (with_subject(""), "token"),
    "a long subject": (with_subject("s" * 256), "token"),
    "a subject with a zero byte": (with_subject("s-ada\0"), "token"),
    "another access token": (with_claims(at_hash="AAAA"), "token"),
    "alg none": (with_token(unsigned("none"), "none"), "token"),
    "alg None": (with_token(unsigned("None"), "None"), "token"),
    "no signature": (with_token(unsigned("RS256")), "token"),
    "the public key as a secret": (with_token(mac_signed(public_pem()), "HS256"), "token"),
    "the client secret": (with_token(mac_signed(CLIENT_SECRET.encode()), "HS256"), "token"),
    "another key": (with_token(lambda claims: signed(claims, key="thief")), "token"),
    "an unknown key": (
        with_token(lambda claims: signed(claims, key="thief", kid="second")),
        "token",
    ),
    "an unknown critical header": (
        with_token(lambda claims: signed(claims, crit=["exp2"], exp2=1)),
        "token",
    ),
    "no token": (with_token(lambda _claims: ""), "token"),
    "no JSON": (with_token(lambda _claims: "a.b.c"), "token"),
    "user info of somebody else": (of_somebody_else, "token"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_token_is_refused_noted_and_counted(name: str, provider: Provider) -> None:
    lie, reason = FORGED[name]
    known("ada", "s-ada", provider)
    known("grace", "s-grace", provider, is_staff=True)
    lie(provider)
    client = visitor()
    response = log_in(client)
    assert response.status_code == 403
    assert response.context["reason"] == reason
    assert user_of(client) == ""
    assert refusals() == [("login_failed", reason)]
    assert not AuditEntry.objects.filter(action="login").exists()
    entry = AuditEntry.objects.get(action="login_failed")
    assert (entry.address, entry.actor) == ("192.0.2.1", "anonymous")
    attempt = AccessAttempt.objects.get()
    assert (attempt.username, attempt.failures_since_start) == (None, 1)
    assert "code=" not in attempt.get_data.replace("code=***", "")


def test_the_same_login_without_a_lie_succeeds(provider: Provider) -> None:
    known("ada", "s-ada", provider)
    client = visitor()
    assert log_in(client).headers["Location"] == "/"
    assert user_of(client) == "ada"
    entry = AuditEntry.objects.get(action="login")
    assert (entry.actor, entry.object) == ("user:ada", "user:ada")
    assert entry.details == {"by": "OpenID Connect", "subject": "s-ada"}
    assert refusals() == []


def test_a_login_is_used_once(provider: Provider) -> None:
    client = visitor()
    address = way_back(client)
    assert client.get(address).status_code == 302
    for _ in range(2):
        again = client.get(address)
        assert (again.status_code, again.context["reason"]) == (400, "state")
        client.post("/logout/")
    assert user_of(client) == ""
    assert refusals() == [("login_failed", "state")] * 2
    assert provider.seen.count("/token") == 1


def test_a_code_is_redeemed_by_nobody_else(provider: Provider) -> None:
    stolen, thief = way_back(visitor()), visitor()
    assert thief.get(stolen).context["reason"] == "state"
    own = way_back(thief)
    code = stolen.partition("code=")[2].partition("&")[0]
    own_code = own.partition("code=")[2].partition("&")[0]
    mixed = thief.get(own.replace(own_code, code))
    assert (mixed.status_code, mixed.context["reason"]) == (403, "code")  # by the code challenge
    assert user_of(thief) == ""
    assert refusals() == [("login_failed", "state"), ("login_failed", "code")]
    assert AccessAttempt.objects.get().failures_since_start == 2


def test_nobody_is_logged_in_as_the_thief(provider: Provider) -> None:
    """A link to the end of the thief's own login does nothing in another browser."""
    victim = visitor()
    way_back(victim)
    provider.subject = "s-mallory"
    assert victim.get(way_back(visitor())).context["reason"] == "state"
    assert user_of(victim) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda address: address.replace("state=", "state=x"), "state"),
        (lambda address: address.replace("state=", "status="), "state"),
        (lambda address: address.partition("?")[0], "state"),
        (lambda address: address.replace("code=", "code=%00"), "token"),
        (lambda address: address.replace("code=", "code=%C3%A9"), "token"),
        (lambda address: address.replace("code=", "code=" + "x" * 5000), "token"),
        (lambda address: address.replace("code=", "word="), "token"),
        (lambda address: address.replace("iss=", "iss=https://elsewhere.example&was="), "token"),
        (lambda address: address.replace("code=", "error=access_denied&was="), "denied"),
        (lambda address: address.replace("code=", "error=<b>&error_description=%00&w="), "denied"),
    ],
)
def test_an_odd_way_back_is_refused(
    change: Callable[[str], str], reason: str, provider: Provider
) -> None:
    client = visitor()
    address = way_back(client)
    response = client.get(change(address))
    assert response.status_code == (400 if reason == "state" else 403)
    assert response.context["reason"] == reason
    assert user_of(client) == ""
    assert refusals() == [("login_failed", reason)]
    assert AccessAttempt.objects.get().failures_since_start == 1
    assert "/token" not in provider.seen
    if reason != "state":  # it has ended the login
        assert client.get(address).context["reason"] == "state"


def test_a_login_ends_after_its_time(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.oidc.PENDING_S", -1)
    assert log_in(visitor()).context["reason"] == "state"


def test_few_logins_wait(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor()
    first = way_back(client)
    newer = [way_back(client) for _ in range(5)]
    assert len(client.session["oidc_pending"]) == 5
    assert client.get(first).context["reason"] == "state"
    assert client.get(newer[0]).status_code == 302
    monkeypatch.setattr("frontend.views.oidc.STARTS_A_MINUTE", 0)
    assert visitor().get("/login/oidc/").context["reason"] == "busy"
    assert Session.objects.count() == 1


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("/jobs/?status=live", "/jobs/?status=live"),
        ("http://testserver/jobs/", "http://testserver/jobs/"),
        ("https://elsewhere.example/", "/"),
        ("//elsewhere.example/", "/"),
        ("///elsewhere.example", "/"),
        ("/\\elsewhere.example", "/"),
        ("\\\\elsewhere.example", "/"),
        ("http:elsewhere.example", "/"),
        ("javascript:alert(1)", "/"),
        (" https://elsewhere.example", "/"),
        ("https://testserver@elsewhere.example/", "/"),
        ("/jobs/\r\nSet-Cookie: a=b", "/"),
    ],
)
def test_a_login_leads_nowhere_else(wanted: str, address: str, provider: Provider) -> None:
    client = visitor()
    begun = client.get("/login/oidc/", {"next": wanted})
    back = way_back_of(begun)
    location = client.get(back).headers["Location"]
    assert location.split("\r")[0] in (address, "/jobs/%0D%0ASet-Cookie:%20a=b")
    assert "elsewhere" not in location
    assert user_of(client) == "ada"


@pytest.mark.parametrize(
    ("wanted", "address"),
    [("https://testserver/jobs/", "https://testserver/jobs/"), ("http://testserver/jobs/", "/")],
)
def test_a_login_under_https_stays_there(wanted: str, address: str, provider: Provider) -> None:
    client = visitor()
    client.get("/login/oidc/", {"next": wanted}, secure=True)
    (pending,) = client.session["oidc_pending"].values()
    assert pending["data"]["start"][0] == address


def test_a_session_from_before_the_login_is_not_the_one_after(provider: Provider) -> None:
    client = visitor()
    address = way_back(client)
    before = client.session.session_key
    client.get(address)
    assert client.session.session_key != before
    assert not Session.objects.filter(session_key=before).exists()


def test_subject_and_issuer_are_the_person(provider: Provider) -> None:
    """A taken-over name, and the same subject at another provider, are somebody else."""
    ada = known("ada", "s-ada", provider)
    provider.people["s-mallory"] = provider.people["s-ada"]
    provider.subject = "s-mallory"
    assert log_in(visitor()).context["reason"] == "name_taken"
    ExternalIdentity.objects.update(issuer="https://elsewhere.example")
    provider.subject = "s-ada"
    assert log_in(visitor()).context["reason"] == "name_taken"
    ada.refresh_from_db()
    assert ada.last_login is None
    assert refusals() == [("login_failed", "name_taken")] * 2


@pytest.mark.parametrize("name", ["ada", "ADA", "\uff41da"])
def test_a_local_account_is_not_taken_over(name: str, provider: Provider) -> None:
    """Neither by its name, in whatever letters, nor by its e-mail address."""
    ada = User.objects.create_user("ada", "ada@lab.example", PASSWORD, is_staff=True)
    provider.people["s-ada"] = {"preferred_username": name, "email": "ada@lab.example"}
    client = visitor()
    response = log_in(client)
    assert (response.status_code, response.context["reason"]) == (403, "name_taken")
    assert user_of(client) == ""
    assert not ExternalIdentity.objects.exists()
    provider.people["s-ada"]["preferred_username"] = "somebody"
    log_in(client)
    assert user_of(client) == "somebody"
    assert User.objects.get(username="somebody").pk != ada.pk


def test_a_deactivated_user_is_refused_and_thrown_out(provider: Provider, settings: Any) -> None:
    ada = known("ada", "s-ada", provider)
    client = visitor()
    log_in(client)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert user_of(client) == ""
    response = log_in(client)
    assert (response.status_code, response.context["reason"]) == (403, "inactive")
    assert user_of(client) == ""
    entry = AuditEntry.objects.get(action="login_failed")
    assert entry.object == "user:ada"
    assert entry.details == {"by": "OpenID Connect", "reason": "inactive", "subject": "s-ada"}
    log_in(client)
    assert len(refusals()) == 1  # the same once for each lock's time
    settings.AXES_COOLOFF_TIME = datetime.timedelta(0)
    log_in(client)
    assert len(refusals()) == 2


def test_failures_lock_the_address_and_nobodys_name(provider: Provider, settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 3
    known("ada", "s-ada", provider)
    strangers = [visitor(f"2001:db8::{number}") for number in range(1, 6)]  # one network
    answers = [each.get("/login/oidc/callback/?state=x&code=y") for each in strangers]
    stranger = strangers[-1]
    assert [answer.status_code for answer in answers] == [400, 400, 429, 429, 429]
    assert b"Too many failed logins" in answers[-1].content
    assert [action for action, _ in refusals()] == ["login_failed"] * 2 + ["login_locked"]
    seen = len(provider.seen)
    assert stranger.get("/login/oidc/").status_code == 429
    assert len(provider.seen) == seen
    words = {"username": "ada", "password": PASSWORD}
    assert stranger.post("/login/", words).status_code == 429
    client = visitor("192.0.2.77")
    assert log_in(client).status_code == 302
    assert user_of(client) == "ada"


def test_wrong_passwords_lock_the_address_here_too(provider: Provider, settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 3
    known("ada", "s-ada", provider)
    begun = visitor()
    address = way_back(begun)
    for number in range(3):
        visitor().post("/login/", {"username": f"user{number}", "password": "guess"})
    assert visitor().get("/login/oidc/").status_code == 429
    assert begun.get(address).status_code == 429
    assert user_of(begun) == ""
    assert "/token" not in provider.seen
    for number in range(3):  # a name that is locked for passwords
        visitor(f"192.0.2.{number}").post("/login/", {"username": "ada", "password": "guess"})
    client = visitor("192.0.2.9")
    log_in(client)
    assert user_of(client) == "ada"


def test_without_a_provider_there_is_no_such_login(db: None) -> None:
    client = visitor()
    client.force_login(User.objects.create_user("ada"))
    assert client.post("/account/link/", {"password": ""}).status_code == 404
    for address in ("/login/oidc/", "/login/oidc/callback/?state=x&code=y"):
        assert visitor().get(address).status_code == 404
    assert b"oidc" not in visitor().get("/login/").content
