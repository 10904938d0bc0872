"""Every route against everybody: a route that is in neither table fails the test.

The tables say who gets past authentication and ownership. What each route does then is tested
elsewhere; here only 401, 403, 404 and redirects to the login count.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import URLPattern, URLResolver, get_resolver
from pytest_django import DjangoDbBlocker, Settings
from rest_framework.test import APIClient

from jobs.models import ExamplePreview, Job, Project, ProjectMembership, Sweep
from jobs.services.cluster.api_tokens import JOB_SCOPES, SCOPES
from tests.support.builders import (
    api_token_make,
    at,
    job_make,
    node_make,
    user_make,
    validation_make,
)
from tests.support.rows import file_store
from tests.support.shared_rows import rows_shared

OPEN = "open"  # everybody
OWN = "own"  # the owner of the job, and admins; 404 for others
USER = "user"  # whoever is known
ADMIN = "admin"  # admins; 403 for others
ADMIN_WRITES = "admin writes"  # everybody who is known reads, admins write
PROJECT = "project"  # members read, 404 for others; admins write
SESSION = "session"  # people in a session; 403 for tokens
AGENT = "agent"  # agents only
PAGE = "page"  # a page: redirects to the login; tests/frontend has the rest
ADMIN_SITE = "admin site"  # redirects to the login; tests/jobs/test_admin.py has the rest

WHO = {
    "healthz": OPEN,
    "readyz": OPEN,
    "metrics": ADMIN,
    "api/v1/agent/enrol/": OPEN,
    "api/v1/": USER,
    "api/v1/jobs/": USER,
    "api/v1/jobs/actions/": USER,
    "api/v1/jobs/actions/preview/": USER,
    "api/v1/jobs/compare/": USER,
    "api/v1/validations/": USER,
    "api/v1/validations/<int:validation_id>/": OWN,
    "api/v1/nodes/": USER,
    "api/v1/nodes/<int:node_id>/": ADMIN_WRITES,
    "api/v1/nodes/<int:node_id>/utilisation/": USER,
    "api/v1/nodes/<int:node_id>/cordon/": ADMIN,
    "api/v1/nodes/<int:node_id>/drain/": ADMIN,
    "api/v1/nodes/<int:node_id>/uncordon/": ADMIN,
    "api/v1/nodes/<int:node_id>/unquarantine/": ADMIN,
    "api/v1/nodes/<int:node_id>/accept-shape/": ADMIN,
    "api/v1/nodes/<int:node_id>/new-token/": ADMIN,
    "api/v1/maintenance-windows/": ADMIN_WRITES,
    "api/v1/maintenance-windows/<int:window_id>/cancel/": ADMIN,
    "api/v1/enrolment-tokens/": ADMIN,
    "api/v1/enrolment-tokens/<int:token_id>/": ADMIN,
    "api/v1/audit/": ADMIN,
    "api/v1/cluster/": USER,
    "api/v1/policy/": ADMIN_WRITES,
    "api/v1/projects/": ADMIN_WRITES,
    "api/v1/projects/<int:project_id>/": PROJECT,
    "api/v1/projects/<int:project_id>/members/<str:name>/": USER,
    "api/v1/prices/": ADMIN_WRITES,
    "api/v1/usage/": USER,
    "api/v1/replays/": ADMIN,
    "api/v1/replays/<int:replay_id>/": ADMIN,
    "api/v1/replays/<int:replay_id>/comparison/": ADMIN,
    "api/v1/channels/": USER,
    "api/v1/channels/<int:channel_id>/": USER,
    "api/v1/channels/<int:channel_id>/test/": USER,
    "api/v1/channels/<int:channel_id>/confirm/": USER,
    "api/v1/channels/<int:channel_id>/deliveries/": USER,
    "api/v1/saved-filters/": USER,
    "api/v1/saved-filters/<int:filter_id>/": USER,
    "api/v1/sweeps/": USER,
    "api/v1/sweeps/<int:sweep_id>/": OWN,
    "api/v1/sweeps/<int:sweep_id>/cancel/": OWN,
    "api/v1/sweeps/<int:sweep_id>/pause/": OWN,
    "api/v1/sweeps/<int:sweep_id>/resume/": OWN,
    "api/v1/secrets/": USER,
    "api/v1/secrets/<str:name>/": USER,
    "api/v1/tokens/": SESSION,
    "api/v1/tokens/<int:token_id>/": SESSION,
    "api/v1/users/": ADMIN,
    "api/v1/users/<str:name>/": ADMIN,
    "api/v1/account/": USER,
    "api/v1/templates/": USER,
    "api/v1/templates/<str:name>/": USER,
    "api/v1/schema/": USER,
    "api/v1/docs/": USER,
}
#: Routes below these that have no row of their own.
BELOW = {"api/v1/agent/": AGENT, "api/v1/jobs/<int:job_id>/": OWN}
METHODS = ("get", "post", "put", "patch", "delete")
READS = ("get",)
#: Tokens of the owner that lack a scope.
LACKS = {"reader": "write", "writer": "read"}
#: The OpenAPI document takes long to be written as YAML.
_AS_JSON = {"Accept": "application/json, */*;q=0.5"}
ADMINS = ("admin", "admin by session", "admin without jobs")
STRANGERS = ("other", "other by session", "admin for jobs", "admin of old")
REFUSED = ("nobody", "agent", "other", *LACKS, "admin without jobs")
#: Strangers who are known by other means than some of those, and may do as much: tried on a route
#: of each group, and on all in `make nightly`.
ALSO_REFUSED = ("liar", "other by session", "admin for jobs", "admin of old")


def routes(patterns: object = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Walk over everything that the URLconf answers."""
    for entry in patterns if patterns is not None else get_resolver().url_patterns:  # type: ignore[attr-defined]
        if isinstance(entry, URLResolver):
            yield from routes(entry.url_patterns, prefix + str(entry.pattern))
        else:
            yield prefix + str(entry.pattern), entry


def who(route: str, pattern: URLPattern) -> str | None:
    if route.startswith("admin/"):
        return ADMIN_SITE
    is_page = pattern.callback.__module__.startswith(("frontend.", "django.contrib.auth"))
    below = (group for prefix, group in BELOW.items() if route.startswith(prefix))
    return PAGE if is_page else WHO.get(route) or next(below, None)


PATTERNS = dict(routes())
ALL_ROUTES = {route: who(route, pattern) for route, pattern in PATTERNS.items()}


def methods_of(route: str) -> list[str]:
    """List the methods that a view has, and one that it lacks, which stands for all such."""
    view = getattr(PATTERNS[route].callback, "cls", None)
    lacking = [method for method in METHODS if view is not None and not hasattr(view, method)]
    return [method for method in METHODS if method not in lacking[1:]]


def test_every_route_is_in_the_table() -> None:
    unknown = [route for route, group in ALL_ROUTES.items() if group is None]
    assert unknown == [], "say in WHO who may use them"
    assert [route for route in WHO if route not in ALL_ROUTES] == [], "in WHO, and nowhere else"


class Cast:
    """Everybody who may come, and the things that they come for."""

    def __init__(self) -> None:
        self.owner = user_make("owner")
        self.job = job_make(self.owner)
        self.project = Project.objects.create(name="vision", created_at=at(0))
        ProjectMembership.objects.create(project=self.project, user=self.owner, since=at(0))
        self.validation = validation_make(self.job)
        self.sweep = Sweep.objects.create(
            owner=self.owner, name="a", space={}, max_running=1, submitted_at=at(0)
        )
        data = b"x"
        file_store(self.job, "model.keras", data)
        ExamplePreview.objects.create(job=self.job, place=7, image=data)
        self.node, agent_token = node_make()
        other = user_make("other")
        admin = user_make("boss", is_staff=True)
        self.clients: dict[str, Client] = {
            "nobody": APIClient(),
            "liar": self._sends("Bearer vfp_invented"),
            "owner": self._sends(f"Bearer {api_token_make(self.owner)}"),
            "reader": self._sends(f"Bearer {api_token_make(self.owner, ('jobs:read',))}"),
            "writer": self._sends(f"Bearer {api_token_make(self.owner, ('jobs:write',))}"),
            "other": self._sends(f"Bearer {api_token_make(other)}"),
            "other by session": self._session(other),
            "admin": self._sends(f"Bearer {api_token_make(admin)}"),
            "admin by session": self._session(admin),
            "admin without jobs": self._sends(f"Bearer {api_token_make(admin, ('admin',))}"),
            # An admin's token without the scope `admin` may do what an ordinary user may.
            "admin for jobs": self._sends(f"Bearer {api_token_make(admin, JOB_SCOPES)}"),
            # Admin rights end with those of the person.
            "admin of old": self._sends(f"Bearer {api_token_make(other, SCOPES)}"),
            "agent": self._sends(f"Agent {agent_token}"),
        }

    def _sends(self, header: str) -> Client:
        return APIClient(headers={**_AS_JSON, "Authorization": header})

    def _session(self, user: User) -> Client:
        client = APIClient(headers=_AS_JSON)
        client.force_login(user)
        return client

    def path(self, route: str) -> str:
        return "/" + (
            route.replace("<int:job_id>", str(self.job.pk))
            .replace("<int:place>", "7")
            .replace("<int:validation_id>", str(self.validation.pk))
            .replace("<int:node_id>", str(self.node.pk))
            .replace("<int:filter_id>", "999999")
            .replace("<int:sweep_id>", str(self.sweep.pk))
            .replace("<int:project_id>", str(self.project.pk))
            .replace("<int:token_id>", "999999")
            .replace("<int:replay_id>", "999999")
            .replace("<int:channel_id>", "999999")
            .replace("<int:window_id>", "999999")
            .replace("templates/<str:name>", "templates/tabular")
            .replace("<str:name>", "model.keras")
        )


@pytest.fixture(scope="module")
def shared_cast(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cast, Path]]:
    """Make one cast for the module, and a folder of its files."""
    files = tmp_path_factory.mktemp("files")
    with rows_shared(django_db_blocker):
        with override_settings(MEDIA_ROOT=str(files)):
            cast = Cast()
        yield cast, files


@pytest.fixture
def cast(shared_cast: tuple[Cast, Path], db: None, settings: Settings, tmp_path: Path) -> Cast:
    """Give a test a copy of the cast and of its files."""
    shared, files = shared_cast
    settings.MEDIA_ROOT = str(shutil.copytree(files, tmp_path / "files"))
    return copy.deepcopy(shared)


def expected(group: str, name: str, method: str) -> set[int] | None:
    """Give the statuses that a refusal has; None: not refused for who it is."""
    if group == OPEN:
        return None
    if group == AGENT:
        return None if name == "agent" else {401, 405}
    if name in ("nobody", "liar", "agent"):
        return {401, 405}
    is_read = method in READS
    if group == SESSION:
        return None if name.endswith("by session") else {403, 405}
    if group == ADMIN or (group in (ADMIN_WRITES, PROJECT) and not is_read):
        return None if name in ADMINS else {403, 405}
    if name in LACKS and is_read == (LACKS[name] == "read"):
        return {403, 405}
    if name == "admin without jobs":
        return {403, 405}
    if group in (OWN, PROJECT) and name in STRANGERS:
        return {404, 405}
    return None


def matrix() -> Iterator[Any]:
    """Combine all routes of the tables with those who are refused on them."""
    seen: set[str] = set()
    for route, group in ALL_ROUTES.items():
        if group in (None, PAGE, ADMIN_SITE):
            continue
        yield pytest.param(route, REFUSED, id=route)
        marks = pytest.mark.nightly if group in seen else ()
        yield pytest.param(route, ALSO_REFUSED, id=f"{route}-also", marks=marks)
        seen.add(group)


@pytest.mark.parametrize(("route", "names"), [*matrix()])
def test_the_matrix(route: str, names: Sequence[str], cast: Cast) -> None:
    group = ALL_ROUTES[route]
    assert group is not None
    methods = methods_of(route)
    version = Job.objects.get(id=cast.job.pk).version
    for name in names:
        # The writer is the owner, whose writes change the job.
        for method in READS if name == "writer" else methods:
            response = getattr(cast.clients[name], method)(cast.path(route), data={})
            refusal = expected(group, name, method)
            label = f"{name} {method} {route}: {response.status_code}"
            if refusal is not None:
                assert response.status_code in refusal, label
            elif group != AGENT:
                assert response.status_code not in (401, 403), label
        job = Job.objects.get(id=cast.job.pk)
        assert job.version == version, f"{name} changed the job by {route}"


@pytest.mark.parametrize("route", [route for route, group in ALL_ROUTES.items() if group == OWN])
def test_owners_and_admins_get_through(route: str, cast: Cast) -> None:
    for name in ("owner", "admin", "admin by session"):
        answers = {
            method: getattr(cast.clients[name], method)(cast.path(route), data={}).status_code
            for method in ("get", "post", "delete")
        }
        assert {401, 403, 404} & set(answers.values()) == set(), (name, answers)
        assert answers["get"] == 200 or {answers["post"], answers["delete"]} != {405}


def test_pages_want_a_login(cast: Cast) -> None:
    routes_ = [route for route, group in ALL_ROUTES.items() if group == PAGE]
    assert len(routes_) > 50
    for route in routes_:
        response = Client().get(cast.path(route))
        if route == "login/":
            assert response.status_code == 200
        elif response.status_code == 302:
            assert response.headers["Location"].startswith("/login/"), route
        else:
            assert response.status_code in (401, 403, 404, 405), route


def test_the_admin_site_wants_an_admin(cast: Cast) -> None:
    routes_ = [route for route, group in ALL_ROUTES.items() if group == ADMIN_SITE]
    plain = [route.replace("<path:object_id>", "1").replace("<id>", "1") for route in routes_]
    paths = [f"/{path}" for path in plain if "(" not in path]
    assert len(paths) > 40
    for name in ("nobody", "owner", "other by session", "admin"):  # no API token counts here
        for path in paths:
            response = cast.clients[name].get(path)
            if path == "/admin/login/" and name == "other by session":
                assert response.status_code == 403
                continue
            assert response.status_code == 302, (name, path)
            assert response.headers["Location"].startswith(("/admin/login/", "/login/", "/admin/"))
