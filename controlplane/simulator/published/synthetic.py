"""A generated workload with profiles, for use without measured ones. All numbers are made up.

Five applications, from seconds to hours of work, are written in the format of Pollux' profiles and
read back like any others. Their steps follow the throughput model with a scatter of some percent;
their gradient noise grows while they train. Jobs arrive at random, more densely in the middle of
the time than at its ends, most of them small; owners request sensible, not optimal, numbers of
accelerators and batches.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from controlplane.simulator.published.workload_files import pollux_workload
from controlplane.simulator.workloads.profiles import profiles_read
from controlplane.simulator.workloads.workloads import Workload


@dataclass(frozen=True, slots=True)
class _Kind:
    """One made-up application.

    Attributes:
        share: share of the jobs that run it.
        locals: examples on one accelerator at once, from, to.
        batches: initial and largest batch.
        epoch_steps: steps of an epoch at the initial batch.
        base_s, example_s: seconds of a slice, fixed and for each example.
        local_s, network_s: seconds of the exchange on one machine and between machines.
        noise: gradient noise scale at the beginning and at the end, over the initial batch.
        asks: numbers of accelerators that owners request.
    """

    name: str
    share: float
    locals: tuple[int, int]
    batches: tuple[int, int]
    epochs: int
    epoch_steps: int
    base_s: float
    example_s: float
    local_s: float
    network_s: float
    noise: tuple[float, float]
    asks: tuple[int, ...]


_KINDS = (
    _Kind("tabular", 0.3, (64, 4096), (256, 16384), 12, 700, 0.004, 4e-6, 0.003, 0.012, (2, 9),
          (1, 2)),
    _Kind("pictures", 0.38, (16, 512), (64, 4096), 60, 500, 0.018, 5e-4, 0.012, 0.06, (1, 24),
          (1, 2, 4, 8)),
    _Kind("speech", 0.16, (8, 64), (16, 512), 50, 350, 0.11, 0.012, 0.08, 0.21, (2, 16),
          (2, 4, 8)),
    _Kind("language", 0.12, (4, 32), (32, 1024), 6, 2400, 0.09, 0.02, 0.16, 0.42, (6, 30),
          (4, 8, 16)),
    _Kind("panorama", 0.04, (16, 192), (192, 6144), 45, 2600, 0.07, 0.0021, 0.09, 0.19, (2, 26),
          (8, 16, 32)),
)  # fmt: skip

#: Numbers of machines of the measurements in `scalability.csv`.
_SPREAD_NODES = (6, 8, 12, 16)


def synthetic_workload(num_jobs: int = 120, hours: float = 6.0, seed: int = 0) -> Workload:
    """Make a workload with its applications; same arguments, same workload.

    Raises:
        ValueError: a number is not positive.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synthetic_write(folder, num_jobs, hours, seed)
        return pollux_workload(folder / "workload.csv", profiles_read(folder))


def synthetic_write(folder: Path, num_jobs: int = 120, hours: float = 6.0, seed: int = 0) -> None:
    """Write `workload.csv` and one folder for each application.

    Raises:
        ValueError: a number is not positive.
    """
    if num_jobs < 1 or not hours > 0.0:
        raise ValueError("jobs and hours of a synthetic workload must be positive")
    random = np.random.default_rng(seed)
    for kind in _KINDS:
        _profile_write(folder / kind.name, kind, random)
    _workload_write(folder / "workload.csv", num_jobs, hours, random)


def _profile_write(folder: Path, kind: _Kind, random: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = _doubled(*kind.locals)
    placements = [
        row for nodes in range(1, 5) for row in combinations_with_replacement(range(1, 5), nodes)
    ]
    _rows_write(
        folder / "placements.csv",
        ("placement", "local_bsz", "step_time", "sync_time"),
        (
            ("".join(map(str, row)), local, *_times(kind, len(row), sum(row), local, random))
            for row in placements
            for local in sizes
        ),
    )
    _rows_write(
        folder / "scalability.csv",
        ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"),
        (
            (nodes, nodes * each, local, *_times(kind, nodes, nodes * each, local, random))
            for nodes in _SPREAD_NODES
            for each in range(1, 5)
            for local in sizes
        ),
    )
    for batch in _doubled(*kind.batches):
        _rows_write(
            folder / f"validation-{batch}.csv",
            ("progress", "iteration", "metric", "grad_sqr", "grad_var"),
            _validation(kind, batch),
        )
    (folder / "app.json").write_text(json.dumps({"epochs": kind.epochs}) + "\n")


def _times(
    kind: _Kind, nodes: int, count: int, local: int, random: np.random.Generator
) -> tuple[float, float]:
    """Return the seconds of a step and of its exchange, partly hidden behind computing."""
    grad_s = kind.base_s + kind.example_s * local
    sync_s = 0.0 if count == 1 else (kind.local_s if nodes == 1 else kind.network_s)
    sync_s *= 1.0 + 0.02 * max(count - 2, 0)
    step_s = math.hypot(grad_s, sync_s)
    scatter = float(np.exp(random.normal(0.0, 0.03)))
    return round(step_s * scatter, 6), round((step_s - grad_s) * scatter, 6)


def _validation(kind: _Kind, batch: int) -> Iterable[tuple[float, ...]]:
    first, last = kind.noise
    iterations = 0.0
    for epoch in range(kind.epochs):
        # The noise scale is the noise relative to the gradient, times the initial batch.
        noise = first * (last / first) ** (epoch / max(kind.epochs - 1, 1))
        gain = (noise + 1.0) / (noise * kind.batches[0] / batch + 1.0)
        iterations += kind.epoch_steps / gain
        quality = 1.0 - math.exp(-4.0 * (epoch + 1) / kind.epochs)
        yield (
            float(kind.epoch_steps * (epoch + 1)),
            float(round(iterations, 2)),
            round(quality, 5),
            1.0,
            round(noise, 6),
        )


def _workload_write(path: Path, num_jobs: int, hours: float, random: np.random.Generator) -> None:
    moments = np.sort(random.beta(2.0, 2.0, num_jobs)) * hours * 3600.0
    shares = np.array([kind.share for kind in _KINDS])
    chosen = random.choice(len(_KINDS), num_jobs, p=shares / shares.sum())
    rows = []
    for number, (at_s, index) in enumerate(zip(moments, chosen, strict=True)):
        kind = _KINDS[int(index)]
        count = int(random.choice(kind.asks))
        initial, largest = kind.batches
        batch = min(max(initial, 2 * count * kind.locals[0]), largest)
        rows.append((f"{kind.name}-{number}", round(float(at_s)), kind.name, count, batch))
    _rows_write(path, ("name", "time", "application", "num_replicas", "batch_size"), rows)


def _doubled(low: int, high: int) -> list[int]:
    return [low * 2**i for i in range(int(math.log2(high / low)) + 1)] + (
        [] if math.log2(high / low).is_integer() else [high]
    )


def _rows_write(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
