"""Jobs, their results and logs, sweeps, and what a submission or change would do."""

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
    num_metrics: int


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


class Move(TypedDict):
    """A job whose accelerators would change."""

    job: int
    name: str
    held: int
    wanted: int


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


class Change(TypedDict):
    """Numbers of changed jobs, and whether anything else of the cluster may have changed."""

    jobs: list[int]
    cluster: bool
