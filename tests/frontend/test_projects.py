"""Pages of projects and usage: what they show to whom, and what their forms do."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from jobs.models import AcceleratorPrice, Job, Project, ProjectMembership
from jobs.selectors import access
from tests.frontend.world import World, make_sweep


@pytest.fixture
def vision(world: World) -> Project:
    return Project.objects.get(name="vision")


def page(client: Client, address: str, status: int = 200) -> str:
    response = client.get(address)
    assert response.status_code == status
    return " ".join(response.content.decode().split())


def test_members_see_their_projects_and_others_none(
    vision: Project, ada: Client, ben: Client
) -> None:
    shown = page(ada, "/projects/")
    assert "lose no step" in shown
    assert f'href="/projects/{vision.pk}/"' in shown
    assert "New project" not in shown
    assert "vision" not in page(ben, "/projects/")
    page(ben, f"/projects/{vision.pk}/", 404)


def test_a_project_tells_what_it_borrows(vision: Project, ada: Client, admin: Client) -> None:
    """Three accelerators are held and two guaranteed; a member changes nothing."""
    shown = page(ada, f"/projects/{vision.pk}/")
    assert "3 accelerators, for 1 job" in shown
    assert "1 cpu, given back at once when others need their share" in shown
    assert "Add a member" not in shown
    assert "Shares and limits" not in shown
    assert "Shares and limits" in page(admin, f"/projects/{vision.pk}/")


def test_shares_of_kinds_are_shown_and_changed(vision: Project, ada: Client, admin: Client) -> None:
    """The project holds three cpu; what is guaranteed of them is not borrowed."""
    address = f"/projects/{vision.pk}/"
    shown = page(admin, address)
    assert 'name="guaranteed_by_kind_cpu"' in shown
    assert "1 cpu, given back at once" in shown
    assert "1 cpu" in page(ada, "/usage/").partition("Borrowed now")[2]
    values = {"guaranteed": "2", "guaranteed_by_kind_cpu": "3", "limit_by_kind_cpu": "4"}
    admin.post(f"{address}edit/", values)
    vision.refresh_from_db()
    assert (vision.guaranteed_by_kind, vision.limit_by_kind) == ({"cpu": 3}, {"cpu": 4})
    shown = page(ada, address)
    assert '<td class="number" data-label="limit">4</td>' in shown
    assert "<dt>Borrowed</dt><dd>none</dd>" in shown
    assert "Borrowed now" not in page(ada, "/usage/")
    assert "2, 3 cpu" in page(ada, "/projects/")
    wrong = admin.post(f"{address}edit/", {**values, "limit_by_kind_cpu": "2"}, follow=True)
    assert "cpu: give at most 2, its limit, or raise the limit." in wrong.content.decode()
    admin.post(f"{address}edit/", {"guaranteed": "2"})
    vision.refresh_from_db()
    assert (vision.guaranteed_by_kind, vision.limit_by_kind) == ({}, {})


def test_a_new_project_has_shares_of_kinds(world: World, admin: Client, ada: Client) -> None:
    shown = page(admin, "/projects/")
    assert 'name="guaranteed_by_kind_cpu" min="0"' in shown
    assert 'name="limit_by_kind_t4"' in shown
    assert "Of the 2 of this kind; empty: none." in shown
    assert "guaranteed_by_kind" not in page(ada, "/projects/")
    values = {
        "name": "speech", "description": "Speech.", "guaranteed": "1", "limit": "6",
        "user_limit": "3", "live_jobs_limit": "9", "user_live_jobs_limit": "",
        "guaranteed_by_kind_cpu": "2", "limit_by_kind_cpu": "4", "limit_by_kind_t4": "0",
    }  # fmt: skip
    admin.post("/projects/new/", values)
    made = Project.objects.get(name="speech")
    assert (made.guaranteed, made.limit, made.user_limit, made.description) == (1, 6, 3, "Speech.")
    assert (made.live_jobs_limit, made.user_live_jobs_limit) == (9, None)
    assert (made.guaranteed_by_kind, made.limit_by_kind) == ({"cpu": 2}, {"cpu": 4, "t4": 0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"guaranteed_by_kind_cpu": "5"}, "cpu: give at most 4, its limit"),
        ({"guaranteed_by_kind_cpu": "x"}, "whole number"),
        ({"limit_by_kind_v100": "1"}, "v100: no enrolled node has this kind"),
        ({"guaranteed_by_kind_t4": "3"}, "t4: the cluster has 2"),
        ({"name": "No Name"}, "Give 1 to 40 lower-case letters"),
        ({"guaranteed": "-1"}, "from 0 to"),
    ],
)
def test_a_refused_new_project_keeps_its_form(
    world: World, admin: Client, changes: dict[str, str], words: str
) -> None:
    values = {"name": "speech", "limit_by_kind_cpu": "4", "description": "<b>", **changes}
    before = Project.objects.count()
    answer = admin.post("/projects/new/", values)
    shown = answer.content.decode()
    assert (answer.status_code, words in shown, Project.objects.count()) == (400, True, before)
    for name, value in values.items():
        assert re.search(rf'name="{name}"[^>]*value="{re.escape(escape(value))}"', shown), name


def test_two_admins_change_the_shares_of_a_project(vision: Project, admin: Client) -> None:
    """The second form is refused with its values and the new shares; sent again, it is saved."""
    address = f"/projects/{vision.pk}/"
    version = admin.get(address).context["version"]
    first = {"guaranteed": "2", "limit": "9", "version": version}
    assert admin.post(f"{address}edit/", first).status_code == 302
    late = {"guaranteed": "3", "description": "typed", "version": version, "is_closed": "on"}
    page = admin.post(f"{address}edit/", late)
    assert page.status_code == 412
    text = page.content.decode()
    assert 'value="typed"' in text
    assert 'name="is_closed" checked' in text
    vision.refresh_from_db()
    assert (vision.guaranteed, vision.limit, vision.is_closed) == (2, 9, False)
    again = late | {"version": page.context["version"]}
    assert admin.post(f"{address}edit/", again).status_code == 302
    vision.refresh_from_db()
    assert (vision.guaranteed, vision.limit, vision.is_closed) == (3, None, True)


def test_refused_shares_keep_what_was_typed(vision: Project, admin: Client) -> None:
    given = {"guaranteed": "9", "limit": "4", "description": "typed before"}
    page = admin.post(f"/projects/{vision.pk}/edit/", given)
    assert page.status_code == 400
    assert "Give at most 4" in page.content.decode()
    assert 'value="typed before"' in page.content.decode()


def test_an_admin_makes_a_project_and_fills_it(world: World, admin: Client) -> None:
    answer = admin.post("/projects/new/", {"name": "speech", "guaranteed": "2"}, follow=True)
    made = Project.objects.get(name="speech")
    assert answer.redirect_chain == [(f"/projects/{made.pk}/", 302)]
    address = f"/projects/{made.pk}/"
    wrong = admin.post(f"{address}members/", {"user": "bne", "role": "operator"}).content.decode()
    assert 'name="user" value="bne"' in wrong
    assert "<option selected>operator</option>" in wrong
    admin.post(f"{address}members/", {"user": "ben", "role": "operator"})
    assert [(one.user, one.role) for one in made.memberships.all()] == [(world.ben, "operator")]
    values = {"guaranteed": "3", "limit": "4", "user_limit": "", "is_closed": "on"}
    admin.post(f"{address}edit/", values)
    made.refresh_from_db()
    assert (made.guaranteed, made.limit, made.user_limit, made.is_closed) == (3, 4, None, True)
    admin.post(f"{address}members/remove/", {"user": "ben"})
    assert not made.memberships.exists()
    wrong = admin.post(f"{address}edit/", {"guaranteed": "9", "limit": "4"}, follow=True)
    assert "Give at most 4, the limit, or raise the limit." in wrong.content.decode()


def test_only_admins_of_a_project_change_its_members(
    vision: Project, world: World, ada: Client
) -> None:
    address = f"/projects/{vision.pk}/members/"
    given = {"user": "ben", "role": "member"}
    assert ada.post(address, given).status_code == 403
    ProjectMembership.objects.filter(user=world.ada).update(role="admin")
    assert ada.post(address, given).status_code == 302
    assert vision.memberships.filter(user=world.ben).exists()
    assert ada.post(f"/projects/{vision.pk}/edit/", {"guaranteed": "9"}).status_code == 404
    left = ada.post(f"{address}remove/", {"user": "ada"})
    assert left.headers["Location"] == "/projects/"  # the project is hidden from who has left it


def test_a_viewer_sees_a_job_without_its_buttons(
    vision: Project, world: World, ben: Client
) -> None:
    ProjectMembership.objects.create(
        project=vision, user=world.ben, role="viewer", since=vision.created_at
    )
    job = world.jobs["running"]
    job.sweep = make_sweep(world.ada, [])  # which members do not see
    job.save(update_fields=["sweep"])
    shown = page(ben, f"/jobs/{job.pk}/")
    assert f"Part of sweep {job.sweep.pk}." in shown
    assert f'href="/projects/{vision.pk}/"' in shown
    assert f"/jobs/{job.pk}/cancel/" not in shown
    assert f"/jobs/{job.pk}/describe/" not in shown
    for action in ("cancel", "pause", "resume", "priority", "describe", "delete-files"):
        assert ben.post(f"/jobs/{job.pk}/{action}/", {"priority": "1"}).status_code == 403, action
    assert Job.objects.get(pk=job.pk).version == job.version
    listed = page(ben, "/jobs/?project=vision")
    assert job.name in listed
    assert re.findall(r'name="do" value="(\w+)"', listed) == ["compare"]
    every = ["preview", "tag", "untag", "compare", "cancel"]
    assert re.findall(r'name="do" value="(\w+)"', page(ben, "/jobs/")) == every  # own jobs, too
    ProjectMembership.objects.filter(user=world.ben).update(role="operator")
    listed = page(ben, "/jobs/?project=vision")
    assert re.findall(r'name="do" value="(\w+)"', listed) == every


def test_who_leaves_a_project_keeps_the_own_jobs_without_links(
    vision: Project, world: World, ada: Client
) -> None:
    ProjectMembership.objects.filter(project=vision, user=world.ada).delete()
    shown = page(ada, f"/jobs/{world.jobs['running'].pk}/")
    assert "<dd>vision</dd>" in shown
    assert "<option selected>vision</option>" in page(ada, "/usage/?project=vision")


def test_the_form_offers_projects_that_take_jobs(vision: Project, ada: Client, ben: Client) -> None:
    option = '<option value="vision">vision</option>'
    assert option in page(ada, "/jobs/new/")
    assert option not in page(ben, "/jobs/new/")


def test_usage_shows_hours_and_their_cost(world: World, admin: Client, ada: Client) -> None:
    shown = page(admin, "/usage/?by=user")
    assert all(name in shown for name in ("ada", "ben", "all jobs", "Download CSV", "Prices"))
    shown = page(ada, "/usage/?by=project")
    assert "vision" in shown
    assert "Prices" not in shown
    unused = page(ada, "/usage/?since=2020-01-01&until=2020-01-02")
    assert "No job that you see held an accelerator in this period." in unused
    assert "Give a day like" in page(ada, "/usage/?since=never", 400)
    answer = ada.get("/usage/?by=user&csv=1")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert answer.content.decode().startswith("\ufeffuser,"), "as spreadsheets know UTF-8"
    assert b"ben" not in answer.content
    admin.post("/usage/prices/", {"price_t4": "1.5", "price_cpu": ""})
    assert list(AcceleratorPrice.objects.values_list("kind", "per_hour")) == [("t4", 1.5)]


def test_a_project_is_deleted_on_its_page(
    vision: Project, admin: Client, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First it has live jobs, then ended ones, whose pages say that the project is gone."""
    address = f"/projects/{vision.pk}/"
    assert "Delete project" not in page(ada, address)
    job = vision.jobs.latest("pk")
    live = page(admin, address)
    assert "so it cannot be deleted yet" in live
    assert "Yes, delete vision" not in live
    refused = admin.post(f"{address}delete/", follow=True).content.decode()
    assert "not ended: close the project" in refused
    vision.jobs.update(status="finished", ended_at=timezone.now())
    assert "Yes, delete vision" in page(admin, address)
    done = admin.post(f"{address}delete/", follow=True)
    assert done.redirect_chain[-1][0] == "/projects/"
    assert "Project vision is deleted." in done.content.decode()
    page(admin, address, 404)
    assert "vision, deleted" in page(admin, f"/jobs/{job.pk}/")
    assert f'href="{address}"' not in page(admin, f"/jobs/{job.pk}/")
    assert '<option value="vision"' not in page(admin, "/jobs/new/")
    assert "vision" in page(admin, "/usage/")
    monkeypatch.setattr(access, "project_visible_to", lambda *_: vision)  # read just before
    assert admin.get(address).status_code == 404


def test_prices_of_somebody_else_are_not_overwritten(world: World, admin: Client) -> None:
    """The form keeps the typed prices, and a message names the present ones."""
    shown = page(admin, "/usage/")
    found = re.search('name="version" value="([0-9a-f]{16})"', shown)
    assert found
    admin.post("/usage/prices/", {"price_t4": "1.5", "version": found[1]})
    stale = admin.post("/usage/prices/", {"price_t4": "7.25", "version": found[1]})
    text = " ".join(stale.content.decode().split())
    assert stale.status_code == 412
    assert "they are: t4 1.5" in text
    assert 'value="7.25"' in text
    assert AcceleratorPrice.objects.get().per_hour == 1.5
    again = re.search('name="version" value="([0-9a-f]{16})"', text)
    assert again
    admin.post("/usage/prices/", {"price_t4": "7.25", "version": again[1]})
    assert AcceleratorPrice.objects.get().per_hour == 7.25
    wrong = admin.post("/usage/prices/", {"price_t4": "free", "version": again[1]})
    assert wrong.status_code == 400
    assert 'value="free"' in wrong.content.decode()
