"""Answer to "what is priority then?": the meaning of tiers and priorities, in numbers of now."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.core.policies import PRIORITY_USES, SHARING, PriorityUse
from controlplane.core.values.tiers import Tier
from jobs.selectors.queue import PriorityRange

Ranges = Mapping[Tier, PriorityRange]


def priority_text(policy: str, others: Ranges, own: tuple[Tier, int] | None = None) -> str:
    """Return sentences about tiers and priorities of the live jobs.

    Args:
        others: by tier, of all live jobs; with `own`, of all others.
        own: tier and priority of the job in question.
    """
    parts = [_tiers_text(others, own and own[0]), _use_text(policy)]
    if PRIORITY_USES[policy] is PriorityUse.WEIGHT:
        if own is None:
            parts += [_range_text(tier, found) for tier, found in others.items()]
        else:
            parts.append(_own_text(*own, others.get(own[0])))
    return " ".join(part for part in parts if part)


def _tiers_text(others: Ranges, own: Tier | None) -> str:
    counts = {tier: found.num_jobs for tier, found in others.items()}
    if own is None:
        text = "Urgent jobs come before normal ones, normal ones before idle ones, at any priority."
        if len(counts) < 2:
            return text
        now = ", ".join(f"{count} {tier}" for tier, count in counts.items())
        return f"{text} Active now: {now}."
    before = sum(count for tier, count in counts.items() if tier.rank < own.rank)
    after = sum(count for tier, count in counts.items() if tier.rank > own.rank)
    parts = []
    if before:
        parts.append(f"{before} of higher tiers {'come' if before > 1 else 'comes'} before it")
    if after:
        parts.append(f"{after} of lower tiers {'give' if after > 1 else 'gives'} way to it")
    return f"This job is {own}: {', '.join(parts)}, at any priority." if parts else ""


def _use_text(policy: str) -> str:
    use = PRIORITY_USES[policy]
    if use is PriorityUse.NONE:
        return f"Inside a tier the policy {policy} does not look at priorities."
    if use is PriorityUse.ORDER:
        return (
            f"Inside a tier, under the policy {policy}, jobs of higher priority start first. Jobs "
            "that run are not stopped for them."
        )
    text = f"Under the policy {policy} priority is a weight inside the tier, not an order."
    if policy in SHARING:
        text += (
            " Shares go to users first: a user's claim is that of the most important job, and the "
            "user's jobs divide it by priority."
        )
    return text


def _range_text(tier: Tier, found: PriorityRange) -> str:
    if found.num_jobs < 2:
        return ""
    if found.lowest == found.highest:
        return f"All {found.num_jobs} {tier} jobs have {found.lowest} and weigh the same."
    return (
        f"At the moment {found.highest} weighs {_as_much(found.highest, found.lowest)} as "
        f"{found.lowest}, the lowest of {found.num_jobs} {tier} jobs."
    )


def _own_text(tier: Tier, own: int, others: PriorityRange | None) -> str:
    if others is None:
        return f"No other {tier} job is active."
    lowest, highest = _as_much(own, others.lowest), _as_much(own, others.highest)
    if others.lowest == others.highest:
        number = others.num_jobs
        whose = f"{number} other {tier} jobs" if number > 1 else f"other {tier} job"
        return f"This job's {own} weighs {lowest} as the {others.lowest} of the {whose}."
    return (
        f"This job's {own} weighs {lowest} as the lowest ({others.lowest}) and {highest} as the "
        f"highest ({others.highest}) of the {others.num_jobs} other {tier} jobs."
    )


def _as_much(one: int, other: int) -> str:
    if one < other:
        return f"{100 * one / other:.3g} % as much"
    times = f"{one / other:.3g}"
    return "as much" if times == "1" else f"{times} times as much"
