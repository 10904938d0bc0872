"""Changes of what several people change: one that was made from an older state is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.api.openapi import openapi_document
from jobs.models import Project, Sweep
from tests.support.builders import Clients, at, job_make, user_make

Change = tuple[str, dict[str, Any]]
#: Only their owner changes these, in one column at a time.
OF_ONE_PERSON = {"/api/v1/channels/{channel_id}/"}
#: Two changes of each state that a tag stands for.
CHANGES: dict[str, tuple[Change, Change]] = {
    "jobs/{job_id}/": (("PATCH", {"note": "a"}), ("PATCH", {"note": "b"})),
    "policy/": (("PUT", {"policy": "fifo"}), ("PUT", {"policy": "priority"})),
    "prices/": (
        ("PUT", {"per_hour": {"cpu": 1}}),
        ("PUT", {"per_hour": {"cpu": 2, "t4": 1}}),
    ),
    "projects/{project_id}/": (("PATCH", {"guaranteed": 1}), ("PATCH", {"limit": 9})),
    "projects/{project_id}/ deleted": (("PATCH", {"guaranteed": 1}), ("DELETE", {})),
    "sweeps/{sweep_id}/": (
        ("PATCH", {"max_running": 1, "reason": "a"}),
        ("PATCH", {"max_running": 2, "reason": "b"}),
    ),
    "users/{name}/": (
        ("PATCH", {"live_jobs_limit": 5}),
        ("PATCH", {"live_jobs_limit": 6}),
    ),
}


@pytest.fixture
def addresses(admin: User) -> dict[str, str]:
    job = job_make(admin)
    project = Project.objects.create(name="vision", created_at=at(0))
    user_make("grace")
    sweep = Sweep.objects.create(
        owner=user_make("ada"), max_running=4, space={}, submitted_at=at(0)
    )
    return {
        "{job_id}": str(job.pk),
        "{project_id}": str(project.pk),
        "{sweep_id}": str(sweep.pk),
        "{name}": "grace",
    }


@pytest.mark.parametrize("path", CHANGES)
def test_a_stale_change_is_refused(
    path: str, admin: User, client_of: Clients, addresses: dict[str, str]
) -> None:
    address = f"/api/v1/{path.partition(' ')[0]}"
    for name, value in addresses.items():
        address = address.replace(name, value)
    client = client_of(admin)

    def send(change: Change, tag: str) -> Any:
        method, values = change
        send_it = getattr(client, method.lower())
        return send_it(address, values, format="json", headers={"If-Match": tag})

    first, second = CHANGES[path]
    seen = client.get(address)["ETag"]
    assert send(first, seen).status_code == 200
    changed = client.get(address)
    refused = send(second, seen)
    assert (refused.status_code, refused.json()["code"]) == (412, "stale_version")
    assert client.get(address).json() == changed.json()
    for wrong in ("now", '"', "7"):
        assert send(second, wrong).status_code == 400
    assert send(second, changed["ETag"]).status_code in (200, 204)
    assert client.get(address).status_code == 404 or client.get(address)["ETag"] != changed["ETag"]


def test_every_change_of_what_can_be_read_takes_the_tag_of_what_was_read() -> None:
    document = openapi_document()
    without = {
        (method, path)
        for path, methods in document["paths"].items()
        for method in ("put", "patch")
        if method in methods and "get" in methods and path not in OF_ONE_PERSON
        if "If-Match" not in [one["name"] for one in methods[method].get("parameters", ())]
    }
    assert not without
    tested = {f"/api/v1/{path.partition(' ')[0]}" for path in CHANGES}
    tagged = {
        path
        for path, methods in document["paths"].items()
        for method in ("put", "patch", "delete")
        if "If-Match" in [one["name"] for one in methods.get(method, {}).get("parameters", ())]
    }
    assert tagged == tested
