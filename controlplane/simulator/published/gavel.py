"""Jobs on accelerators of several kinds, at the speeds that Gavel measured (OSDI 2020).

Its table gives steps per second of a job type by kind of accelerator, number of accelerators (1, 2,
4 or 8), and whether they are on one node or on different ones (kind `K_unconsolidated`). Every
accelerator works on the batch in the name of the type, and steps are those of all together, so
work is counted in such steps for any number of accelerators.

Between measured numbers steps per second are interpolated; no job gets more accelerators than the
largest number measured of its type. A type accepts the kinds on which it runs with every number
that was measured of it. Different nodes count like one where there is no measurement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.core.estimates.goodput import FixedBatchPerformance
from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.simulator.applications.batches import Batch, Pace, WorkerBatch
from controlplane.simulator.applications.steady import SteadyApplication
from controlplane.simulator.applications.step_times import Floats, Placement
from controlplane.simulator.workloads.reading import json_read, number_of, row_of
from controlplane.simulator.workloads.workloads import Workload, WorkloadJob

#: Suffix of a kind's name for accelerators on different nodes.
_APART = "_unconsolidated"

#: Numbers of accelerators that owners request, and their frequencies (as in Gavel's evaluation).
DEMANDS: Mapping[int, float] = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}

#: Run times are 10**x minutes, x uniform in one of two ranges, the first for most jobs (as there).
SHORT_SHARE, SHORT, LONG = 0.8, (1.5, 3.0), (3.0, 4.0)

#: Divisor of these run times: from one minute to five and a half hours, 34 minutes on average.
SHORTENED = 30.0

#: Arrivals per hour that keep 16 nodes of four accelerators of three kinds busy.
JOBS_PER_HOUR = 40.0

#: Requests up to this size are assumed to have run on one node, larger ones on several.
_NODE_SIZE = 4


@dataclass(frozen=True)
class JobType:
    """One measured job type.

    Attributes:
        batch_size: examples of a step on one accelerator; 1 where the name does not state it.
        together, apart: kind -> steps per second on 0, 1, 2 ... accelerators, on one node and on
            several. Shape (most + 1,).
        measured: the measured numbers of accelerators.
    """

    name: str
    batch_size: int
    together: Mapping[str, Floats]
    apart: Mapping[str, Floats]
    measured: tuple[int, ...]

    def rate(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Return steps per second; 0 on a kind that it does not fit on."""
        row = (self.apart if num_nodes > 1 else self.together).get(kind)
        return 0.0 if row is None else float(row[min(num_accelerators, len(row) - 1)])


@dataclass
class MeasuredApplication(SteadyApplication):
    """A number of steps of a measured job type, with a fixed batch."""

    job_type: JobType

    @property
    def examples_per_progress(self) -> float:
        return float(self.job_type.batch_size)

    def rate(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        return self.job_type.rate(kind, num_accelerators, num_nodes)

    def most_accelerators(self, batch_size: int | None) -> int:  # noqa: ARG002
        return self.job_type.measured[-1]

    @property
    def code(self) -> str:
        return self.job_type.name

    def first_batch(self, num_accelerators: int) -> int:  # noqa: ARG002
        return self.job_type.batch_size

    def batch(
        self,
        kind: str,  # noqa: ARG002
        placement: Placement,
        batch_size: int | None,  # noqa: ARG002
        epoch: int,  # noqa: ARG002
    ) -> Batch | None:
        return Batch(sum(placement), self.job_type.batch_size, 1)

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:  # noqa: ARG002
        """Count one step per accelerator at a time; time beyond a single one's is exchange."""
        count = sum(placement)
        rate = self.rate(kind, count, len(placement))
        if rate <= 0.0:
            return Pace(0.0, batch)
        step_s, alone_s = count / rate, 1.0 / self.rate(kind, 1, 1)
        return Pace(rate, batch, step_s, max(step_s - alone_s, 0.0))

    def modelled(
        self,
        models: Mapping[str, ThroughputModel],
        speeds: Mapping[str, float],
        noise: float,  # noqa: ARG002 - its batch is not adapted
        batch_size: int | None,  # noqa: ARG002
    ) -> FixedBatchPerformance:
        split = WorkerBatch(self.job_type.measured[-1])
        return FixedBatchPerformance(models, split, speeds=speeds, size=self.job_type.batch_size)


def gavel_workload(path: Path, num_jobs: int, hours: float, seed: int = 0) -> Workload:
    """Make jobs of the measured types; same arguments, same workload.

    Types are equally likely, arrivals are a Poisson process of `num_jobs` in `hours` on average,
    owners request `DEMANDS`, or the largest number measured of the type below that. Run times are
    those with the requested number, on the fastest kind.

    Raises:
        ValueError: the file is not a table of Gavel's.
    """
    types = list(job_types_read(path).values())
    random = np.random.default_rng(seed)
    moments = np.cumsum(random.exponential(hours * 3600.0 / num_jobs, num_jobs))
    applications, jobs = {}, []
    for number, at_s in enumerate(moments - moments[0]):
        chosen = types[int(random.integers(len(types)))]
        asked = int(random.choice(list(DEMANDS), p=list(DEMANDS.values())))
        count = max(one for one in chosen.measured if one <= asked)
        span = SHORT if random.random() < SHORT_SHARE else LONG
        run_s = 60.0 * 10.0 ** random.uniform(*span) / SHORTENED
        num_nodes = -(-count // _NODE_SIZE)
        fastest = max(chosen.rate(kind, count, num_nodes) for kind in chosen.together)
        name = f"{chosen.name} #{number}"
        applications[name] = MeasuredApplication(name, run_s * fastest, chosen)
        jobs.append(
            WorkloadJob(
                name=name,
                submitted_at=round(float(at_s), 3),
                application=name,
                requested=count,
                batch_size=chosen.batch_size,
                is_fixed=True,
                max_accelerators=chosen.measured[-1],
                accepted_kinds=frozenset(chosen.together),
            )
        )
    return Workload(tuple(jobs), applications)


def job_types_read(path: Path) -> dict[str, JobType]:
    """Read the job types of a table of Gavel's, by name.

    Raises:
        ValueError: the file is not a table of Gavel's; the text names the wrong kind and job.
    """
    table = json_read(path, "--workload")
    rates: dict[str, dict[str, dict[int, float]]] = {}  # type -> kind -> accelerators -> steps/s
    if not isinstance(table, dict) or not all(isinstance(rows, dict) for rows in table.values()):
        raise ValueError(f"--workload: {path} must hold an object of jobs for each kind")
    for kind, rows in table.items():
        for key, row in rows.items():
            name, count, rate = _entry_read(path, kind, key, row)
            rates.setdefault(name, {}).setdefault(kind, {})[count] = rate
    found = {name: _job_type(name, by_kind) for name, by_kind in sorted(rates.items())}
    types = {name: one for name, one in found.items() if one is not None}
    if not types:
        raise ValueError(f"--workload: no job of {path} runs on any kind alone on an accelerator")
    return types


def _entry_read(path: Path, kind: str, key: str, row: Any) -> tuple[str, int, float]:
    """Read one entry: job type, accelerators, and steps a second of it alone ("null")."""
    with row_of("--workload", f"job {key!r} of kind {kind!r} in {path}"):
        try:
            name, count = ast.literal_eval(key)
        except (SyntaxError, TypeError, ValueError):
            name, count = None, 0
        rate = number_of(row, "null")
        if not isinstance(name, str) or not isinstance(count, int) or count < 1 or rate < 0.0:
            raise ValueError("give ('NAME', ACCELERATORS), and steps a second as its 'null'")
    return name, count, rate


def _job_type(name: str, by_kind: Mapping[str, Mapping[int, float]]) -> JobType | None:
    """Combine the measurements of a type; None: it runs on no kind on a single accelerator."""
    near = {kind: rows for kind, rows in by_kind.items() if not kind.endswith(_APART)}
    measured = sorted({count for rows in near.values() for count in rows})
    fitting = {
        kind: {count: rows[count] for count in measured}
        for kind, rows in near.items()
        if all(rows.get(count, 0.0) > 0.0 for count in measured)
    }
    if not fitting or measured[0] != 1:
        return None
    apart = {
        kind: {n: by_kind.get(kind + _APART, {}).get(n, 0.0) or rate for n, rate in rows.items()}
        for kind, rows in fitting.items()
    }
    batch = re.search(r"batch size (\d+)", name)
    return JobType(
        name=name,
        batch_size=int(batch[1]) if batch else 1,
        together={kind: _interpolated(rows) for kind, rows in sorted(fitting.items())},
        apart={kind: _interpolated(rows) for kind, rows in sorted(apart.items())},
        measured=tuple(measured),
    )


def _interpolated(rows: Mapping[int, float]) -> Floats:
    counts = sorted(rows)
    return np.interp(
        np.arange(counts[-1] + 1), [0, *counts], [0.0, *(rows[count] for count in counts)]
    )
