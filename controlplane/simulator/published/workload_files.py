"""Readers of published workload files, and detection of every supported format."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.simulator.applications.applications import Application
from controlplane.simulator.applications.step_times import Floats
from controlplane.simulator.published.scaled import ScaledApplication, scaling
from controlplane.simulator.workloads.reading import (
    csv_delimiter,
    csv_read,
    json_read,
    number_of,
    row_of,
    text_of,
    tier_of,
    whole_of,
)
from controlplane.simulator.workloads.workloads import MOST_ACCELERATORS, Workload, WorkloadJob

#: Applications that Pollux does not adapt: always with the requested batch on one accelerator.
_NEVER_ADAPTED = frozenset({"ncf"})

#: Seconds of cold start in the run times that VirtualFlow measured.
COLD_START_S = 78.0

#: Assumed run time in seconds of jobs of VirtualFlow's traces without a measurement.
UNKNOWN_RUN_S = 900.0


def workload_is(path: Path) -> str:
    """Return the format of a workload file: pollux, virtualflow, philly, gavel or history.

    Raises:
        ValueError: the file has none of these formats, or cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.read(400).lstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--workload: cannot read {path}: {error}") from error
    titles = head.splitlines()[:1]
    delimiter = csv_delimiter("".join(titles))
    columns = next(csv.reader(titles, delimiter=delimiter, skipinitialspace=True), [])
    if {"time", "application"} <= set(columns):
        return "pollux"
    if {"timestamp", "duration", "num_gpus"} <= set(columns):
        return "philly"
    if head.startswith("["):
        return "virtualflow"
    if head.startswith("{"):
        return "gavel" if '"null"' in head else "history"
    raise ValueError(
        f"--workload: {path} is of no format that is known; give a CSV with the columns time, "
        "application (Pollux) or timestamp, duration, num_gpus (Philly), or a JSON list "
        "(VirtualFlow), table of throughputs (Gavel) or history (manage.py export_history)"
    )


def pollux_workload(path: Path, applications: Mapping[str, Application]) -> Workload:
    """Read a workload of Pollux' simulator: name, time, application, num_replicas, batch_size.

    A column `tier` may be added.

    Raises:
        ValueError: the file does not have this format.
    """
    jobs = []
    for line, row in csv_read(path, "--workload"):
        with row_of("--workload", f"line {line} of {path}"):
            jobs.append(
                replace(
                    pollux_job(
                        text_of(row, "name"),
                        number_of(row, "time"),
                        text_of(row, "application"),
                        _accelerators(row, "num_replicas"),
                        whole_of(row, "batch_size"),
                    ),
                    tier=tier_of(row),
                )
            )
    return Workload(tuple(jobs), applications)


def _accelerators(row: Any, name: str) -> int:
    return whole_of(row, name, MOST_ACCELERATORS)


def pollux_job(
    name: str, submitted_at: float, application: str, requested: int, batch_size: int
) -> WorkloadJob:
    """Make a job as Pollux' simulator runs it: NeuMF keeps its batch and one accelerator."""
    is_fixed = application in _NEVER_ADAPTED
    return WorkloadJob(
        name=name,
        submitted_at=submitted_at,
        application=application,
        requested=requested,
        batch_size=batch_size,
        is_fixed=is_fixed,
        max_accelerators=1 if is_fixed else None,
    )


def philly_workload(path: Path, num_jobs: int, speeds: Mapping[str, float]) -> Workload:
    """Read the first jobs of a list like Microsoft's Philly trace, in order of submission.

    A job's work is that of its duration on its accelerators, scaled as ResNet-50 does; the job may
    use up to twice as many.

    Args:
        speeds: kind of accelerator -> relative speed.

    Raises:
        ValueError: the file does not have this format.
    """
    rows: list[tuple[float, float, int]] = []
    for line, row in csv_read(path, "--workload"):
        with row_of("--workload", f"line {line} of {path}"):
            at = datetime.datetime.fromisoformat(text_of(row, "timestamp"))
            at_s = at.replace(tzinfo=datetime.UTC).timestamp()
            rows.append((at_s, number_of(row, "duration"), _accelerators(row, "num_gpus")))
    usable = [row for row in sorted(rows) if row[1] > 0.0 and row[2] > 0]
    chosen = usable[:num_jobs]
    jobs, applications = [], {}
    for index, (at_s, duration_s, count) in enumerate(chosen):
        name, rates = f"philly-{index}", scaling(2 * count)
        applications[name] = ScaledApplication(
            name, duration_s * float(rates[count]), rates, speeds
        )
        jobs.append(
            WorkloadJob(
                name=name,
                submitted_at=at_s - chosen[0][0],
                application=name,
                requested=count,
                batch_size=count,
                is_fixed=True,
                max_accelerators=2 * count,
            )
        )
    num_left_out = len(rows) - len(usable)
    notes = (f"{num_left_out} of {len(rows)} lines are left out: no duration or no accelerators.",)
    return Workload(tuple(jobs), applications, notes if num_left_out else ())


def virtualflow_workload(
    path: Path, speeds: Mapping[str, float], rates_of: Callable[[int], Floats] = scaling
) -> Workload:
    """Read a trace of VirtualFlow: arrival_time, workload, priority, gpu_demand, batch_size.

    A job may have a `tier`. Beside the trace `measured_seconds_at_demand.json` may have, by name of
    the trace, the seconds that each job ran at its demand; otherwise it is 15 minutes a job.

    Args:
        speeds: kind of accelerator -> relative speed.
        rates_of: speeds on 0, 1, 2 ... up to a number of accelerators.

    Raises:
        ValueError: the file does not have this format.
    """
    trace = json_read(path, "--workload")
    seconds = _measured_seconds(path)
    jobs, applications = [], {}
    for index, row in enumerate(trace):
        with row_of("--workload", f"job {index} of {path}"):
            demand, name = _accelerators(row, "gpu_demand"), f"{index}-{text_of(row, 'workload')}"
            if demand < 1:
                raise ValueError(f"'gpu_demand' must be at least 1, not {demand}")
            run_s = seconds.get(str(index), UNKNOWN_RUN_S + COLD_START_S) - COLD_START_S
            rates = rates_of(demand)[: demand + 1]
            applications[name] = ScaledApplication(
                name, run_s * float(rates[demand]), rates, speeds
            )
            jobs.append(
                WorkloadJob(
                    name=name,
                    submitted_at=number_of(row, "arrival_time"),
                    application=name,
                    requested=demand,
                    batch_size=whole_of(row, "batch_size"),
                    is_fixed=True,
                    max_accelerators=demand,
                    weight=number_of(row, "priority"),
                    tier=tier_of(row),
                )
            )
    unknown = sum(str(index) not in seconds for index in range(len(jobs)))
    notes = (f"Nobody measured how long {unknown} of {len(jobs)} jobs run: 15 minutes each.",)
    return Workload(tuple(jobs), applications, notes if unknown else ())


def _measured_seconds(path: Path) -> dict[str, float]:
    file = path.with_name("measured_seconds_at_demand.json")
    if not file.exists():
        return {}
    with row_of("--workload", f"{path.stem} in {file}, the run times of {path}"):
        rows = dict(json_read(file, "--workload")).get(path.stem, {})
        return {str(index): number_of(rows, index) for index in rows}
