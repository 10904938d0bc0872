"""Answer to "what is priority then?": the meaning of priorities to a policy, in numbers of now."""

from __future__ import annotations

from controlplane.core.policies import PRIORITY_USES, SHARING, PriorityUse
from jobs.selectors.pages import PriorityRange


def priority_text(policy: str, others: PriorityRange, own: int | None = None) -> str:
    """Return sentences about the priorities of the active jobs.

    Args:
        others: of all active jobs; with `own`, of all others.
        own: priority of the job in question.
    """
    use = PRIORITY_USES[policy]
    if use is PriorityUse.NONE:
        return f"The policy {policy} does not look at priorities."
    if use is PriorityUse.ORDER:
        return (
            f"Under the policy {policy} jobs of higher priority start first. Jobs that run are "
            "not stopped for them."
        )
    text = f"Under the policy {policy} priority is a weight, not an order."
    if policy in SHARING:
        text += (
            " Shares go to users first: a user's claim is that of the most important job, and the "
            "user's jobs divide it by priority."
        )
    if own is None:
        return f"{text} {_range_text(others)}".strip()
    return f"{text} {_own_text(own, others)}".strip()


def _range_text(found: PriorityRange) -> str:
    if found.num_jobs < 2:
        return ""
    if found.lowest == found.highest:
        return f"All {found.num_jobs} active jobs have {found.lowest} and weigh the same."
    return (
        f"At the moment {found.highest} weighs {_times(found.highest, found.lowest)} as much as "
        f"{found.lowest}, the lowest of {found.num_jobs} active jobs."
    )


def _own_text(own: int, others: PriorityRange) -> str:
    if not others.num_jobs:
        return "No other job is active."
    lowest, highest = _times(own, others.lowest), _times(own, others.highest)
    if others.lowest == others.highest:
        return f"This job's {own} weighs {lowest} as much as the {others.lowest} of the others."
    return (
        f"This job's {own} weighs {lowest} as much as the lowest ({others.lowest}) and {highest} "
        f"as much as the highest ({others.highest}) of the {others.num_jobs} other active jobs."
    )


def _times(one: int, other: int) -> str:
    return f"{one / other:.3g} times"
