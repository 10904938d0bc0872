"""What a simulation writes down on its way."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Records:
    """Everything that a report is made from besides the jobs themselves.

    Attributes:
        held: (time, job id, accelerators from then on), in order of time.
        qualities: (time, mean quality of the jobs in the system).
        decision_s: seconds of this machine that each decision took.
    """

    held: list[tuple[float, int, int]] = field(default_factory=list)
    qualities: list[tuple[float, float]] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
