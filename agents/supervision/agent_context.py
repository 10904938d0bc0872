"""Dependencies that trainers and validations of an agent share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agents.session.background import Background
from agents.session.client import ControlPlaneClient
from agents.settings import AgentSettings
from agents.supervision.cache import FileCache
from agents.supervision.fetch import SiteFiles
from agents.supervision.fork_servers import ForkServers
from agents.supervision.isolation import Isolation
from agents.supervision.watchdog import Watchdog
from controlplane.core.protocol.wire import AcceleratorInfo


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Dependencies shared by all trainers and validations of an agent.

    Attributes:
        make_room: deletes what the agent keeps to save work, after an error of a full disk.
    """

    settings: AgentSettings
    accelerators: Mapping[int, AcceleratorInfo]
    client: ControlPlaneClient
    cache: FileCache
    transfers: Background
    fork_servers: ForkServers
    isolation: Isolation
    make_room: Callable[[], None]
    watchdog: Watchdog

    def files_of(self, resource: str) -> SiteFiles:
        """Return the files of a job or a validation on the site."""
        return SiteFiles(self.client, self.cache, resource)
