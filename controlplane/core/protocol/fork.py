"""Starts of jobs from states that other jobs have saved, and adoptions of such states."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        values: tunables that a trial of the other job uses from there on; empty: it is no trial.
    """

    sha256: str
    step: int
    keeps_order: bool
    keeps_rate: bool
    keeps_seed: bool
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The state of a trial, with which a job goes on between two of its steps.

    Attributes:
        number: of the job's adoptions, ascending from 1; each is made once.
        sha256: digest of the checkpoint file.
    """

    number: int
    sha256: str
