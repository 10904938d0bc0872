"""Records that a simulation collects as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Records:
    """All inputs of a report besides the jobs themselves.

    Attributes:
        held: (time, job id, accelerators held from then on), in order of time.
        qualities: (time, mean quality of the jobs in the system).
        decision_s: wall-clock seconds of each decision.
    """

    held: list[tuple[float, int, int]] = field(default_factory=list)
    qualities: list[tuple[float, float]] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
