"""The admin site: records that nobody can change there, accounts, and who gets in."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from jobs.admin import RecordAdmin, site
from jobs.models import ApiToken, Event, Node
from tests.support.builders import api_token_make, at, job_make, logged_in, node_make, user_make

pytestmark = pytest.mark.django_db

RECORDS = [model for model, page in site._registry.items() if isinstance(page, RecordAdmin)]


@pytest.fixture
def superuser() -> Client:
    user = User.objects.create_superuser("root", password="only-for-this-test")
    return logged_in(user)


@pytest.fixture
def admin() -> Client:
    return logged_in(user_make("boss", is_staff=True))


def address(model: type, what: str, *arguments: object) -> str:
    return reverse(f"admin:jobs_{model.__name__.lower()}_{what}", args=arguments)


def test_every_list_and_every_record_is_shown_and_none_can_be_changed(admin: Client) -> None:
    owner = user_make("ada")
    job = job_make(owner)
    node, _ = node_make()
    api_token_make(owner)
    Event.objects.create(job=job, node=node, kind="submitted", message="submitted", at=at(0))
    num_shown = 0
    for model in RECORDS:
        assert admin.get(address(model, "changelist")).status_code == 200, model
        assert admin.get(address(model, "changelist"), {"q": "a"}).status_code == 200, model
        assert admin.get(address(model, "add")).status_code == 403, model
        for row in model.objects.all()[:1]:
            num_shown += 1
            assert admin.get(address(model, "change", row.pk)).status_code == 200, model
            assert admin.post(address(model, "change", row.pk), {}).status_code == 403, model
            assert admin.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
    assert num_shown >= 5


def test_digests_of_credentials_are_not_shown(admin: Client) -> None:
    node, _ = node_make()
    Node.objects.update(next_agent_token_digest="b" * 64)
    node.refresh_from_db()
    api_token_make(user_make("ada"))
    for row in (node, ApiToken.objects.get()):
        page = admin.get(address(type(row), "change", row.pk))
        assert page.status_code == 200
        names = [one.name for one in row._meta.concrete_fields if one.name.endswith("digest")]
        assert len(names) == (2 if row is node else 1)
        assert [name for name in names if getattr(row, name) in page.content.decode()] == []


def test_an_admin_revokes_the_tokens_of_anybody(admin: Client) -> None:
    api_token_make(user_make("ada"))
    token = ApiToken.objects.get()
    fields = {"action": "revoke", "_selected_action": [token.pk]}
    assert admin.post(address(ApiToken, "changelist"), fields).status_code == 302
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_a_superuser_makes_an_account_that_can_log_in(superuser: Client) -> None:
    password = "three-words-together"
    fields = {"username": "grace", "usable_password": "true"}
    fields |= {"password1": password, "password2": password}
    assert superuser.post(reverse("admin:auth_user_add"), fields).status_code == 302
    words = {"username": "grace", "password": password}
    assert Client().post("/login/", words).status_code == 302
    assert not User.objects.get(username="grace").is_staff


def test_the_form_for_accounts_tells_which_nodes_it_will_close(
    superuser: Client, settings: Any
) -> None:
    shared, _ = node_make("shared")
    apart, _ = node_make("apart")
    Node.objects.filter(pk=shared.pk).update(isolation="none")
    Node.objects.filter(pk=apart.pk).update(isolation="uid")
    page = reverse("admin:auth_user_add")
    settings.USERS_TRUST_EACH_OTHER = True
    assert "take no new work" not in superuser.get(page).content.decode()
    settings.USERS_TRUST_EACH_OTHER = False
    text = superuser.get(page).content.decode()
    assert "while the site has several active accounts: shared. Start" in text
    Node.objects.filter(pk=shared.pk).update(isolation="uid")
    assert "take no new work" not in superuser.get(page).content.decode()


def test_an_admin_without_permissions_gives_nobody_rights(admin: Client) -> None:
    """Accounts are a superuser's, so that no admin makes itself one."""
    assert admin.get(reverse("admin:auth_user_changelist")).status_code == 403
    assert admin.get(reverse("admin:auth_user_add")).status_code == 403
    assert reverse("admin:auth_user_changelist") not in admin.get("/admin/").content.decode()
    boss = User.objects.get(username="boss")
    boss.user_permissions.add(Permission.objects.get(codename="view_user"))
    fields = {"username": "boss", "is_superuser": "on"}
    assert admin.post(reverse("admin:auth_user_change", args=[boss.pk]), fields).status_code == 403
    boss.refresh_from_db()
    assert not boss.is_superuser


def test_others_are_sent_to_the_login_or_away() -> None:
    client = Client()
    response = client.get("/admin/", follow=True)
    assert response.redirect_chain[-1][0] == "/login/?next=/admin/"
    client.force_login(user_make("ada"))
    assert client.get("/admin/", follow=True).status_code == 403
    assert "Users and records" not in client.get("/").content.decode()


def deletion(client: Client, *users: User) -> str:
    """Try to delete accounts, one on its page and several from the list; return what is shown."""
    if len(users) == 1:
        path, fields = reverse("admin:auth_user_delete", args=[users[0].pk]), {"post": "yes"}
        shown = client.get(path).content.decode()
        client.post(path, fields)
        return shown
    action: dict[str, Any] = {
        "action": "delete_selected", "_selected_action": [user.pk for user in users]
    }  # fmt: skip
    path = reverse("admin:auth_user_changelist")
    shown = client.post(path, action).content.decode()
    client.post(path, action | {"post": "yes"})
    return shown


@pytest.mark.parametrize("together", [False, True])
def test_an_account_with_jobs_stays_and_the_page_says_what_to_do(
    superuser: Client, together: bool
) -> None:
    ada, bob = user_make("ada"), user_make("bob")
    job_make(ada)
    api_token_make(ada)
    shown = deletion(superuser, *((ada, bob) if together else (ada,)))
    assert "ada: has submitted jobs, which are kept. Untick “Active” instead." in shown
    assert "doesn't have permission" not in shown
    assert User.objects.filter(pk__in=[ada.pk, bob.pk]).count() == 2


def test_an_account_without_jobs_goes_with_its_tokens(superuser: Client) -> None:
    ada = user_make("ada")
    api_token_make(ada)
    deletion(superuser, ada)
    assert not User.objects.filter(username="ada").exists()
    assert not ApiToken.objects.exists()


def test_nobody_deletes_the_own_account_or_its_rights(superuser: Client) -> None:
    root = User.objects.get(username="root")
    assert "root: is your own account." in deletion(superuser, root)
    whole = {"username": "root", "date_joined_0": "2026-01-01", "date_joined_1": "00:00"}
    for part in ("limits", "external_identities"):
        whole |= {f"{part}-TOTAL_FORMS": "0", f"{part}-INITIAL_FORMS": "0"}
    path = reverse("admin:auth_user_change", args=[root.pk])
    assert superuser.post(path, whole | {"last_name": "Lovelace"}).status_code == 302
    root.refresh_from_db()
    assert (root.last_name, root.is_active, root.is_superuser) == ("Lovelace", True, True)
