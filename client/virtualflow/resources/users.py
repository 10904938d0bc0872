"""Requests about users and their limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from virtualflow import answers
from virtualflow.typed_site import PAGE_SIZE, TypedSite


class UserRequests:
    """Methods of `Client` about users."""

    _site: TypedSite

    def account(self) -> answers.User:
        """Return the own limits and the use of them."""
        return self._site.get("account/", answers.User)

    def users(self, *, q: str | None = None) -> Iterator[answers.User]:
        """Yield the users, the newest first (admins); `q` is a part of the name."""
        return self._site.pages("users/", answers.User, {"q": q, "page_size": PAGE_SIZE})

    def user(self, name: str) -> answers.User:
        """Return a user's limits and use (admins)."""
        return self._site.get(f"users/{quote(name, safe='')}/", answers.User)

    def change_user(
        self, name: str, *, if_match: str | None = None, **changes: Any
    ) -> answers.User:
        """Change a user's limits, or whether the account is active (admins).

        Args:
            if_match: the ETag of the user as it was read; refused with 412 when somebody has
                changed the user since.
            changes: `priority_ceiling`, `tier_ceiling`, `share_factor`, `live_jobs_limit`,
                `storage_limit_bytes`, `is_active`. None stands for the site's own limit.
        """
        headers = {"If-Match": if_match} if if_match else {}
        path = f"users/{quote(name, safe='')}/"
        return self._site.patch(path, answers.User, json=changes, headers=headers)
