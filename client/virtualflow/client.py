"""The client: one method for each thing that a program does with a site (`resources`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from virtualflow import answers
from virtualflow.changes import changes_read
from virtualflow.credentials import credentials_find
from virtualflow.resources.cluster import ClusterRequests
from virtualflow.resources.job_files import JobFileRequests
from virtualflow.resources.notifications import NotificationRequests
from virtualflow.resources.projects import ProjectRequests
from virtualflow.resources.replays import ReplayRequests
from virtualflow.resources.secrets import SecretRequests
from virtualflow.resources.sweeps import SweepRequests
from virtualflow.resources.validations import ValidationRequests
from virtualflow.typed_site import TypedSite


class Client(
    JobFileRequests,
    SweepRequests,
    ValidationRequests,
    SecretRequests,
    ClusterRequests,
    ProjectRequests,
    NotificationRequests,
    ReplayRequests,
):
    """A connection to a site, acting for the owner of a token.

    All methods raise `VirtualFlowError`. Reads, submissions and actions that do no harm when they
    are done twice are repeated up to `retries` times while the site does not answer.

    Args:
        server: the site's address, such as https://site.example.
        token: an API token of the account page.
        timeout_s: limit for connecting, and for each part of an answer.
        poll_s: least time between two questions while watching.
        sleep: replaced by tests.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_s: float = 15.0,
        retries: int = 3,
        poll_s: float = 1.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._site = TypedSite(server, token, timeout_s=timeout_s, retries=retries, sleep=sleep)
        self._poll_s = poll_s

    @classmethod
    def from_login(cls, **options: Any) -> Self:
        """Return a client with the address and token of the environment or `virtualflow login`."""
        server, token = credentials_find()
        return cls(server, token, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.server!r})"

    @property
    def server(self) -> str:
        """Address of the site."""
        return self._site.server

    def close(self) -> None:
        self._site.close()

    def index(self) -> answers.Index:
        """Return the user and scopes of the token, and the site's routes."""
        return self._site.get("", answers.Index)

    def changes(self) -> Iterator[answers.Change]:
        """Yield what changes, as it happens, until the caller stops.

        A change names jobs that you may see, to be read by `job`; `cluster` says that anything else
        may have changed. So does the first change, and the first after a broken connection.
        """
        return changes_read(self._site)
