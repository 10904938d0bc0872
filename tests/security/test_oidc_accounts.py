"""Accounts of people who log in by OpenID Connect: made, waiting, linked, with rights."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs.models import ApiToken, AuditEntry, ExternalIdentity
from jobs.services.cluster.accounts import CONFIRMED_S, OIDC_LOGIN_AT
from tests.support.builders import logged_in
from tests.support.oidc_login import (
    PASSWORD,
    known,
    log_in,
    refusals,
    user_of,
    visitor,
    way_back,
)
from tests.support.oidc_provider import Provider

pytestmark = pytest.mark.django_db


def reason_of(client: Client, provider: Provider, subject: str = "s-ada") -> str:
    """Log in as an account of the provider; return why it was refused, or nothing."""
    provider.subject = subject
    response = log_in(client)
    return response.context["reason"] if response.status_code == 403 else ""


def test_anybody_of_the_provider_is_let_in_where_the_site_says_so(provider: Provider) -> None:
    client = visitor()
    assert reason_of(client, provider) == ""
    ada = User.objects.get(username="ada")
    assert user_of(client) == "ada"
    assert (ada.is_staff, ada.is_superuser, ada.has_usable_password()) == (False, False, False)
    made = AuditEntry.objects.get(action="user_made")
    assert (made.object, made.details["subject"]) == ("user:ada", "s-ada")
    provider.people["s-ada"]["preferred_username"] = "countess"  # the account keeps its name
    again = visitor()
    assert reason_of(again, provider) == ""
    assert user_of(again) == "ada"
    assert User.objects.count() == 1


def test_an_account_waits_for_an_admin(provider: Provider, settings: Any) -> None:
    settings.OIDC_USERS = "ask"
    client = visitor()
    assert [reason_of(client, provider) for _ in range(2)] == ["waiting", "waiting"]
    assert user_of(client) == ""
    assert User.objects.get().is_active is False
    User.objects.update(is_active=True)
    assert reason_of(client, provider) == ""
    assert user_of(client) == "ada"
    User.objects.update(is_active=False)
    assert reason_of(visitor(), provider) == "inactive"


@pytest.mark.parametrize("is_same_person", [True, False])
def test_somebody_else_was_first(
    is_same_person: bool, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the names and the new row another process makes one of them."""

    def made_meanwhile(name: str, **_: Any) -> str:
        known(name, "s-ada" if is_same_person else "s-other", provider)
        return ""

    monkeypatch.setattr("jobs.services.cluster.identities._reason_against", made_meanwhile)
    client = visitor()
    assert reason_of(client, provider) == ("" if is_same_person else "name_taken")
    assert user_of(client) == ("ada" if is_same_person else "")
    assert User.objects.count() == ExternalIdentity.objects.count() == 1


def test_few_accounts_wait(
    provider: Provider, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OIDC_USERS = "ask"
    monkeypatch.setattr("jobs.services.cluster.identities.WAITING_LIMIT", 1)
    assert reason_of(visitor(), provider, "s-ada") == "waiting"
    assert reason_of(visitor(), provider, "s-grace") == "full"
    assert User.objects.count() == 1
    User.objects.update(is_active=True)  # waits no longer
    assert reason_of(visitor(), provider, "s-grace") == "waiting"


def test_only_known_people_are_let_in(provider: Provider, settings: Any) -> None:
    settings.OIDC_USERS = "known"
    assert reason_of(visitor(), provider) == "unknown"
    assert not User.objects.exists()
    known("countess", "s-ada", provider)
    client = visitor()
    assert reason_of(client, provider) == ""
    assert user_of(client) == "countess"


@pytest.mark.parametrize("name", [None, 7, "", "<b>ada</b>", "a b", "x" * 151, "ada\0", "\ud800"])
def test_a_name_that_cannot_be_one_makes_no_account(name: Any, provider: Provider) -> None:
    provider.people["s-ada"] = {"preferred_username": name}
    assert reason_of(visitor(), provider) == "name_invalid"
    assert not User.objects.exists()


def test_the_name_is_of_the_claim_that_the_site_chose(provider: Provider, settings: Any) -> None:
    settings.OIDC_NAME_CLAIM = "email"
    client = visitor()
    assert reason_of(client, provider) == ""
    assert user_of(client) == "ada@lab.example"


def test_signed_claims_count_before_the_user_info(provider: Provider, settings: Any) -> None:
    settings.OIDC_ADMIN_GROUP = "admins"  # which makes the site ask for the user info
    provider.claims = {"preferred_username": "countess"}
    client = visitor()
    assert reason_of(client, provider) == ""
    assert "/userinfo" in provider.seen
    assert user_of(client) == "countess"


@pytest.mark.parametrize(
    ("groups", "is_let_in", "is_staff"),
    [
        (["lab"], True, False), (["lab", "admins"], True, True), (["admins"], True, True),
        ("lab", True, False), (["others"], False, False), ([], False, False),
        (None, False, False), ({"lab": 1}, False, False), ([["lab"], 7], False, False),
    ],
)  # fmt: skip
def test_groups_let_in_and_make_admins(
    groups: Any, is_let_in: bool, is_staff: bool, provider: Provider, settings: Any
) -> None:
    settings.OIDC_USER_GROUP, settings.OIDC_ADMIN_GROUP = "lab", "admins"
    ada = known("ada", "s-ada", provider, is_staff=True)
    provider.people["s-ada"]["groups"] = groups
    assert reason_of(visitor(), provider) == ("" if is_let_in else "group")
    ada.refresh_from_db()
    if is_let_in:
        assert ada.is_staff is is_staff
    changed = AuditEntry.objects.filter(action="user_changed", object="user:ada")
    assert changed.exists() is (is_let_in and not is_staff)


def test_groups_make_no_admins_unless_the_site_says_so(provider: Provider, settings: Any) -> None:
    assert reason_of(visitor(), provider, "s-grace") == ""
    grace = User.objects.filter(username="grace")
    assert not grace.get().is_staff
    grace.update(is_staff=True)
    assert reason_of(visitor(), provider, "s-grace") == ""
    assert grace.get().is_staff  # nor does it take away what the site has given
    settings.OIDC_ADMIN_GROUP = "admins"
    root = User.objects.create_superuser("root", password=PASSWORD)
    ExternalIdentity.objects.create(
        user=root, issuer=provider.address, subject="s-ada", created_at=root.date_joined
    )
    assert reason_of(visitor(), provider) == ""
    root.refresh_from_db()
    assert root.is_staff  # a superuser stays one, whatever the provider says


def link(client: Client, provider: Provider, password: str = PASSWORD) -> Any:
    client.post("/account/link/", {"password": password})
    return log_in(client, "?link")


def test_a_local_account_is_linked_by_its_owner(provider: Provider) -> None:
    ada = User.objects.create_user("countess", password=PASSWORD)
    client = visitor()
    client.force_login(ada)
    assert client.get("/login/oidc/?link").headers["Location"] == "/account/"
    client.post("/account/link/", {"password": "guess"})
    assert client.get("/login/oidc/?link").headers["Location"] == "/account/"
    assert b"Link an account of the lab" in client.get("/account/").content
    for _ in range(2):  # the second time changes nothing
        assert link(client, provider).headers["Location"] == "/account/"
    assert client.get("/login/oidc/?link").headers["Location"] == "/account/"  # confirmed once
    assert b'<code class="wrap">s-ada</code>' in client.get("/account/").content
    assert AuditEntry.objects.get(action="identity_linked").actor == "user:countess"
    other = visitor()
    assert reason_of(other, provider) == ""
    assert user_of(other) == "countess"


def test_a_link_to_another_provider_is_void(provider: Provider) -> None:
    client = visitor()
    client.force_login(known("countess", "s-ada", provider))
    assert b"s-ada" in client.get("/account/").content
    ExternalIdentity.objects.update(issuer="https://elsewhere.example")
    assert b"s-ada" not in client.get("/account/").content
    assert link(client, provider).headers["Location"] == "/account/"
    assert ExternalIdentity.objects.count() == 2


def test_an_account_of_the_provider_has_one_owner(provider: Provider) -> None:
    known("ada", "s-ada", provider)
    mallory = User.objects.create_user("mallory", password=PASSWORD)
    client = visitor()
    client.force_login(mallory)
    response = link(client, provider)
    assert (response.status_code, response.context["reason"]) == (403, "linked")
    assert ExternalIdentity.objects.get().user.username == "ada"
    assert refusals() == [("login_failed", "linked")]


def test_a_confirmation_is_of_an_active_user(provider: Provider) -> None:
    client = visitor()
    client.force_login(User.objects.create_user("ada", password=PASSWORD))
    client.post("/account/link/", {"password": PASSWORD})
    assert client.session["oidc_links_until"] <= time.time() + CONFIRMED_S
    address = way_back(client, "?link")
    seen = len(provider.seen)
    User.objects.update(is_active=False)
    assert client.get("/login/oidc/?link").headers["Location"] == "/account/"
    assert len(provider.seen) == seen
    assert client.get(address).context["reason"] == "other_user"
    assert not ExternalIdentity.objects.exists()


def test_a_link_that_somebody_else_ends_is_none(provider: Provider) -> None:
    client = visitor()
    client.force_login(User.objects.create_user("ada", password=PASSWORD))
    client.post("/account/link/", {"password": PASSWORD})
    address = way_back(client, "?link")
    mallory = User.objects.create_user("mallory")
    kept = client.session["oidc_pending"]
    client.force_login(mallory)
    session = client.session
    session["oidc_pending"] = kept
    session.save()
    assert client.get(address).context["reason"] == "other_user"
    assert not ExternalIdentity.objects.exists()


def test_a_fresh_login_stands_for_the_password(provider: Provider) -> None:
    client = visitor()
    reason_of(client, provider)
    page = client.get("/account/").content.decode()
    assert "log in again with the lab" in page
    assert "Change the password" not in page
    words = {"name": "ci", "days": "3", "may_read": "on"}
    assert b"shown only once" in client.post("/account/tokens/", words).content
    other = visitor()
    other.force_login(User.objects.get(username="ada"))  # by no login at the provider
    assert b"Log in again with the lab" in other.post("/account/tokens/", words).content
    session = client.session
    session[OIDC_LOGIN_AT] = time.time() - CONFIRMED_S - 1
    session.save()
    refused = client.post("/account/tokens/", words)
    assert b"Log in again with the lab" in refused.content
    body = {"name": "ci", "password": ""}
    by_rest = client.post("/api/v1/tokens/", body, content_type="application/json")
    assert by_rest.status_code == 400
    assert ApiToken.objects.count() == 1
    assert log_in(client, "?again&next=/account/").headers["Location"] == "/account/"
    assert b"shown only once" in client.post("/account/tokens/", words).content


@pytest.mark.parametrize(("age_s", "is_enough"), [(0, True), (CONFIRMED_S + 60, False)])
def test_a_login_is_as_fresh_as_the_password_at_the_provider(
    age_s: int, is_enough: bool, provider: Provider
) -> None:
    """The user of a browser left open takes `prompt=login` out of the address."""
    provider.claims = {"auth_time": int(time.time()) - age_s}
    client = visitor()
    assert log_in(client, "?again").status_code == 302
    assert user_of(client) == "ada"
    words = {"name": "ci", "days": "3", "may_read": "on"}
    assert (b"shown only once" in client.post("/account/tokens/", words).content) is is_enough
    assert ApiToken.objects.exists() is is_enough


def test_a_provider_cannot_date_a_login_into_the_future(provider: Provider) -> None:
    provider.claims = {"auth_time": int(time.time()) + 10 * CONFIRMED_S}
    client = visitor()
    log_in(client)
    assert client.session[OIDC_LOGIN_AT] <= time.time()


def test_whoever_is_logged_in_is_not_sent_away(provider: Provider) -> None:
    client = visitor()
    reason_of(client, provider)
    assert client.get("/login/oidc/?next=/jobs/").headers["Location"] == "/jobs/"
    assert client.get("/login/oidc/?next=job").headers["Location"] == "/"
    assert "prompt=login" in client.get("/login/oidc/?again").headers["Location"]


def test_an_identity_is_always_asked_for(provider: Provider, settings: Any) -> None:
    settings.OIDC_SCOPES = "profile groups"
    query = parse_qs(urlsplit(visitor().get("/login/oidc/").headers["Location"]).query)
    assert query["scope"] == ["openid profile groups"]


def test_sessions_end_with_a_new_password(provider: Provider) -> None:
    client, boss = visitor(), Client()
    reason_of(client, provider)
    boss.force_login(User.objects.create_superuser("boss", password=PASSWORD))
    words = {"password1": "three-words-together", "password2": "three-words-together"}
    words["usable_password"] = "true"
    ada = User.objects.get(username="ada")
    boss.post(reverse("admin:auth_user_password_change", args=[ada.pk]), words)
    assert user_of(client) == ""


def test_passwords_can_be_for_superusers_alone(provider: Provider, settings: Any) -> None:
    settings.HAS_PASSWORD_LOGIN = False
    page = Client().get("/login/?next=/jobs/").content.decode()
    assert "Log in with the lab" in page
    assert "?next=%2Fjobs%2F" in page
    assert 'type="password"' not in page
    assert 'type="password"' in Client().get("/login/?superuser").content.decode()
    User.objects.create_user("ada", password=PASSWORD, is_staff=True)
    User.objects.create_superuser("root", password=PASSWORD)
    ada, root = visitor(), visitor()
    refused = ada.post("/login/", {"username": "ada", "password": PASSWORD})
    assert b"Passwords let only superusers in here" in refused.content
    assert user_of(ada) == ""
    provider.answers = {"/.well-known/openid-configuration": (500, b"")}
    assert root.post("/login/", {"username": "root", "password": PASSWORD}).status_code == 302
    assert user_of(root) == "root"


def test_an_admin_removes_a_link(provider: Provider) -> None:
    ada = known("ada", "s-ada", provider)
    boss = logged_in(User.objects.create_superuser("boss", password=PASSWORD))
    page = boss.get(reverse("admin:auth_user_change", args=[ada.pk])).content.decode()
    assert "external_identities-0-DELETE" in page
    assert "s-ada" in page
