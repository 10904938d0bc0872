"""Passwords cannot be guessed, weak ones are refused, sessions are short and end (H6)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory
from django.utils import timezone

from jobs.models import AuditEntry
from jobs.origins import client_address, client_network
from jobs.tasks import expire_records
from tests.support.builders import api_token_make, logged_in
from tests.support.rows import clock_settle

pytestmark = pytest.mark.django_db

PASSWORD, NEW = "rowing-boat-on-a-lake", "another-boat-on-a-lake"
LIMIT = 3


@pytest.fixture(autouse=True)
def _few_failures(settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = LIMIT


@pytest.fixture
def ada(db: None, _few_failures: None) -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def log_in(name: str, password: str, address: str = "192.0.2.1", **headers: str) -> int:
    words = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address, headers=headers).post("/login/", words).status_code


def by_page(user: User) -> Callable[[str], int]:
    return lambda password: log_in("ada", password)


def by_token_form(user: User) -> Callable[[str], int]:
    client = logged_in(user)
    fields = {"name": "ci", "days": "3", "may_read": "on"}
    return lambda word: client.post("/account/tokens/", {**fields, "password": word}).status_code


def by_rest(user: User) -> Callable[[str], int]:
    client = logged_in(user)
    body = {"name": "ci"}
    return lambda word: (
        client.post(
            "/api/v1/tokens/", {**body, "password": word}, content_type="application/json"
        ).status_code
    )


def by_password_form(user: User) -> Callable[[str], int]:
    client = logged_in(user)
    new = {"new_password1": NEW, "new_password2": NEW}
    return lambda word: client.post("/account/password/", {**new, "old_password": word}).status_code


WAYS = [by_page, by_token_form, by_rest, by_password_form]


@pytest.mark.parametrize("way", WAYS)
def test_guessing_is_locked_everywhere(way: Callable[..., Any], ada: User) -> None:
    guess = way(ada)
    answers = [guess(f"guess {number}") for number in range(LIMIT)]
    assert set(answers[:-1]) <= {200, 400}
    assert answers[-1] == 429
    assert guess(PASSWORD) == 429
    assert User.objects.get(pk=ada.pk).check_password(PASSWORD)
    actions = [entry.action for entry in AuditEntry.objects.order_by("id")]
    assert actions == [*["login_failed"] * (LIMIT - 1), "login_locked"]


@pytest.mark.parametrize("way", WAYS)
def test_no_typed_password_is_stored(way: Callable[..., Any], ada: User) -> None:
    way(ada)("a slip of the keyboard")
    stored = str([*AccessAttempt.objects.values(), *AuditEntry.objects.values()])
    assert "ada" in stored
    assert "slip" not in stored
    assert NEW not in stored


@pytest.mark.parametrize("way", WAYS)
def test_the_right_password_works_before(way: Callable[..., Any], ada: User) -> None:
    guess = way(ada)
    assert guess("guess") in (200, 400)
    assert guess(PASSWORD) in (200, 201, 302)


def test_the_lock_is_of_a_name_and_of_an_address(ada: User) -> None:
    User.objects.create_user("bob", password=PASSWORD)
    for number in range(LIMIT):
        log_in("ada", "guess", f"192.0.2.{number}")
    assert log_in("ada", PASSWORD, "192.0.2.77") == 429  # by name, from a new address
    assert log_in("bob", PASSWORD, "192.0.2.78") == 302
    for number in range(LIMIT):
        log_in(f"somebody{number}", "guess", "192.0.2.99")
    assert log_in("bob", PASSWORD, "192.0.2.99") == 429  # by address, with a new name


def test_a_success_between_does_not_forget_failures(ada: User) -> None:
    User.objects.create_user("mallory", password=PASSWORD)
    for number in range(LIMIT):
        assert log_in("ada", f"guess {number}") == (200 if number < LIMIT - 1 else 429)
        log_in("mallory", PASSWORD)
    assert log_in("ada", PASSWORD, "192.0.2.2") == 429


def test_a_lock_ends_and_waiting_attempts_do_not_prolong_it(
    ada: User, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    start = timezone.now()
    for _ in range(LIMIT + 2):
        log_in("ada", "guess")
    later = start + settings.AXES_COOLOFF_TIME / 2
    monkeypatch.setattr("axes.handlers.proxy.now", lambda: later)
    assert log_in("ada", PASSWORD) == 429
    later = start + settings.AXES_COOLOFF_TIME + datetime.timedelta(seconds=60)
    assert log_in("ada", PASSWORD) == 302


def test_sessions_and_tokens_go_on_during_a_lock(ada: User) -> None:
    client = logged_in(ada)
    token = api_token_make(ada)
    for _ in range(LIMIT):
        log_in("ada", "guess")
    assert client.get("/").status_code == 200
    sent = Client(headers={"Authorization": f"Bearer {token}"})
    assert sent.get("/api/v1/jobs/").status_code == 200


@pytest.mark.parametrize(
    ("num_proxies", "forwarded", "address"),
    [
        (0, "198.51.100.7", "192.0.2.1"),
        (1, "203.0.113.9, 198.51.100.7", "198.51.100.7"),
        (2, "203.0.113.9, 198.51.100.7, 10.0.0.1", "198.51.100.7"),
        (1, "", "192.0.2.1"),
        (1, "nonsense", ""),
        (1, "<script>", ""),
    ],
)
def test_the_address_is_what_the_nearest_proxies_say(
    num_proxies: int, forwarded: str, address: str, settings: Any
) -> None:
    settings.NUM_PROXIES = num_proxies
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    request = RequestFactory(headers=headers).get("/", REMOTE_ADDR="192.0.2.1")
    assert client_address(request) == address


def test_an_ipv6_client_is_its_network_and_an_ipv4_one_itself() -> None:
    for host in (":1", ":2", "ffff:ffff:ffff:ffff"):
        request = RequestFactory().get("/", REMOTE_ADDR=f"2001:db8:0:1:{host}")
        assert client_network(request) == "2001:db8:0:1::"
    for address, network in (("::ffff:192.0.2.1", "192.0.2.1"), ("fe80::1%eth0", "fe80::")):
        assert client_network(RequestFactory().get("/", REMOTE_ADDR=address)) == network


@pytest.mark.parametrize("weak", ["a", "password", "12345678901"])
def test_the_first_admin_has_no_weak_password(weak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", weak)
    with pytest.raises(CommandError, match="ADMIN_PASSWORD"):
        call_command("prepare", admin="root-of-all")
    assert not User.objects.exists()


def test_a_person_changes_the_own_password(ada: User) -> None:
    token = api_token_make(ada)
    here, elsewhere = Client(), Client()
    for client in (here, elsewhere):
        client.force_login(ada)
    words = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    for wrong in ({"new_password2": "x"}, {"new_password1": "a", "new_password2": "a"}):
        assert here.post("/account/password/", words | wrong).status_code == 200
    assert here.post("/account/password/", words).headers["Location"] == "/account/"
    assert here.get("/").status_code == 200
    assert elsewhere.get("/").status_code == 302
    sent = Client(headers={"Authorization": f"Bearer {token}"})
    assert sent.get("/api/v1/jobs/").status_code == 401
    assert log_in("ada", NEW) == 302
    User.objects.filter(pk=ada.pk).update(is_staff=True)
    again = {"old_password": NEW, "new_password1": PASSWORD, "new_password2": PASSWORD}
    # No lock would count wrong passwords there.
    assert here.post("/admin/password_change/", again).headers["Location"] == "/account/password/"
    entry = AuditEntry.objects.get(action="password_changed")
    assert (entry.actor, entry.object) == ("user:ada", "user:ada")
    assert entry.details == {"tokens_revoked": 1}


def test_sessions_are_short_and_have_names_of_their_own(ada: User) -> None:
    client = Client()
    client.get("/login/")
    client.post("/login/", {"username": "ada", "password": PASSWORD})
    session = client.cookies["virtualflow_session"]
    assert session["max-age"] == 12 * 3600
    assert "virtualflow_csrf" in client.cookies
    assert not {"sessionid", "csrftoken"} & set(client.cookies)


def test_ended_sessions_are_deleted_by_beat(ada: User) -> None:
    client = logged_in(ada)
    Session.objects.create(
        session_key="old", session_data="", expire_date=timezone.now() - datetime.timedelta(days=1)
    )
    expire_records()
    assert Session.objects.filter(session_key="old").exists(), "the clock may be wrong"
    clock_settle()
    expire_records()
    assert not Session.objects.filter(session_key="old").exists()
    assert client.get("/").status_code == 200
