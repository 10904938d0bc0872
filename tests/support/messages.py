"""Messages of agents, with every value that a test does not care about."""

from __future__ import annotations

from typing import Any

from controlplane.core.protocol.node_messages import HelloRequest, ReportBatch
from jobs.models import Node
from tests.support.builders import accelerators


def hello_request(node: Node, **other: Any) -> HelloRequest:
    """Give the start of a node's agent, with the shape that it enrolled with."""
    names = ("host", "first_port", "last_port", "boot_id")
    values = {"accelerators": accelerators(2)} | {name: getattr(node, name) for name in names}
    return HelloRequest(**{**values, **other})


def batch_of(node: Node, **other: Any) -> ReportBatch:
    """Give a batch of a node's agent with nothing in it but what is given."""
    empty: dict[str, Any] = dict.fromkeys(("trainers", "reports", "logs", "validations"), ())
    return ReportBatch(**{"boot_id": node.boot_id, "sent_at": 0.0, **empty, **other})
