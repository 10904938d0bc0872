"""Metrics of the whole site for Prometheus, read from the database and Redis at each scrape.

No label names a user, a job or a path, so that their number is bounded.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis
from django.db.models import Count, Min, Sum
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from controlplane.core.estimates.plausibility import CODES
from controlplane.core.values.lifecycle import JobStatus, NodeStatus
from jobs import counters, nudges
from jobs.models import Accelerator, Allocation, Artifact, ClusterSetting, Job, Node
from jobs.request_counts import BUCKETS_S, UNBOUNDED
from jobs.selectors.readings import use_now

CYCLE_OUTCOMES = ("succeeded", "failed")
ACCELERATOR_STATES = ("held", "idle", "closed", "offline")
#: Name of a metric -> column of its readings, text, factor to the metric's unit.
_READINGS = {
    "utilisation_ratio": (
        "utilisation_percent",
        "Part of an accelerator in use, from 0 to 1, mean of the last minute.",
        0.01,
    ),
    "memory_used_bytes": ("memory_bytes", "Memory in use on an accelerator.", 1.0),
    "temperature_celsius": ("temperature_c", "Temperature of an accelerator.", 1.0),
    "power_watts": ("power_w", "Power that an accelerator draws.", 1.0),
}


class SiteCollector(Collector):
    """All metrics at one moment."""

    def __init__(self, now: datetime.datetime) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Read them.

        Raises:
            DatabaseError: the database does not respond.
        """
        yield from self._jobs()
        yield self._accelerators()
        yield self._nodes()
        yield from self._readings()
        yield from self._cycle_state()
        stored = Artifact.objects.aggregate(total=Sum("size_bytes"))["total"] or 0
        yield _gauge("stored_bytes", "Bytes of the files that jobs have left.", stored)
        try:
            values, num_watchers = counters.counted(), counters.shares_sum("watchers")
            queues = nudges.queue_lengths()
        except redis.RedisError:
            yield _gauge("redis_up", "1 if Redis responds; without it counters are left out.", 0)
            return
        yield _gauge("redis_up", "1 if Redis responds; without it counters are left out.", 1)
        yield _gauge("stream_watchers", "Open event streams of pages.", num_watchers)
        lengths = {(queue,): length for queue, length in queues.items()}
        yield _gauges("task_queue_length", "Celery tasks that wait.", ["queue"], lengths)
        yield from self._cycles(values)
        text = "Parts of agents' batches that were refused."
        yield _counters("reports_refused", text, [], values, [()])
        text = "Reports of times that contradict the control plane's clock."
        reasons = [(code,) for code in CODES]
        yield _counters("reports_implausible", text, ["reason"], values, reasons)
        yield from _requests(values)

    def _jobs(self) -> Iterator[Metric]:
        rows = Job.objects.order_by().values_list("status").annotate(number=Count("id"))
        numbers = {(status.value,): 0 for status in JobStatus}
        numbers |= {(status,): number for status, number in rows}
        yield _gauges("jobs", "Jobs by status.", ["status"], numbers)
        waiting = Job.objects.filter(status=JobStatus.PENDING, pause_requested=False)
        queue = waiting.aggregate(number=Count("id"), oldest=Min("pending_since"))
        yield _gauge("queue_length", "Jobs that wait for accelerators.", queue["number"])
        wait_s = self._age_s(queue["oldest"])
        yield _gauge("queue_oldest_wait_seconds", "Longest wait of these jobs.", wait_s)

    def _accelerators(self) -> Metric:
        open_rows = Allocation.objects.filter(released_at=None)
        held = set(open_rows.values_list("accelerator", flat=True))
        numbers: Counter[tuple[str, str]] = Counter()
        present = Accelerator.objects.filter(is_present=True, node__removed_at=None)
        for accelerator in present.select_related("node"):
            status = accelerator.node.shown_status
            if status is NodeStatus.LOST:
                state = "offline"
            elif accelerator.pk in held:
                state = "held"
            else:
                state = "idle" if status is NodeStatus.ONLINE else "closed"
            numbers[accelerator.kind, state] += 1
        text = (
            "Accelerators by kind: held by jobs, idle, offline, or closed because their node is "
            "cordoned, draining, quarantined or in maintenance."
        )
        shown = itertools.product(sorted({kind for kind, _ in numbers}), ACCELERATOR_STATES)
        return _gauges(
            "accelerators", text, ["kind", "state"], {one: numbers[one] for one in shown}
        )

    def _nodes(self) -> Metric:
        rows = Node.objects.filter(removed_at=None).values_list("name", "last_seen_at")
        ages = {(name,): self._age_s(seen_at) for name, seen_at in rows}
        text = "Time since the last report of a node's agent."
        return _gauges("node_last_contact_seconds", text, ["node"], ages)

    def _readings(self) -> Iterator[Metric]:
        present = Accelerator.objects.filter(is_present=True, node__removed_at=None)
        rows = {row.pk: row for row in present.select_related("node").order_by("node", "index")}
        now = use_now(rows, self._now)
        for name, (column, text, unit) in _READINGS.items():
            told = {
                (rows[pk].node.name, str(rows[pk].index)): value * unit
                for pk, reading in now.readings.items()
                if (value := getattr(reading, column)) is not None
            }
            yield _gauges(f"accelerator_{name}", text, ["node", "accelerator"], told)
        held = Counter(rows[pk].kind for pk in now.idle)
        idle = {(kind,): held[kind] for kind in sorted({row.kind for row in rows.values()})}
        text = "Accelerators that jobs hold and have hardly used, by kind."
        yield _gauges("accelerators_idle_held", text, ["kind"], idle)

    def _cycle_state(self) -> Iterator[Metric]:
        failed_at = ClusterSetting.objects.values_list("cycle_failed_at", flat=True).first()
        text = "For how long scheduling cycles have failed; 0 while they succeed."
        yield _gauge("cycle_failing_seconds", text, self._age_s(failed_at))

    def _cycles(self, values: dict[tuple[str, ...], float]) -> Iterator[Metric]:
        outcomes = [(outcome,) for outcome in CYCLE_OUTCOMES]
        yield _counters("cycles", "Scheduling cycles by outcome.", ["outcome"], values, outcomes)
        yield _counters("cycle_seconds", "Time spent in scheduling cycles.", [], values, [()])
        ended_at = values.get(("cycle_ended_at",))
        if ended_at is not None:
            age_s = max(0.0, self._now.timestamp() - ended_at)
            yield _gauge("cycle_age_seconds", "Time since the last scheduling cycle ended.", age_s)

    def _age_s(self, at: datetime.datetime | None) -> float:
        return 0.0 if at is None else max(0.0, (self._now - at).total_seconds())


def _requests(values: dict[tuple[str, ...], float]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "virtualflow_requests", "Requests by kind and class of status.", labels=["kind", "status"]
    )
    buckets: dict[str, Counter[str]] = {}
    for name, amount in sorted(values.items()):
        if name[0] == "requests":
            requests.add_metric(name[1:], amount)
        elif name[0] == "request_bucket":
            buckets.setdefault(name[1], Counter())[name[2]] = int(amount)
    yield requests
    histogram = HistogramMetricFamily(
        "virtualflow_request_seconds",
        "Time until a request is answered; of a stream, until it begins.",
        labels=["kind"],
    )
    for kind, numbers in buckets.items():
        cumulated, total = [], 0
        for bound in (*map(str, BUCKETS_S), UNBOUNDED):
            total += numbers[bound]
            cumulated.append((bound, float(total)))
        histogram.add_metric([kind], cumulated, values.get(("request_seconds", kind), 0.0))
    yield histogram


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"virtualflow_{name}", text, value=value)


def _gauges(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(f"virtualflow_{name}", text, labels=labels)
    for of_labels, value in values.items():
        family.add_metric(of_labels, value)
    return family


def _counters(
    name: str,
    text: str,
    labels: Sequence[str],
    counted: Mapping[Any, float],
    shown: Iterable[tuple[str, ...]],
) -> Metric:
    family = CounterMetricFamily(f"virtualflow_{name}", text, labels=labels)
    for of_labels in shown:
        family.add_metric(of_labels, counted.get((name, *of_labels), 0))
    return family
