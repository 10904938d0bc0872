"""Acts of consequence, with the entry that each leaves in the audit trail."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import AuditEntry, Project, ProjectMembership, Sweep
from jobs.services.cluster.nodes import enrolment_token_create
from tests.support.builders import api_token_make, job_make, node_make, user_make
from tests.support.rows import file_store

PASSWORD = "rowing-boat-on-a-lake"


class Site:
    """An admin with a session and a token, another person's job, and a node."""

    def __init__(self) -> None:
        self.ada = user_make("ada")
        self.admin = User.objects.create_superuser("boss", password=PASSWORD)
        headers = {"User-Agent": "a browser"}
        self.session = Client(REMOTE_ADDR="192.0.2.5", headers=headers)
        self.session.force_login(self.admin)
        sent = {**headers, "Authorization": f"Bearer {api_token_make(self.admin)}"}
        self.rest = APIClient(REMOTE_ADDR="192.0.2.5", headers=sent)
        self.job = job_make(self.ada)
        self.ended = job_make(self.ada, status=JobStatus.CANCELLED)
        file_store(self.job, "model.keras", b"x")
        self.node, _ = node_make("node-a")
        shape = {"host": "127.0.0.1", "first_port": 9000, "last_port": 9001, "accelerators": []}
        self.node.proposed_shape = {**shape, "digest": "abc"}
        self.node.save()
        self.rest.get("/api/v1/jobs/")  # from this address the token is used from now on
        self.num_before = AuditEntry.objects.count()

    def entries(self) -> list[AuditEntry]:
        """Give the entries since all this was made, oldest first."""
        return list(AuditEntry.objects.order_by("id"))[self.num_before :]


def log_in(site: Site) -> Any:
    site.session.logout()
    return site.session.post("/login/", {"username": "boss", "password": PASSWORD})


def fail_to_log_in(site: Site) -> Any:
    site.session.logout()
    return site.session.post("/login/", {"username": "boss", "password": "guess"})


def make_token(site: Site) -> Any:
    return site.session.post(
        "/account/tokens/", {"name": "ci", "days": "3", "may_read": "on", "password": PASSWORD}
    )


def revoke_enrolment_token(site: Site) -> Any:
    row, _ = enrolment_token_create(None, timezone.now())
    return site.session.post(f"/nodes/tokens/{row.pk}/revoke/")


def delete_enrolment_token(site: Site) -> Any:
    row, _ = enrolment_token_create(None, timezone.now())
    return site.rest.delete(f"/api/v1/enrolment-tokens/{row.pk}/")


def make_user(site: Site) -> Any:
    words = {"username": "grace", "usable_password": "true"}
    words |= {"password1": "three-words-together", "password2": "three-words-together"}
    words |= {"limits-TOTAL_FORMS": "0", "limits-INITIAL_FORMS": "0"}
    return site.session.post(reverse("admin:auth_user_add"), words)


def set_password(site: Site) -> Any:
    words = {"password1": "three-words-together", "password2": "three-words-together"}
    words |= {"usable_password": "true"}
    address = reverse("admin:auth_user_password_change", args=[site.ada.pk])
    return site.session.post(address, words)


def limit_user(site: Site) -> Any:
    return site.rest.patch("/api/v1/users/ada/", {"share_factor": 2})


def project(*members: User) -> Project:
    made = Project.objects.create(name="vision", created_at=timezone.now())
    for member in members:
        ProjectMembership.objects.create(project=made, user=member, since=timezone.now())
    return made


def sweep(site: Site) -> Sweep:
    values = {"space": {"units": [1, 2]}, "max_running": 1, "submitted_at": timezone.now()}
    return Sweep.objects.create(owner=site.ada, name="widths", **values)


def delete_user(site: Site) -> Any:
    grace = user_make("grace")
    address = reverse("admin:auth_user_delete", args=[grace.pk])
    return site.session.post(address, {"post": "yes"})


def plan_window(site: Site) -> Any:
    hour = datetime.timedelta(hours=1)
    starts_at = timezone.now() + hour
    times = {"starts_at": starts_at.isoformat(), "ends_at": (starts_at + hour).isoformat()}
    body = {"nodes": [site.node.pk], "reason": "disk", **times}
    return site.rest.post("/api/v1/maintenance-windows/", body, format="json")


def cancel_window(site: Site) -> Any:
    (window,) = plan_window(site).json()
    return site.rest.post(f"/api/v1/maintenance-windows/{window['id']}/cancel/")


ACTS: dict[str, tuple[Callable[[Site], Any], str, str]] = {
    "a login": (log_in, "login", "user:boss"),
    "a failed login": (fail_to_log_in, "login_failed", "user:boss"),
    "a logout": (lambda s: s.session.post("/admin/logout/", follow=True), "logout", ""),
    "a token": (make_token, "token_made", "token:"),
    "a revoked token": (
        lambda s: s.session.post(f"/account/tokens/{s.admin.api_tokens.get().pk}/revoke/"),
        "token_revoked",
        "token:",
    ),
    "a user": (make_user, "user_made", "user:grace"),
    "limits by REST": (limit_user, "user_changed", "user:ada"),
    "a project": (
        lambda s: s.rest.post("/api/v1/projects/", {"name": "vision"}),
        "project_made",
        "project:vision",
    ),
    "shares of a project": (
        lambda s: s.rest.patch(f"/api/v1/projects/{project().pk}/", {"guaranteed": 2}),
        "project_changed",
        "project:vision",
    ),
    "a deleted project": (
        lambda s: s.rest.delete(f"/api/v1/projects/{project().pk}/"),
        "project_deleted",
        "project:vision",
    ),
    "a member": (
        lambda s: s.rest.put(
            f"/api/v1/projects/{project().pk}/members/ada/", {"role": "viewer"}
        ),
        "member_set",
        "project:vision/user:ada",
    ),
    "a removed member": (
        lambda s: s.rest.delete(f"/api/v1/projects/{project(s.ada).pk}/members/ada/"),
        "member_removed",
        "project:vision/user:ada",
    ),
    "prices": (
        lambda s: s.rest.put("/api/v1/prices/", {"per_hour": {"cpu": 1.5}}, format="json"),
        "price_changed",
        "prices",
    ),
    "a deleted user": (delete_user, "user_deleted", "user:grace"),
    "a password": (set_password, "password_changed", "user:ada"),
    "a secret": (
        lambda s: s.session.post("/account/secrets/", {"name": "S3_KEY", "value": PASSWORD}),
        "secret_made",
        "secret:S3_KEY",
    ),
    "a secret by REST": (
        lambda s: s.rest.put("/api/v1/secrets/S3_KEY/", {"value": PASSWORD}),
        "secret_made",
        "secret:S3_KEY",
    ),
    "an enrolment token": (
        lambda s: s.session.post("/nodes/tokens/", {"hours": "2"}),
        "enrolment_token_made",
        "enrolment-token:",
    ),
    "an enrolment token by REST": (
        lambda s: s.rest.post("/api/v1/enrolment-tokens/"),
        "enrolment_token_made",
        "enrolment-token:",
    ),
    "a revoked enrolment token": (
        revoke_enrolment_token, "enrolment_token_revoked", "enrolment-token:",
    ),
    "an enrolment token deleted by REST": (
        delete_enrolment_token, "enrolment_token_revoked", "enrolment-token:",
    ),
    "a cordoned node": (
        lambda s: s.rest.post(f"/api/v1/nodes/{s.node.pk}/cordon/", {}),
        "node_cordoned",
        "node:node-a",
    ),
    "a drained node": (
        lambda s: s.rest.post(f"/api/v1/nodes/{s.node.pk}/drain/", {}),
        "node_drained",
        "node:node-a",
    ),
    "planned maintenance": (
        plan_window, "maintenance_planned", "node:node-a",
    ),
    "cancelled maintenance": (cancel_window, "maintenance_cancelled", "node:node-a"),
    "a new token of a node": (
        lambda s: s.session.post(f"/nodes/{s.node.pk}/new-token/"),
        "node_token_replaced",
        "node:node-a",
    ),
    "an accepted shape": (
        lambda s: s.rest.post(f"/api/v1/nodes/{s.node.pk}/accept-shape/", {"digest": "abc"}),
        "node_shape_accepted",
        "node:node-a",
    ),
    "a removed node": (
        lambda s: s.rest.delete(f"/api/v1/nodes/{s.node.pk}/"), "node_removed", "node:node-a",
    ),
    "a replay": (
        lambda s: s.session.post("/what-if/ask/", {"policy-1": "fifo", "hours": "24"}),
        "replay_asked",
        "replay:",
    ),
    "the policy": (
        lambda s: s.rest.put("/api/v1/policy/", {"policy": "fifo"}), "policy_changed", "",
    ),
    "a cancelled job": (
        lambda s: s.rest.post(f"/api/v1/jobs/{s.job.pk}/cancel/"), "job_cancelled", "job:",
    ),
    "a tagged job": (
        lambda s: s.rest.patch(f"/api/v1/jobs/{s.job.pk}/", {"tags": ["a"]}), "job_described",
        "job:",
    ),
    "deleted files": (
        lambda s: s.rest.delete(f"/api/v1/jobs/{s.ended.pk}/files/"), "files_deleted", "job:",
    ),
    "a job": (lambda s: s.session.get(f"/jobs/{s.job.pk}/"), "job_read", "job:"),
    "a job by REST": (lambda s: s.rest.get(f"/api/v1/jobs/{s.job.pk}/"), "job_read", "job:"),
    "a sweep": (lambda s: s.session.get(f"/sweeps/{sweep(s).pk}/"), "job_read", "sweep:"),
    "a sweep by REST": (
        lambda s: s.rest.get(f"/api/v1/sweeps/{sweep(s).pk}/"), "job_read", "sweep:",
    ),
    "sweeps by REST": (
        lambda s: sweep(s) and s.rest.get("/api/v1/sweeps/"), "job_read", "sweep:",
    ),
    "a job's record": (
        lambda s: s.session.get(f"/admin/jobs/job/{s.job.pk}/change/"), "job_read", "job:",
    ),
    "code": (lambda s: s.session.get(f"/jobs/{s.job.pk}/code/"), "job_read", "job:"),
    "code by REST": (lambda s: s.rest.get(f"/api/v1/jobs/{s.job.pk}/code/"), "job_read", "job:"),
    "code of a clone": (
        lambda s: s.session.post("/jobs/new/", {"do": "check", "code_from": f"clone:{s.job.pk}"}),
        "job_read", "job:",
    ),
    "code by REST of a clone": (
        lambda s: s.rest.post(f"/api/v1/jobs/{s.job.pk}/clone/"), "job_read", "job:",
    ),
    "a log": (lambda s: s.session.get(f"/jobs/{s.job.pk}/log/"), "job_read", "job:"),
    "a log file": (lambda s: s.session.get(f"/jobs/{s.job.pk}/log/file/"), "job_read", "job:"),
    "a log by REST": (lambda s: s.rest.get(f"/api/v1/jobs/{s.job.pk}/logs/"), "job_read", "job:"),
    "a model": (
        lambda s: s.session.get(f"/jobs/{s.job.pk}/files/model.keras/"), "job_read", "job:",
    ),
    "a model by REST": (
        lambda s: s.rest.get(f"/api/v1/jobs/{s.job.pk}/files/model.keras/"), "job_read", "job:",
    ),
}  # fmt: skip
#: Acts with the token.
BY_REST = (
    "a secret by REST", "an enrolment token by REST", "an enrolment token deleted",
    "a cordoned", "a drained", "an accepted", "a cancelled", "a tagged",
    "planned maintenance", "cancelled maintenance",
    "limits by REST", "a project", "shares of a project", "a deleted project", "a member", "prices",
    "a removed", "deleted files", "the policy", "a job by REST", "code by REST",
    "a log by REST", "a model by REST", "a sweep by REST", "sweeps by REST",
)  # fmt: skip
#: Acts that are undone if they are not noted.
NOTED_OR_NOT_DONE = (
    "a token", "a revoked token", "an enrolment token", "a drained node", "a removed node",
    "the policy",
)  # fmt: skip
