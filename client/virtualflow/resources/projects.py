"""Requests about projects, users and the use of accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from virtualflow import answers
from virtualflow.typed_site import (
    PAGE_SIZE,
    TypedSite,
    answer_read,
    given_only,
)


class ProjectRequests:
    """Methods of `Client` about projects and users; errors are those of the client."""

    _site: TypedSite

    def projects(self) -> list[answers.Project]:
        """Return the own projects with what they hold now; all of them for admins."""
        return self._site.rows("projects/", answers.Project)

    def project(self, project_id: int) -> answers.ProjectDetail:
        """Return a project with its members."""
        return self._site.get(f"projects/{project_id}/", answers.ProjectDetail)

    def make_project(self, name: str, **shares: Any) -> answers.ProjectDetail:
        """Make a project (admins).

        Args:
            shares: as of `change_project`.
        """
        response = self._site.request("POST", "projects/", json={"name": name, **shares})
        return answer_read(response, answers.ProjectDetail)

    def change_project(self, project_id: int, **changes: Any) -> answers.ProjectDetail:
        """Change shares and limits of a project (admins).

        Args:
            changes: `guaranteed`, `limit`, `user_limit`, `live_jobs_limit`, `user_live_jobs_limit`,
                `description`, `is_closed`. A limit of None: there is none. `guaranteed_by_kind`,
                `limit_by_kind`: kind -> accelerators, in place of those of all kinds before.
        """
        return self._site.patch(f"projects/{project_id}/", answers.ProjectDetail, json=changes)

    def delete_project(self, project_id: int) -> None:
        """Delete a project without live jobs (admins); ended jobs keep its name."""
        self._site.request("DELETE", f"projects/{project_id}/")

    def set_member(self, project_id: int, user: str, role: str) -> answers.Member:
        """Give a person a role: `viewer`, `member`, `operator` or `admin` (project admins)."""
        path = f"projects/{project_id}/members/{quote(user, safe='')}/"
        response = self._site.request("PUT", path, is_repeatable=True, json={"role": role})
        return answer_read(response, answers.Member)

    def remove_member(self, project_id: int, user: str) -> None:
        """End a person's membership (project admins)."""
        self._site.request("DELETE", f"projects/{project_id}/members/{quote(user, safe='')}/")

    def usage(
        self,
        by: str = "project",
        *,
        since: str | None = None,
        until: str | None = None,
        project: str | None = None,
    ) -> answers.Usage:
        """Return accelerator-hours, waste and cost of the visible jobs, by default of 30 days.

        Args:
            by: `project`, `user` or `tag`.
            since, until: times of ISO 8601.
            project: name of a project: only its jobs.
        """
        query = {"by": by, "since": since, "until": until, "project": project}
        return self._site.get("usage/", answers.Usage, params=given_only(query))

    def usage_csv(self, by: str = "project", **query: str | None) -> str:
        """Return `usage`, of the same arguments, as CSV with the hours by kind; last the total."""
        params = given_only({"by": by, **query, "csv": "1"})
        return self._site.request("GET", "usage/", params=params).text

    def account(self) -> answers.User:
        """Return the own limits and the use of them."""
        return self._site.get("account/", answers.User)

    def users(self, *, q: str | None = None) -> Iterator[answers.User]:
        """Yield the users, the newest first (admins); `q` is a part of the name."""
        return self._site.pages("users/", answers.User, {"q": q, "page_size": PAGE_SIZE})

    def user(self, name: str) -> answers.User:
        """Return a user's limits and use (admins)."""
        return self._site.get(f"users/{quote(name, safe='')}/", answers.User)

    def change_user(self, name: str, **changes: Any) -> answers.User:
        """Change a user's limits, or whether the account is active (admins).

        Args:
            changes: `priority_ceiling`, `tier_ceiling`, `share_factor`, `live_jobs_limit`,
                `storage_limit_bytes`, `is_active`. None stands for the site's own limit.
        """
        return self._site.patch(f"users/{quote(name, safe='')}/", answers.User, json=changes)
