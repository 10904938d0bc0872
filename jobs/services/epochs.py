"""Epochs whose reports are missing: the leader that made them may be lost, and they with it."""

from __future__ import annotations

import dataclasses

from controlplane.core.wire import Membership
from jobs.models import Job


def membership_ask_epochs(job: Job, membership: Membership) -> Membership:
    """Ask the leader for the epochs from the first one on that was not reported.

    Not where the leader stays: its reports are on their way. Everybody else knows all epochs as
    well, so nothing is lost with a leader, however long nobody could hear it.
    """
    if not membership.members or membership.source_slot == membership.leader_slot:
        return membership
    return dataclasses.replace(membership, epochs_known=first_missing_epoch(job))


def first_missing_epoch(job: Job) -> int:
    """Give the number of the first epoch without a report; gaps are looked for from the start."""
    told = set(job.epoch_reports.values_list("epoch", flat=True))
    return next(number for number in range(len(told) + 1) if number not in told)
