"""A job's start from a state that another job has saved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSpec:
    """The saved state of another job from which a job starts.

    Attributes:
        sha256: digest of the checkpoint file. A later checkpoint of the job itself has another
            one, and is resumed as it is.
        step: parameter updates that the state has.
        keeps_order: batch size, seed, shuffling and selection are those of the other job.
        keeps_rate: code and settings are those of the other job.
        keeps_seed: the seed is that of the other job.
    """

    sha256: str
    step: int
    keeps_order: bool
    keeps_rate: bool
    keeps_seed: bool
