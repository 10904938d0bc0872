"""Number of accelerators of each user and job in proportion to claims, in whole numbers.

`progressive_fill` is the rule, `FairFill` maintains its result while jobs come and go, and
`power_of_two_fill` is the rule of VirtualFlow's authors, for comparison.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from controlplane.core.scheduling.pools import urgency_order
from controlplane.core.values.types import Job, JobId

#: Claim of one more accelerator: the resulting count per weight, then age and id. Lowest first.
Claim = tuple[float, float, JobId]

#: A user, or a job without a known one.
User = tuple[str, int]

Fill = Callable[[Iterable[Job], int], dict[JobId, int]]


def progressive_fill(jobs: Iterable[Job], capacity: int) -> dict[JobId, int]:
    """Give every job its minimum, then one accelerator at a time to the lowest count per claim.

    The next accelerator goes to the user whose count after it, divided by the user's claim, is
    smallest (Jefferson's divisor method), and there to the job whose count per weight is, up to its
    maximum. One more user therefore never raises the share of another, and one more job that of no
    user. Ties go to the earlier submission, then the lower id.

    Raises:
        ValueError: the minima alone exceed `capacity`.
    """
    chosen = list(jobs)
    counts, free = _minima(chosen, capacity)
    users = {job.id: user_of(job) for job in chosen}
    claims = {user: user_claim(members) for user, members in members_of(chosen).items()}
    totals: Counter[User] = Counter()
    wanted: dict[User, list[Claim]] = {}
    for job in chosen:
        totals[users[job.id]] += counts[job.id]
        if job.max_accelerators > counts[job.id]:
            wanted.setdefault(users[job.id], []).append(_claim(job, counts[job.id] + 1))
    for row in wanted.values():
        heapq.heapify(row)

    def next_of(user: User) -> Claim:
        """Return a user's claim of one more accelerator, for the job that would get it."""
        _, at, job_id = wanted[user][0]
        return ((totals[user] + 1) / claims[user], at, job_id)

    heap = [next_of(user) for user in wanted]
    heapq.heapify(heap)
    by_id = {job.id: job for job in chosen}
    while free > 0 and heap:
        job = by_id[heap[0][2]]
        user = users[job.id]
        counts[job.id] += 1
        totals[user] += 1
        free -= 1
        if counts[job.id] < job.max_accelerators:
            heapq.heapreplace(wanted[user], _claim(job, counts[job.id] + 1))
        else:
            heapq.heappop(wanted[user])
        if wanted[user]:
            heapq.heapreplace(heap, next_of(user))
        else:
            heapq.heappop(heap)
    return counts


@dataclass(frozen=True, slots=True)
class UserDemand:
    """Demand of one user on a pool.

    Attributes:
        claim: claim on a share, positive.
        most: largest number of accelerators that the user can use.
        first: the user's first job; ties go to the earlier one.
    """

    claim: float
    most: int
    first: Job


def demands_fill(demands: Sequence[UserDemand], capacity: int) -> list[int]:
    """Return each demand's accelerators as `progressive_fill` shares them, without minima.

    Accelerators go to the lowest count per claim. So everything below the level at which real
    numbers would fill the pool is granted at once, and at most one accelerator a demand is left to
    be granted in turn.
    """
    level = _level(demands, capacity) * (1.0 - 1e-9)
    counts = [_count_at(one, level) for one in demands]
    heap = [
        ((count + 1) / one.claim, one.first.submitted_at, one.first.id, row)
        for row, (one, count) in enumerate(zip(demands, counts, strict=True))
        if count < one.most
    ]
    heapq.heapify(heap)
    free = capacity - sum(counts)
    while free > 0 and heap:
        _, at, job_id, row = heap[0]
        counts[row] += 1
        free -= 1
        if counts[row] < demands[row].most:
            heapq.heapreplace(heap, ((counts[row] + 1) / demands[row].claim, at, job_id, row))
        else:
            heapq.heappop(heap)
    return counts


def _level(demands: Sequence[UserDemand], capacity: int) -> float:
    """Return the count per claim at which demands, in real numbers, add up to the capacity."""
    order = sorted(demands, key=lambda one: -one.most / one.claim)
    totals = list(accumulate(one.claim for one in order))
    free, level = capacity, 0.0
    for one, total in zip(reversed(order), reversed(totals), strict=True):
        level = free / total
        if one.most / one.claim > level:
            break
        free -= one.most
    return level


def _count_at(demand: UserDemand, level: float) -> int:
    """Return how many of a demand's accelerators have a count per claim of at most `level`."""
    count = min(int(level * demand.claim), demand.most)
    while count > 0 and count / demand.claim > level:
        count -= 1
    while count < demand.most and (count + 1) / demand.claim <= level:
        count += 1
    return count


def user_of(job: Job) -> User:
    """Return the user to whose share a job counts: a job without a known user is its own."""
    return ("job", job.id) if job.user is None else ("user", job.user)


def members_of(jobs: Iterable[Job]) -> dict[User, list[Job]]:
    """Return the jobs of each user, in the given order."""
    members: dict[User, list[Job]] = {}
    for job in jobs:
        members.setdefault(user_of(job), []).append(job)
    return members


def user_claim(jobs: Iterable[Job]) -> float:
    """Return the claim of a user with these jobs: that of the heaviest, however many there are."""
    return max(job.weight * job.user_factor for job in jobs)


def is_by_job(members: Mapping[User, Collection[Job]]) -> bool:
    """Return whether each user has one job, or one user all of them."""
    return len(members) <= 1 or all(len(jobs) == 1 for jobs in members.values())


def power_of_two_fill(jobs: Iterable[Job], capacity: int) -> dict[JobId, int]:
    """Share as VirtualFlow's authors do: proportional shares, rounded down to powers of two.

    A job whose share reaches its maximum gets the maximum, and the rest goes to the others. Then,
    as long as the capacity is exceeded, shares are halved from the least important job on; as long
    as enough is left, shares are doubled from the most important job on, each as often as possible.
    No share falls below the minimum, which need not be a power of two.

    Raises:
        ValueError: the minima alone exceed `capacity`.
    """
    chosen = urgency_order(jobs)
    least, _ = _minima(chosen, capacity)
    counts = {
        job.id: max(_power_of_two(share), least[job.id])
        for job, share in zip(chosen, _proportional(chosen, capacity), strict=True)
    }
    free = capacity - sum(counts.values())
    for job in reversed(chosen):
        while free < 0 and counts[job.id] > least[job.id]:
            fewer = max(counts[job.id] // 2, least[job.id])
            free += counts[job.id] - fewer
            counts[job.id] = fewer
    for job in chosen:
        while counts[job.id] * 2 <= job.max_accelerators and counts[job.id] <= free:
            free -= counts[job.id]
            counts[job.id] *= 2
    return counts


def _minima(jobs: Sequence[Job], capacity: int) -> tuple[dict[JobId, int], int]:
    """Assign every job its minimum, and return the rest too."""
    counts = {job.id: job.min_accelerators for job in jobs}
    free = capacity - sum(counts.values())
    if free < 0:
        raise ValueError(f"the minima need {capacity - free} of {capacity} accelerators")
    return counts, free


def _proportional(jobs: Sequence[Job], capacity: int) -> list[float]:
    """Share by claim; a share is capped at the job's maximum, and the rest is shared again."""
    shares: dict[JobId, float] = {}
    free, left = float(capacity), list(jobs)
    while left:
        total = sum(job.share_weight for job in left)
        full = [job for job in left if free * job.share_weight / total >= job.max_accelerators]
        for job in full or left:
            shares[job.id] = job.max_accelerators if full else free * job.share_weight / total
        if not full:
            break
        free -= sum(job.max_accelerators for job in full)
        left = [job for job in left if job.id not in shares]
    return [shares[job.id] for job in jobs]


def _power_of_two(share: float) -> int:
    """Round down to a power of two, at least 1."""
    return 1 << max(int(share + 1e-9).bit_length() - 1, 0)


def _claim(job: Job, count: int) -> Claim:
    return (count / (job.weight * job.user_factor), job.submitted_at, job.id)


class FairFill:
    """The progressive fill of some jobs, kept up to date while jobs enter and leave.

    Each user has one job, or one user all of them: claims are those of jobs.
    The fill grants the smallest claims, so the largest granted claim describes it: a new job
    gets its claims below that, and then the largest claims of all are revoked until the total fits.
    """

    def __init__(self, jobs: Iterable[Job], capacity: int, running: Set[JobId]) -> None:
        self._jobs = {job.id: job for job in jobs}
        self._running = running
        self._capacity = capacity
        self.counts = progressive_fill(self._jobs.values(), capacity)
        self._used = sum(self.counts.values())
        # Claims granted (negated: the largest first) and not granted, one of each job. Entries that
        # no longer match their job's count are skipped.
        self._granted: list[tuple[float, float, JobId, int]] = []
        self._wanted: list[tuple[float, float, JobId, int]] = []
        for job_id in self._jobs:
            self._note(job_id)
        self._bar: tuple[Claim, int] | None = None

    def exchange(self, newcomer: Job, dropped: Sequence[Job], standing: float) -> bool:
        """Admit a job in place of others, unless a running one above `standing` would get less.

        From one call to the next `standing` must not rise.

        Returns:
            Whether the job was admitted.
        """
        if self._bar is not None and not dropped:
            claim, slack = self._bar
            if self._count_below(newcomer, claim) > slack:
                return False
        before = {job.id: self.counts[job.id] for job in dropped}
        used = self._used
        for job in dropped:
            self._used -= self.counts.pop(job.id)
        self._enter(newcomer)
        hit = self._shed(newcomer, standing, before)
        if hit is not None:
            if not dropped:
                kicked = sum(count - self.counts[job_id] for job_id, count in before.items())
                self._bar = (hit, self._capacity - used + kicked)
            self._undo(newcomer, before, used)
            return False
        self._spread()
        for job in dropped:
            del self._jobs[job.id]
        if dropped:
            self._bar = None
        elif self._bar is not None:
            claim, slack = self._bar
            self._bar = (claim, slack - self._count_below(newcomer, claim))
        return True

    def _enter(self, newcomer: Job) -> None:
        """Give a new job its minimum and every claim below the largest that is granted."""
        largest = self._largest_granted()
        count = newcomer.min_accelerators
        if largest is not None:
            count = self._count_below(newcomer, (-largest[0], -largest[1], -largest[2]))
        self._jobs[newcomer.id] = newcomer
        self.counts[newcomer.id] = count
        self._used += count
        self._note(newcomer.id)

    def _shed(self, newcomer: Job, standing: float, before: dict[JobId, int]) -> Claim | None:
        """Revoke the largest claims until all fit; stop at a protected job and return its claim.

        `before` collects the former counts of other jobs that were changed.
        """
        while self._used > self._capacity:
            largest = self._largest_granted()
            assert largest is not None, "the minima fit"
            job = self._jobs[-largest[2]]
            if job.id != newcomer.id:
                if job.id in self._running and job.weight > standing:
                    return (-largest[0], -largest[1], -largest[2])
                before.setdefault(job.id, self.counts[job.id])
            self._change(job.id, -1)
        return None

    def _spread(self) -> None:
        """Grant the smallest claims while accelerators are left."""
        while self._used < self._capacity and self._wanted:
            *_, job_id, count = self._wanted[0]
            if self.counts.get(job_id) == count:
                self._change(job_id, 1)
            else:
                heapq.heappop(self._wanted)

    def _undo(self, newcomer: Job, before: dict[JobId, int], used: int) -> None:
        del self._jobs[newcomer.id]
        del self.counts[newcomer.id]
        for job_id, count in before.items():
            self.counts[job_id] = count
            self._note(job_id)
        self._used = used

    def _largest_granted(self) -> tuple[float, float, JobId, int] | None:
        while self._granted:
            *_, minus_id, count = self._granted[0]
            if self.counts.get(-minus_id) == count:
                return self._granted[0]
            heapq.heappop(self._granted)
        return None

    def _change(self, job_id: JobId, by: int) -> None:
        self.counts[job_id] += by
        self._used += by
        self._note(job_id)

    def _note(self, job_id: JobId) -> None:
        job, count = self._jobs[job_id], self.counts[job_id]
        if count > job.min_accelerators:
            value, at, _ = _claim(job, count)
            heapq.heappush(self._granted, (-value, -at, -job_id, count))
        if count < job.max_accelerators:
            heapq.heappush(self._wanted, (*_claim(job, count + 1), count))

    @staticmethod
    def _count_below(job: Job, claim: Claim) -> int:
        """Return a job's count when its claims up to `claim` are granted."""
        low, high = job.min_accelerators, job.max_accelerators
        count = min(max(int(claim[0] * job.weight * job.user_factor), low), high)
        while count > low and _claim(job, count) > claim:
            count -= 1
        while count < high and _claim(job, count + 1) <= claim:
            count += 1
        return count


class TrialFill:
    """Any fill of some jobs, recomputed for every job that asks to enter."""

    def __init__(self, jobs: Iterable[Job], capacity: int, running: Set[JobId], fill: Fill) -> None:
        self._jobs = {job.id: job for job in jobs}
        self._running = running
        self._capacity = capacity
        self._fill = fill
        self.counts = fill(self._jobs.values(), capacity)

    def exchange(self, newcomer: Job, dropped: Sequence[Job], standing: float) -> bool:
        """Admit a job in place of others as `FairFill.exchange` does; return whether it was."""
        gone = {job.id for job in dropped}
        jobs = {job_id: job for job_id, job in self._jobs.items() if job_id not in gone}
        jobs[newcomer.id] = newcomer
        tried = self._fill(jobs.values(), self._capacity)
        for job_id, count in self.counts.items():
            is_protected = job_id in self._running and self._jobs[job_id].weight > standing
            if is_protected and tried.get(job_id, 0) < count:
                return False
        self._jobs, self.counts = jobs, tried
        return True
