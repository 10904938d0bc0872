"""Values that a shell completes from the site: numbers of jobs, names of nodes and the like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import click
from click.shell_completion import CompletionItem

from virtualflow.cli import screen
from virtualflow.client import Client
from virtualflow.errors import VirtualFlowError

#: The shell waits for so long, and is given so many values.
_LIMIT_S, _MOST = 3.0, 50
#: Errors of reading an answer that lacks a field inside an object, or has another type there.
ODD_ANSWER = (AttributeError, LookupError, TypeError, ValueError)
#: Values that mean the same to every shell; names are other people's texts.
_HARMLESS = re.compile(r"[\w.:@%+=-][\w.:@%+=/-]*")
STATUSES = (
    "live", "waiting", "active", "ended",
    "validating", "pending", "starting", "running", "preempting", "paused",
    "finished", "failed", "invalid", "cancelled",
)  # fmt: skip

#: Pairs of a value and what the shell may show beside it.
Pairs = Iterable[tuple[object, object]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(pairs_of: Callable[[Client, click.Context], Pairs]) -> Completer:
    """Return a completer that asks the site, and offers nothing when that fails."""

    def complete(
        ctx: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            with Client.from_login(timeout_s=_LIMIT_S, retries=0) as client:
                return [*islice(_items(pairs_of(client, ctx), incomplete), _MOST)]
        except (VirtualFlowError, *ODD_ANSWER):
            return []

    return complete


def statuses(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a status of jobs, or a group of them."""
    return [CompletionItem(name) for name in STATUSES if name.startswith(incomplete)]


def _items(pairs: Pairs, incomplete: str) -> Iterator[CompletionItem]:
    for value, about in pairs:
        if str(value).startswith(incomplete) and _HARMLESS.fullmatch(str(value)):
            yield CompletionItem(str(value), help=" ".join(screen.plain(about).split()))


def _files(client: Client, ctx: click.Context) -> Pairs:
    job = ctx.params.get("job")
    files = client.job(job)["files"] if job else []
    return ((row["name"], f"{row['size_bytes']:,} bytes") for row in files)


jobs = completer(
    lambda client, _: (
        (row["id"], f"{row['status']}  {row['name']}")
        for row in islice(client.jobs(fields=("id", "name", "status"), page_size=_MOST), 4 * _MOST)
    )
)
files = completer(_files)
nodes = completer(lambda client, _: ((row["name"], row["status"]) for row in client.nodes()))
templates = completer(lambda client, _: ((row["name"], row["title"]) for row in client.templates()))
projects = completer(
    lambda client, _: ((row["name"], row["description"]) for row in client.projects())
)
policies = completer(lambda client, _: ((name, "") for name in client.policy()["policies"]))
filters = completer(
    lambda client, _: ((row["name"], row["query"]) for row in client.saved_filters())
)
secrets = completer(lambda client, _: ((row["name"], "") for row in client.secrets()))
channels = completer(lambda client, _: ((row["name"], row["address"]) for row in client.channels()))
sweeps = completer(
    lambda client, _: ((row["id"], row["name"]) for row in islice(client.sweeps(), _MOST))
)
users = completer(lambda client, _: ((row["name"], "") for row in client.users()))
