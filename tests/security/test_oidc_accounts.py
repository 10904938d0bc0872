"""Accounts of people who log in by OpenID Connect: made, waiting, linked, with rights."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs.models import ApiToken, AuditEntry, ExternalIdentity
from jobs.services.cluster.accounts import CONFIRMED_S, OIDC_LOGIN_AT
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


def test_few_accounts_wait(
    provider: Provider, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OIDC_USERS = "ask"
    monkeypatch.setattr("jobs.services.cluster.identities.WAITING_LIMIT", 1)
    assert reason_of(visitor(), provider, "s-ada") == "waiting"
    assert reason_of(visitor(), provider, "s-grace") == "full"
    assert User.objects.count() == 1


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
    assert not User.objects.get(username="grace").is_staff
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
    assert link(client, provider).headers["Location"] == "/account/"
    assert b'<code class="wrap">s-ada</code>' in client.get("/account/").content
    assert AuditEntry.objects.get(action="identity_linked").actor == "user:countess"
    other = visitor()
    assert reason_of(other, provider) == ""
    assert user_of(other) == "countess"


def test_an_account_of_the_provider_has_one_owner(provider: Provider) -> None:
    known("ada", "s-ada", provider)
    mallory = User.objects.create_user("mallory", password=PASSWORD)
    client = visitor()
    client.force_login(mallory)
    response = link(client, provider)
    assert (response.status_code, response.context["reason"]) == (403, "linked")
    assert ExternalIdentity.objects.get().user.username == "ada"
    assert refusals() == [("login_failed", "linked")]


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


def test_whoever_is_logged_in_is_not_sent_away(provider: Provider) -> None:
    client = visitor()
    reason_of(client, provider)
    assert client.get("/login/oidc/?next=/jobs/").headers["Location"] == "/jobs/"
    assert "prompt=login" in client.get("/login/oidc/?again").headers["Location"]


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
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss", password=PASSWORD))
    page = boss.get(reverse("admin:auth_user_change", args=[ada.pk])).content.decode()
    assert "external_identities-0-DELETE" in page
    assert "s-ada" in page
