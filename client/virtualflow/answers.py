"""Types of the site's answers; docs/rest-api.md says what the fields mean.

An answer is the JSON as the site sent it: with `fields` only those are there, and a newer site may
send more. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

from typing import Any, TypedDict

#: Statuses that no event can leave.
ENDED = frozenset({"finished", "failed", "invalid", "cancelled"})


class Stop(TypedDict):
    """Stop condition of a job."""

    kind: str
    limit: int
    metric: str
    target: float | None
    higher_is_better: bool


class File(TypedDict):
    """A result file or checkpoint of a job."""

    name: str
    sha256: str
    size_bytes: int
    step: int | None
    epoch: int | None
    at: str


class JobSummary(TypedDict):
    """A job in a list."""

    id: int
    name: str
    tags: list[str]
    task: str
    owner: str
    project: str | None
    template: str
    status: str
    status_code: str
    status_reason: str
    policy_reason: str
    expected_start_earliest_at: str | None
    expected_start_latest_at: str | None
    expected_start_changes: int
    expected_start_changed_at: str | None
    tier: str
    priority: int
    num_accelerators: int
    min_accelerators: int
    max_accelerators: int
    accepted_kinds: list[str]
    allow_mixed_kinds: bool
    global_batch_size: int
    batch_size: int
    batch_size_min: int | None
    batch_size_max: int | None
    num_virtual_nodes: int
    stop: Stop
    forked_from: int | None
    trial_of: int | None
    sweep: int | None
    step: int
    epoch: int
    loss: float | None
    warning: str
    examples_per_s: float | None
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    version: int
    revision: int


class BestMetric(TypedDict):
    """Best and newest value of the metric that a job is judged by; epochs from 0."""

    name: str
    is_higher_better: bool
    value: float
    epoch: int
    step: int | None
    last: float
    is_last_worse: bool


class ExpectedEnd(TypedDict):
    """Times between which a running job ends; None: at any time before."""

    earliest_at: str | None
    latest_at: str


class Job(JobSummary):
    """A job with all fields."""

    note: str
    code_name: str
    entry_file: str
    settings: dict[str, Any]
    secrets: list[str]
    seed: int
    reduction: str
    shuffle: bool
    on_nonfinite: str
    selection: dict[str, Any]
    tuning: dict[str, Any]
    source_job: int | None
    forked_at_step: int | None
    forks: list[int]
    code_sha256: str
    generation: int
    restarts: int
    pause_requested: bool
    facts: dict[str, Any]
    metrics: dict[str, float | None]
    best_metric: BestMetric | None
    expected_end: ExpectedEnd | None
    nonfinite: dict[str, Any]
    digest: str
    error_field: str
    error_traceback: str
    attained_accelerator_s: float
    throughput_by_count: dict[str, Any]
    noise_scale: dict[str, Any] | None
    forecast: dict[str, Any] | None
    selected: dict[str, Any] | None
    tuned: dict[str, Any] | None
    kinds_used: list[str]
    reproducibility: str
    files: list[File]
    files_expire_at: str | None
    files_deleted_at: str | None


class Outlook(TypedDict):
    """Answer to a dry run: when the job would start, on which accelerators, and why."""

    dry_run: bool
    starts: str
    accelerators: dict[str, int]
    num_shrunk: int
    reason: str
    memory: dict[str, Any] | None


class Outcomes(TypedDict):
    """Results of an action on many jobs, and the requests that undo it."""

    results: list[dict[str, Any]]
    undo: list[dict[str, Any]]


class Comparison(TypedDict):
    """Jobs side by side; settings and metrics by name, with one value per job."""

    jobs: list[dict[str, Any]]
    settings: dict[str, list[Any]]
    num_settings: int
    metrics: dict[str, dict[str, Any]]


class Event(TypedDict):
    """An event of a job or a node."""

    id: int
    kind: str
    actor: str
    message: str
    data: dict[str, Any]
    at: str
    job: int | None
    node: int | None


class Generation(TypedDict):
    """A resize of a job, with its figures."""

    number: int
    previous: int | None
    phase: str
    num_members: int
    num_switched: int
    members: list[dict[str, Any]]
    reason: str
    actor: str
    requested_at: str
    ready_at: str | None
    switch_ordered_at: str | None
    switched_at: str | None
    closed_at: str | None
    step: int | None
    pause_s: float | None
    bytes_moved: int | None
    digest_before: str
    digest_after: str
    recover: bool
    parked: bool
    lost: list[int]
    first_step_at: str | None


class Metrics(TypedDict):
    """Series of a job: `steps` summed up to some hundred points, all `epochs`."""

    steps: list[dict[str, Any]]
    batch_sizes: list[dict[str, int]]
    epochs: list[dict[str, Any]]


class LogPart(TypedDict):
    """Part of a log; `next_cursor` is the place where the next part begins."""

    text: str
    next_cursor: int
    truncated: bool
    slots: list[int]


class LogLine(TypedDict):
    """A line of a log; `offset` is the byte of its trainer's log at which it begins."""

    slot: int
    offset: int
    at: str
    level: str
    text: str


class LogMatch(LogLine):
    """A line that was searched for, with lines about it that belong to no match before."""

    before: list[LogLine]
    after: list[LogLine]


class LogSearch(TypedDict):
    """Result of one request of a search, which `next_cursor` goes on from; empty at the end."""

    matches: list[LogMatch]
    stopped: str
    next_cursor: str
    searched_bytes: int


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


class Move(TypedDict):
    """A job whose accelerators would change."""

    job: int
    name: str
    held: int
    wanted: int


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


class Template(TypedDict):
    """A ready job that a submission may name."""

    name: str
    title: str
    description: str
    settings: dict[str, Any]
    global_batch_size: int
    num_virtual_nodes: int
    max_accelerators: int
    stop: dict[str, Any]


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


class Sweep(TypedDict):
    """A group of jobs over a space of settings."""

    id: int
    name: str
    owner: str
    template: str
    space: dict[str, Any]
    num_draws: int | None
    seed: int
    max_running: int
    is_paused: bool
    num_jobs: int
    statuses: dict[str, int]
    submitted_at: str


class SweepPreview(TypedDict):
    """The jobs that a sweep would have."""

    num_jobs: int
    max_running: int
    settings: list[dict[str, Any]]


class Start(TypedDict):
    """Seconds until the expected start of a waiting job."""

    earliest_s: float
    latest_s: float


class StartChange(TypedDict):
    """A waiting job whose expected start would change; None: there is no estimate."""

    job: int
    name: str
    before: Start | None
    after: Start | None


class Preview(TypedDict):
    """Changes that a new priority or tier would make now."""

    policy: str
    moves: list[Move]
    num_others: int
    starts: list[StartChange]


class User(TypedDict):
    """A user, the limits in force, and the use of them."""

    name: str
    is_active: bool
    is_admin: bool
    last_login: str | None
    priority_ceiling: int
    tier_ceiling: str
    share_factor: float
    live_jobs_limit: int
    live_jobs: int
    storage_limit_bytes: int
    stored_bytes: int
    chosen: list[str]


class Member(TypedDict):
    """A member of a project."""

    user: str
    role: str
    since: str


class Project(TypedDict):
    """A project, and what it holds now; a limit of None: there is none."""

    id: int
    name: str
    description: str
    guaranteed: int
    limit: int | None
    user_limit: int | None
    guaranteed_by_kind: dict[str, int]
    limit_by_kind: dict[str, int]
    live_jobs_limit: int | None
    user_live_jobs_limit: int | None
    is_closed: bool
    created_at: str
    held: int
    borrowed: int
    held_by_kind: dict[str, int]
    borrowed_by_kind: dict[str, int]
    live_jobs: int
    waiting_jobs: int
    num_members: int
    role: str


class ProjectDetail(Project):
    """A project with its members."""

    members: list[Member]


class UsageRow(TypedDict):
    """Use of a project, user or tag."""

    name: str
    accelerator_hours: float
    hours: dict[str, float]
    idle_hours: float | None
    paused_hours: float
    cost: float | None


class Usage(TypedDict):
    """Use of accelerators between two times, the largest first."""

    since: str
    until: str
    by: str
    currency: str
    rows: list[UsageRow]
    total: UsageRow


class SavedFilter(TypedDict):
    """A filter of the list of jobs by its name; `query` is that of `GET jobs/`."""

    id: int
    name: str
    query: str
    changed_at: str


class Secret(TypedDict):
    """A secret without its value."""

    name: str
    created_at: str
    changed_at: str


class Validation(TypedDict):
    """A validation of a submission that is not submitted; `code` says why if it failed."""

    id: int
    status: str
    code: str
    text: str
    num_virtual_nodes: int
    memory: dict[str, Any] | None
    facts: dict[str, Any]
    error_field: str
    error_traceback: str
    requested_at: str
    ended_at: str | None


class Channel(TypedDict):
    """A notification channel."""

    id: int
    name: str
    kind: str
    address: str
    events: list[str]
    is_cluster_wide: bool
    paused_reason: str
    num_failures: int
    num_dropped: int
    created_at: str


class NewChannel(Channel):
    """A channel just created; `signing_key` is empty but for webhooks."""

    signing_key: str


class Delivery(TypedDict):
    """A message to a channel, and what came of it."""

    id: int
    kind: str
    status: str
    num_attempts: int
    next_try_at: str
    answer: str
    created_at: str
    ended_at: str | None
    body: dict[str, Any]


class Change(TypedDict):
    """Numbers of changed jobs, and whether anything else of the cluster may have changed."""

    jobs: list[int]
    cluster: bool


class Index(TypedDict):
    """The user and token of the requests, and the site's routes."""

    api_version: int
    user: str
    is_admin: bool
    priority_ceiling: int
    tier_ceiling: str
    scopes: list[str] | None
    token_expires_at: str | None
    stream: str | None
    routes: dict[str, str]
