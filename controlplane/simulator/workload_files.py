"""Reads workloads from the files of others and from our own."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from controlplane.simulator.applications import Application
from controlplane.simulator.workloads import Workload, WorkloadJob

#: Pollux does not adapt this one: it always runs with the batch asked for, on one accelerator.
_NEVER_ADAPTED = frozenset({"ncf"})


def pollux_workload(path: Path, applications: Mapping[str, Application]) -> Workload:
    """Read a workload of Pollux' simulator: name, time, application, num_replicas, batch_size.

    Raises:
        ValueError: the file cannot be read as one.
    """
    jobs = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                is_fixed = row["application"] in _NEVER_ADAPTED
                jobs.append(
                    WorkloadJob(
                        name=row["name"],
                        submitted_at=float(row["time"]),
                        application=row["application"],
                        requested=int(row["num_replicas"]),
                        batch_size=int(row["batch_size"]),
                        is_fixed=is_fixed,
                        max_accelerators=1 if is_fixed else None,
                    )
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"workload: line {number} of {path}: {error!r}") from error
    return Workload(tuple(jobs), applications)
