"""Commands about users, for admins."""

from __future__ import annotations

from typing import Any

import click

from virtualflow.answers import User
from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json
from virtualflow.cli.jobs import TIERS
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client
from virtualflow.typed_site import given_only

_GIB = 1024**3
#: Changes that give a user the site's own limits.
_SITE_LIMITS: dict[str, Any] = {
    **dict.fromkeys(("priority_ceiling", "tier_ceiling", "live_jobs_limit", "storage_limit_bytes")),
    "share_factor": 1.0,
}
_COLUMNS = (
    Column("user", lambda user: user["name"]),
    Column("active", lambda user: user["is_active"]),
    Column("admin", lambda user: user["is_admin"], at_width=60),
    Column("ceiling", lambda user: user["priority_ceiling"], is_number=True),
    Column("tier", lambda user: user["tier_ceiling"], at_width=70),
    Column("factor", lambda user: user["share_factor"], is_number=True),
    Column("live jobs", lambda user: _used(user["live_jobs"], user["live_jobs_limit"])),
    Column("GiB stored", lambda user: _stored(user), at_width=80),
    Column("last login", lambda user: when(user["last_login"]), at_width=100),
)


def _used(number: object, limit: object) -> str:
    return f"{number} of {limit}"


def _stored(user: User) -> str:
    stored = f"{user['stored_bytes'] / _GIB:.2f}"
    limit_bytes = user["storage_limit_bytes"]
    return _used(stored, f"{limit_bytes / _GIB:g}") if limit_bytes else stored


@click.command()
@click.argument("name", required=False, shell_complete=completing.users)
@click.option(
    "--ceiling",
    "priority_ceiling",
    type=int,
    help="Highest priority of the user's jobs, 1 to 1000.",
)
@click.option(
    "--tier", "tier_ceiling", type=click.Choice(TIERS), help="Highest tier of the user's jobs."
)
@click.option(
    "--factor", "share_factor", type=float, help="Factor of the user's claim on a share, 0.1 to 10."
)
@click.option("--live-jobs", "live_jobs_limit", type=int, help="Most jobs that have not ended.")
@click.option("--storage-gib", type=click.FloatRange(0, 2**30), help="Of code and files; 0: any.")
@click.option("--active/--inactive", "is_active", default=None, help="Whether the user may log in.")
@click.option("--reset", is_flag=True, help="Take the site's own limits, but for those given.")
@as_json
def users(
    name: str | None, as_json: bool, reset: bool, storage_gib: float | None, **given: Any
) -> None:
    """List the users, or show or change the user NAME (admins)."""
    changes = (_SITE_LIMITS if reset else {}) | given_only(given)
    if storage_gib is not None:
        changes["storage_limit_bytes"] = round(storage_gib * _GIB)
    if name is None and changes:
        raise click.UsageError("Give the name of the user to change.")
    with Client.from_login() as client:
        if name is None:
            found = list(client.users())
        else:
            found = [client.change_user(name, **changes) if changes else client.user(name)]
    if as_json:
        return screen.print_json(found if name is None else found[0])
    return screen.print_table(_COLUMNS, found)
