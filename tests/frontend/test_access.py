"""Who reaches which page: every route of the pages, for every kind of person."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from frontend.urls import urlpatterns
from jobs.models import MaintenanceWindow, NotificationChannel, Project, Replay, Sweep
from tests.frontend.world import PASSWORD, World
from tests.support.builders import at, logged_in, validation_make

#: Routes that need no login, by name.
OPEN = {"login", "logout", "stream", "oidc_start", "oidc_callback"}
GET_ROUTES = {
    "overview", "overview_figures", "jobs", "submit", "job", "job_figures", "job_log",
    "job_log_file", "job_code", "job_file", "queue", "nodes", "account", "what_if", "replay",
    "replay_figures", "validation", "audit", "password", "compare", "compare_figures",
    "job_copy", "channels", "channel_deliveries", "node", "node_figures", "timeline",
    "timeline_figures", "sweeps", "sweep", "sweep_figures", "projects", "project", "usage",
    "maintenance",
}  # fmt: skip
POST_ROUTES = {
    "job_cancel", "job_files_delete", "job_pause", "job_resume", "job_reprioritise", "policy",
    "node_token", "node_cordon", "node_unquarantine", "node_token_revoke", "tokens", "token_revoke",
    "what_if_ask", "replay_cancel", "secrets", "secret_delete", "jobs_act",
    "job_describe", "node_new_token", "node_shape", "oidc_link",
    "channel_test", "channel_pause", "channel_confirm", "channel_delete", "theme", "zone",
    "sweep_act", "saved_filter",
    "project_new", "project_edit", "project_delete", "project_member", "project_member_remove",
    "prices", "maintenance_cancel",
}  # fmt: skip
JOB_ROUTES = sorted(name for name in GET_ROUTES | POST_ROUTES if name.startswith("job_"))
ADMIN_ROUTES = {
    "queue": "get",
    "policy": "post",
    "node_token": "post",
    "node_token_revoke": "post",
    "audit": "get",
    "node_cordon": "post",
    "node_unquarantine": "post",
    "node_new_token": "post",
    "node_shape": "post",
    "maintenance_cancel": "post",
    "what_if": "get",
    "what_if_ask": "post",
    "replay": "get",
    "replay_figures": "get",
    "replay_cancel": "post",
    "project_new": "post",
    "project_edit": "post",
    "project_delete": "post",
    "prices": "post",
}


def _channel(world: World) -> NotificationChannel:
    made, _ = NotificationChannel.objects.get_or_create(
        owner=world.admin, name="lab", defaults={"kind": "webhook", "created_at": timezone.now()}
    )
    return made


def _window(world: World) -> MaintenanceWindow:
    made, _ = MaintenanceWindow.objects.get_or_create(
        node=world.nodes[0], starts_at=at(0), ends_at=at(60), reason="disk", created_at=at(0)
    )
    return made


def _sweep(world: World) -> Sweep:
    made, _ = Sweep.objects.get_or_create(
        owner=world.ada, name="a", space={}, max_running=1, defaults={"submitted_at": at(0)}
    )
    return made


def _project() -> Project:
    return Project.objects.get(name="vision")


def route_address(name: str, world: World) -> str:
    arguments = {
        "job_file": [world.jobs["running"].pk, "model.keras"],
        "validation": [validation_make(world.jobs["running"]).pk],
        "node": [world.nodes[0].pk],
        "node_figures": [world.nodes[0].pk],
        "node_cordon": [world.nodes[0].pk],
        "node_unquarantine": [world.nodes[0].pk],
        "node_new_token": [world.nodes[0].pk],
        "node_shape": [world.nodes[0].pk],
        "channel_deliveries": [_channel(world).pk],
        "maintenance_cancel": [_window(world).pk],
        "channel_test": [1],
        "channel_pause": [1],
        "channel_confirm": [1],
        "channel_delete": [1],
        "token_revoke": [1],
        "secret_delete": ["S3_KEY"],
        "node_token_revoke": [1],
        **{name: [_sweep(world).pk] for name in ("sweep", "sweep_figures", "sweep_act")},
    }
    if name.startswith("replay"):
        return reverse(name, args=[Replay.objects.filter(result={}).get().pk])
    if name == "project" or (name.startswith("project_") and name != "project_new"):
        return reverse(name, args=[_project().pk])
    if name in arguments:
        return reverse(name, args=arguments[name])
    if name == "job" or name.startswith("job_"):
        return reverse(name, args=[world.jobs["running"].pk])
    return reverse(name)


def test_every_route_is_in_one_of_the_lists() -> None:
    assert {pattern.name for pattern in urlpatterns} == OPEN | GET_ROUTES | POST_ROUTES


def test_pages_lead_strangers_to_the_login(world: World, client: Client) -> None:
    for name in sorted(GET_ROUTES):
        address = route_address(name, world)
        response = client.get(address)
        assert response.status_code == 302, name
        assert response.headers["Location"] == f"/login/?next={address}"


def test_changes_lead_strangers_to_the_login(world: World, client: Client) -> None:
    for name in sorted(POST_ROUTES):
        response = client.post(route_address(name, world))
        assert response.status_code == 403, name
        assert b'href="/login/?next=' in response.content, name


def test_pages_cannot_be_posted_to(world: World, admin: Client) -> None:
    with_forms = {"submit", "password", "channels", "maintenance", "queue"}
    for name in sorted(GET_ROUTES - with_forms):
        assert admin.post(route_address(name, world)).status_code == 405, name


def test_changes_cannot_be_made_by_following_a_link(world: World, admin: Client) -> None:
    for name in sorted(POST_ROUTES):
        answer = admin.get(route_address(name, world))
        assert (answer.status_code, answer.headers["Allow"]) == (405, "POST"), name
        assert "This address is for changes" in answer.content.decode(), name


def test_changes_need_the_token_against_forgery(world: World) -> None:
    browser = logged_in(world.admin, enforce_csrf_checks=True)
    for name in sorted(POST_ROUTES):
        response = browser.post(route_address(name, world))
        assert response.status_code == 403, name
        assert b"The form was too old" in response.content, name


def test_somebody_elses_job_is_not_there(world: World, ben: Client) -> None:
    for name in ("job", *JOB_ROUTES):
        method = ben.post if name in POST_ROUTES else ben.get
        assert method(route_address(name, world)).status_code == 404, name


def test_admins_see_every_job(world: World, admin: Client) -> None:
    for name in ("job", *sorted(set(JOB_ROUTES) & GET_ROUTES)):
        assert admin.get(route_address(name, world)).status_code == 200, name


def test_what_only_admins_steer_is_not_there_for_others(world: World, ada: Client) -> None:
    for name, method in ADMIN_ROUTES.items():
        assert getattr(ada, method)(route_address(name, world)).status_code == 404, name


@pytest.mark.parametrize("job_id", [0, 4711, 2**63, 10**30])
def test_a_job_that_never_was_is_not_there(job_id: int, admin: Client) -> None:
    assert admin.get(f"/jobs/{job_id}/").status_code == 404


def test_logging_in_and_out(world: World, client: Client) -> None:
    wrong = client.post("/login/", {"username": "ada", "password": "guess"})
    assert b"Please enter a correct username and password" in wrong.content
    right = client.post(
        "/login/", {"username": "ada", "password": PASSWORD, "next": "/jobs/?status=live"}
    )
    assert right.headers["Location"] == "/jobs/?status=live"
    assert client.get("/").status_code == 200
    assert client.post("/logout/").status_code == 302
    assert client.get("/").status_code == 302


def test_a_login_leads_nowhere_else(world: World, client: Client) -> None:
    response = client.post(
        "/login/",
        {"username": "ada", "password": PASSWORD, "next": "https://elsewhere.example/"},
    )
    assert response.headers["Location"] == "/"


def test_every_page_forbids_inline_scripts_and_foreign_content(
    world: World, admin: Client, client: Client
) -> None:
    for name in sorted(GET_ROUTES | {"login"}):
        browser = client if name == "login" else admin
        policy = browser.get(route_address(name, world)).headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';"), name
        assert "unsafe" not in policy, name
        assert "http" not in policy, name
        assert "frame-ancestors 'none'" in policy, name
