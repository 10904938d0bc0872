"""States that a policy carries from decision to decision where groups of jobs are set apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.protocol.codec import decode
from controlplane.core.values.types import JobId, Snapshot

#: Key of the jobs that are not set apart, among the states of groups.
OTHERS = ""


@dataclass(frozen=True, slots=True)
class QuotaStates:
    """State of a policy for each group that is set apart, and for all other jobs."""

    by_group: Mapping[str, Any]

    def of(self, jobs: Collection[JobId]) -> Any:
        """Return the state of jobs that are not apart, with all that is known of `jobs`."""
        states = dict(self.by_group)
        found = states.pop(OTHERS, None)
        for one in states.values():
            found = joined(found, one, jobs) if found is not None else one
        return found


def joined(state: Any, other: Any, jobs: Collection[JobId]) -> Any:
    """Return a state of a policy, with what another one, if it is like it, knows of `jobs`."""
    other = _flat(other, jobs)
    if state is None or other is None:
        return state
    if isinstance(state, QuotaStates):
        main = state.by_group.get(OTHERS)
        main = other if main is None else joined(main, other, jobs)
        return QuotaStates({**state.by_group, OTHERS: main})
    if type(state) is not type(other):
        return state
    return state.joined(other, jobs)


def quota_state_decode(state: type, stored: Any) -> object:
    """Decode the state of a policy, for all jobs or by group.

    Raises:
        ValueError: it is not such a state.
    """
    if not (isinstance(stored, Mapping) and isinstance(stored.get("by_group"), Mapping)):
        decoded: object = decode(state, stored)
        return decoded
    rows = stored["by_group"].items()
    return QuotaStates({str(key): quota_state_decode(state, one) for key, one in rows})


def main_state(snapshot: Snapshot) -> Any:
    """Return the carried state of a policy as one for all jobs."""
    return _flat(snapshot.carried, frozenset(job.id for job in snapshot.jobs))


def _flat(state: Any, jobs: Collection[JobId]) -> Any:
    while isinstance(state, QuotaStates):
        state = state.of(jobs)
    return state
