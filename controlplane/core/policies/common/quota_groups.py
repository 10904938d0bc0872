"""Groups of jobs that share a quota: projects, and the users of a project that limits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.core.values.types import Job, Snapshot


@dataclass(frozen=True, slots=True)
class QuotaGroup:
    """Jobs that share a quota.

    Attributes:
        key: identifies the group.
        whose: the quota's owner in sentences.
        guaranteed: accelerators that the jobs get at once if they can use them.
        limit: most that they may have together; None: there is no limit.
        guaranteed_by_kind, limit_by_kind: the same of one kind; a kind that is missing has none.
        user_limits: user -> most that the user's jobs may have together.
    """

    key: str
    whose: str
    jobs: tuple[Job, ...]
    guaranteed: int
    limit: int | None
    guaranteed_by_kind: Mapping[str, int] = field(default_factory=dict)
    limit_by_kind: Mapping[str, int] = field(default_factory=dict)
    user_limits: Mapping[int | None, int] = field(default_factory=dict)

    def most(self, count: int, kind: str | None = None) -> int:
        """Return a count, or the limit if that is less: the limit of a kind, or of all kinds."""
        limit = self.limit if kind is None else self.limit_by_kind.get(kind)
        return count if limit is None else min(count, limit)

    def usable(self, demands: Iterable[tuple[Job, int]]) -> int:
        """Return the sum of what jobs can use, as far as the limits of their users let them."""
        by_user: Counter[int | None] = Counter()
        for job, count in demands:
            limit = self.user_limits.get(job.user, count)
            if job.min_accelerators <= limit:
                by_user[job.user] += count
        return sum(min(count, self.user_limits.get(user, count)) for user, count in by_user.items())


def projects_of(snapshot: Snapshot) -> list[QuotaGroup]:
    """List the projects with jobs and with a guarantee or a limit, of a kind or of all kinds."""
    jobs: dict[int, list[Job]] = {}
    for job in snapshot.jobs:
        if job.project is not None and job.project in snapshot.projects:
            jobs.setdefault(job.project, []).append(job)
    found = []
    for project, members in sorted(jobs.items()):
        quota = snapshot.projects[project]
        limits = [(job.user, quota.user_limit_left(job.user)) for job in members]
        group = QuotaGroup(
            str(project),
            "project",
            tuple(members),
            quota.guaranteed_left,
            quota.limit_left,
            quota.guaranteed_left_by_kind,
            quota.limit_left_by_kind,
            {user: limit for user, limit in limits if limit is not None},
        )
        has_guarantee = group.guaranteed or any(group.guaranteed_by_kind.values())
        if has_guarantee or group.limit is not None or group.limit_by_kind:
            found.append(group)
    return found


def users_in_projects(snapshot: Snapshot) -> list[QuotaGroup]:
    """List the users with jobs in projects that limit them, in an order that no job changes."""
    jobs: dict[tuple[int, int | None], list[Job]] = {}
    for job in snapshot.jobs:
        quota = None if job.project is None else snapshot.projects.get(job.project)
        if job.project is not None and quota is not None and quota.user_limit is not None:
            jobs.setdefault((job.project, job.user), []).append(job)
    return [
        QuotaGroup(
            f"{project}.{'' if user is None else user}",
            "owner in this project",
            tuple(members),
            0,
            snapshot.projects[project].user_limit_left(user),
        )
        for (project, user), members in sorted(jobs.items(), key=_group_order)
    ]


def _group_order(row: tuple[tuple[int, int | None], list[Job]]) -> tuple[int, int]:
    (project, user), _ = row
    return project, -1 if user is None else user
