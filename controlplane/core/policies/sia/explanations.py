"""Reasons for the allotments of Sia's program, with the program's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from controlplane.core.policies.common.explanations import Holders, change, gainers
from controlplane.core.policies.common.rates import left_s, packed_rates
from controlplane.core.policies.sia.configurations import Configuration, Kind
from controlplane.core.policies.sia.program import JobAssignment, claim_weight, left_out_cost
from controlplane.core.values.explanations import MIN_REPORTED_GAIN, Reason, reason
from controlplane.core.values.types import Job, JobId


@dataclass(frozen=True, slots=True)
class Way:
    """A reduction of one job that makes room for another one.

    Attributes:
        freed: accelerators that become free.
        cost: cost of the reduction in the program.
        then: accelerators left to the job; None: none.
    """

    freed: int
    cost: float
    job_id: JobId
    before: int
    then: int | None


@dataclass(frozen=True)
class ProgramDecision:
    """A decision of the program, before the reasons are written.

    Attributes:
        options: the configurations of each job, by row.
        given: the chosen one of each row, if any.
        current: the present configurations of jobs.
    """

    jobs: Sequence[Job]
    kinds: Mapping[str, Kind]
    options: Mapping[int, Sequence[JobAssignment]]
    given: Mapping[int, JobAssignment]
    current: Mapping[JobId, Configuration]

    @cached_property
    def heaviest(self) -> float:
        """The weight of the heaviest job."""
        return max((claim_weight(job) for job in self.jobs), default=0.0)

    @cached_property
    def holders(self) -> dict[str, Holders]:
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in self.kinds}
        for row, choice in self.given.items():
            configuration = choice.configuration
            found[configuration.kind].append((self.jobs[row].weight, configuration.count))
        return {
            name: Holders(name, kind.capacity, found[name]) for name, kind in self.kinds.items()
        }

    def before(self, row: int, kind: str) -> int:
        """Count the accelerators of a kind that a job holds."""
        own = self.current.get(self.jobs[row].id)
        return own.count if own is not None and own.kind == kind else 0

    @cached_property
    def gainers(self) -> dict[str, JobId]:
        """The job with the largest increase on each kind."""
        return gainers(
            (
                choice.configuration.kind,
                self.jobs[row].id,
                choice.configuration.count - self.before(row, choice.configuration.kind),
            )
            for row, choice in self.given.items()
        )

    @cached_property
    def ways(self) -> dict[str, list[Way]]:
        """Every reduction of a single job that makes room on a kind, the cheapest first."""
        found: dict[str, list[Way]] = {name: [] for name in self.kinds}
        for row, choice in self.given.items():
            job, had = self.jobs[row], choice.configuration
            leaving = left_out_cost(claim_weight(job), self.heaviest) - choice.cost
            found[had.kind].append(Way(had.count, leaving, job.id, had.count, None))
            for other in self.options[row]:
                then = other.configuration
                if then.kind == had.kind and then.count < had.count:
                    freed, cost = had.count - then.count, other.cost - choice.cost
                    found[had.kind].append(Way(freed, cost, job.id, had.count, then.count))
        return {name: sorted(ways, key=lambda way: way.cost) for name, ways in found.items()}

    def cheapest(self, kind: str, missing: int) -> Way | None:
        """Find the cheapest reduction of a single job that frees enough accelerators."""
        return next((way for way in self.ways[kind] if way.freed >= missing), None)


def held_reason(outcome: ProgramDecision, row: int) -> Reason:
    """Describe a job's allotment and why it is not larger."""
    job, choice = outcome.jobs[row], outcome.given[row]
    own, configuration = outcome.current.get(job.id), choice.configuration
    kind, before = configuration.kind, outcome.before(row, configuration.kind)
    came_from = (own.count, own.kind) if own is not None and own.kind != kind else None
    capacity = outcome.kinds[kind].capacity
    cause = _cause(outcome, kind) if configuration.count < before else None
    parts = [change(kind, capacity, before, configuration.count, came_from, cause)]
    if job.performance is None:
        return reason("parts", parts=(*parts, reason("speed_unknown")))
    parts += [reason("sia_goodput", goodput=choice.goodput), _best(outcome, row)]
    left = configuration_left_s(job, configuration, outcome.kinds[kind])
    if left is not None:
        parts.append(reason("done_in", end_s=left))
    return reason("parts", parts=tuple(parts))


def _cause(outcome: ProgramDecision, kind: str) -> Reason | None:
    """Name the job with the largest increase on a kind, if any."""
    winner = outcome.gainers.get(kind)
    return None if winner is None else reason("for_job", winner=winner)


def _best(outcome: ProgramDecision, row: int) -> Reason:
    """Compare a job's configuration with the next faster one, on its own kind if there is one."""
    choice, job = outcome.given[row], outcome.jobs[row]
    kind, least = choice.configuration.kind, choice.goodput * (1.0 + MIN_REPORTED_GAIN)
    faster = [one for one in outcome.options[row] if one.goodput >= least]
    if not faster:
        is_most = choice.configuration.count >= job.max_accelerators
        return reason("all_usable" if is_most else "sia_most")
    best = min(faster, key=lambda one: (one.configuration.kind != kind, one.configuration))
    other = best.configuration.kind
    obstacle = reason("sia_needed")
    if best.utility <= choice.utility:
        obstacle = reason("sia_resizes", resizes=job.num_resizes)
    return reason(
        "sia_faster",
        count=best.configuration.count,
        kind=None if other == kind else reason("sia_kind", kind=other),
        gain=best.goodput / choice.goodput - 1.0,
        obstacle=obstacle,
    )


def waiting_reason(outcome: ProgramDecision, row: int) -> Reason:
    """Describe a waiting job's demand, the present holders, and why no job makes room."""
    job = outcome.jobs[row]
    least = min(outcome.options[row], key=lambda option: option.configuration.count)
    kind, count = least.configuration.kind, least.configuration.count
    holders = outcome.holders[kind]
    way = outcome.cheapest(kind, holders.missing(count))
    gain = left_out_cost(claim_weight(job), outcome.heaviest) - least.cost
    obstacle = stopped = None
    if way is not None and way.cost > gain:
        step = reason("sia_stop")
        if way.then is not None:
            step = reason("sia_shrink", before=way.before, given=way.then)
        obstacle = reason("sia_way", job=way.job_id, change=step, cost=way.cost, worth=gain)
    if own := outcome.current.get(job.id):
        stopped = reason("stopped", cause=_cause(outcome, own.kind))
    return reason(
        "sia_waits",
        stopped=stopped,
        holders=holders.waits(count, job.weight),
        way=obstacle,
    )


def configuration_left_s(job: Job, configuration: Configuration, kind: Kind) -> float | None:
    """Predict the seconds until a job ends on a configuration, from its table of goodputs."""
    count = configuration.count
    if job.performance is None or job.remaining_examples is None:
        return left_s(job, kind.name, count, configuration.num_nodes)
    speed = float(packed_rates(job, kind.name, count, kind.per_node)[count])
    return max(job.remaining_examples, 0.0) / speed if speed > 0.0 else None
