"""Nodes, accelerators, maintenance, the policy, and replays of the past."""

from __future__ import annotations

from typing import Any, TypedDict

from virtualflow.answers.jobs import Move


class Reading(TypedDict):
    """Use of an accelerator in the last minute; None for what the device does not tell."""

    utilisation_percent: float | None
    memory_bytes: float | None
    temperature_c: float | None
    power_w: float | None
    read_at: str


class Accelerator(TypedDict):
    """A device of a node; `reading` is None if its agent has not told any lately."""

    id: int
    index: int
    kind: str
    name: str
    memory_bytes: int
    is_present: bool
    reading: Reading | None
    is_idle_held: bool


class AcceleratorUtilisation(TypedDict):
    """Bins of an accelerator, oldest first, with the values that were asked for."""

    id: int
    index: int
    kind: str
    bins: list[dict[str, Any]]


class Utilisation(TypedDict):
    """Use of a node's accelerators over time; `step` is the width of a bin in seconds."""

    since: str
    until: str
    step: int
    accelerators: list[AcceleratorUtilisation]


class Node(TypedDict):
    """A machine with its accelerators."""

    id: int
    name: str
    host: str
    status: str
    isolation: str
    filters_peers: bool
    is_cordoned: bool
    is_draining: bool
    cordon_reason: str
    quarantined_until: str | None
    quarantine_reason: str
    maintenance_from: str | None
    maintenance_until: str | None
    proposed_shape: dict[str, Any] | None
    last_seen_at: str
    enrolled_at: str
    accelerators: list[Accelerator]


class DrainMove(Move):
    """A job that a drain would change; `start_s` is its expected start, if it waits then."""

    on_node: int
    nodes: dict[str, int]
    within_s: float | None
    start_s: list[float] | None
    text: str


class MaintenanceWindow(TypedDict):
    """A time in which a node is empty; its status is planned, under way, ended or cancelled."""

    id: int
    node: int
    node_name: str
    status: str
    starts_at: str
    ends_at: str
    reason: str
    planned_by: str
    created_at: str
    began_at: str | None
    ended_at: str | None


class DrainPreview(TypedDict):
    """Effect of a drain or maintenance now; `staying` are jobs there that do not change."""

    dry_run: bool
    change: str
    moves: list[DrainMove]
    staying: list[int]


class Policy(TypedDict):
    """The policy in force, and the names of all."""

    policy: str
    version: int
    changed_by: str
    changed_at: str
    policies: list[str]


class ReplaySummary(TypedDict):
    """A replay of the cluster's past under another policy, cluster size or resize cost."""

    id: int
    status: str
    progress: float
    policy: str
    accelerators: dict[str, int]
    resize_cost_s: float | None
    start_at: str
    end_at: str
    requested_by: str | None
    requested_at: str
    finished_at: str | None
    error: str


class Replay(ReplaySummary):
    """A replay with its result, which is empty until it is done."""

    result: dict[str, Any]


class ReplayComparison(TypedDict):
    """Replays over one history side by side; without rows until one of them is done."""

    start_at: str
    end_at: str
    num_jobs: int | None
    as_is_policy: str | None
    as_is_accelerators: dict[str, int] | None
    scenarios: list[dict[str, Any]]
    rows: list[dict[str, Any]]
