"""The whole product as real processes on PostgreSQL and Redis, driven by REST only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import stack as whole_stack
from tests.support.servers import RunningServer, create_database
from tests.support.stack import ADMIN, Stack, stack_environment
from tests.support.starts import count_start

__all__ = ["ADMIN", "PASSWORD", "Stack", "running_stack"]

PASSWORD = "only-for-this-test-run"


@contextmanager
def running_stack(
    directory: Path,
    postgresql: RunningServer,
    redis: RunningServer,
    database: str,
    *,
    options_for: Callable[[str], Sequence[str]] = lambda _node: (),
    address_for: Callable[[str, str], str] = lambda _node, server: server,
    **variables: str,
) -> Iterator[Stack]:
    """Run web, stream, worker, beat and two agents with two accelerators each; stop them all."""
    count_start("whole stacks")
    environment = stack_environment(
        directory,
        create_database(postgresql, database),
        redis.url.replace("db=0", "db=3"),
        ADMIN_PASSWORD=PASSWORD,
        **variables,
    )
    with whole_stack.running_stack(
        directory, environment, options_for=options_for, address_for=address_for
    ) as stack:
        yield stack
