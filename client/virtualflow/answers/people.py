"""Users, projects, their use of the cluster, and what they store and hear."""

from __future__ import annotations

from typing import Any, TypedDict


class User(TypedDict):
    """A user, the limits in force, and the use of them."""

    name: str
    is_active: bool
    is_admin: bool
    last_login: str | None
    priority_ceiling: int
    tier_ceiling: str
    share_factor: float
    live_jobs_limit: int
    live_jobs: int
    storage_limit_bytes: int
    stored_bytes: int
    chosen: list[str]


class Member(TypedDict):
    """A member of a project."""

    user: str
    role: str
    since: str


class Project(TypedDict):
    """A project, and what it holds now; a limit of None: there is none."""

    id: int
    name: str
    description: str
    guaranteed: int
    limit: int | None
    user_limit: int | None
    guaranteed_by_kind: dict[str, int]
    limit_by_kind: dict[str, int]
    live_jobs_limit: int | None
    user_live_jobs_limit: int | None
    is_closed: bool
    created_at: str
    held: int
    borrowed: int
    held_by_kind: dict[str, int]
    borrowed_by_kind: dict[str, int]
    live_jobs: int
    waiting_jobs: int
    num_members: int
    role: str


class ProjectDetail(Project):
    """A project with its members."""

    members: list[Member]


class UsageRow(TypedDict):
    """Use of a project, user or tag."""

    name: str
    accelerator_hours: float
    hours: dict[str, float]
    idle_hours: float | None
    paused_hours: float
    cost: float | None


class Usage(TypedDict):
    """Use of accelerators between two times, the largest first."""

    since: str
    until: str
    by: str
    currency: str
    rows: list[UsageRow]
    total: UsageRow


class SavedFilter(TypedDict):
    """A filter of the list of jobs by its name; `query` is that of `GET jobs/`."""

    id: int
    name: str
    query: str
    changed_at: str


class Secret(TypedDict):
    """A secret without its value."""

    name: str
    created_at: str
    changed_at: str


class Channel(TypedDict):
    """A notification channel."""

    id: int
    name: str
    kind: str
    address: str
    events: list[str]
    is_cluster_wide: bool
    paused_reason: str
    num_failures: int
    num_dropped: int
    created_at: str


class NewChannel(Channel):
    """A channel just created; `signing_key` is empty but for webhooks."""

    signing_key: str


class Delivery(TypedDict):
    """A message to a channel, and what came of it."""

    id: int
    kind: str
    status: str
    num_attempts: int
    next_try_at: str
    answer: str
    created_at: str
    ended_at: str | None
    body: dict[str, Any]


class Index(TypedDict):
    """The user and token of the requests, and the site's routes."""

    api_version: int
    user: str
    is_admin: bool
    priority_ceiling: int
    tier_ceiling: str
    scopes: list[str] | None
    token_expires_at: str | None
    stream: str | None
    routes: dict[str, str]
