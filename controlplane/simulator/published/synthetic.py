"""A generated workload with profiles, for use without measured ones. All numbers are made up.

Five applications, from seconds to hours of work, are written in the format of Pollux' profiles and
read back like any others. Their steps follow the throughput model with a scatter of some percent;
their gradient noise grows while they train. Jobs are drawn by the published recipe (`recipe`).
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

from controlplane.simulator.applications.profiled import ProfiledApplication
from controlplane.simulator.published.recipe import workload_draw
from controlplane.simulator.workloads.profiles import profiles_read
from controlplane.simulator.workloads.workloads import Workload


@dataclass(frozen=True, slots=True)
class _Kind:
    """One made-up application.

    Attributes:
        locals: examples on one accelerator at once, from, to.
        batches: initial and largest batch.
        epoch_steps: steps of an epoch at the initial batch.
        base_s, example_s: seconds of a slice, fixed and for each example.
        local_s, network_s: seconds of the exchange on one machine and between machines.
        noise: gradient noise scale at the beginning and at the end, over the initial batch.
    """

    name: str
    locals: tuple[int, int]
    batches: tuple[int, int]
    epochs: int
    epoch_steps: int
    base_s: float
    example_s: float
    local_s: float
    network_s: float
    noise: tuple[float, float]


_KINDS = (
    _Kind("tabular", (64, 4096), (256, 16384), 12, 700, 0.004, 4e-6, 0.003, 0.012, (2, 9)),
    _Kind("pictures", (16, 512), (64, 4096), 60, 500, 0.018, 5e-4, 0.012, 0.06, (1, 24)),
    _Kind("speech", (8, 64), (16, 512), 50, 350, 0.11, 0.012, 0.08, 0.21, (2, 16)),
    _Kind("language", (4, 32), (32, 1024), 6, 2400, 0.09, 0.02, 0.16, 0.42, (6, 30)),
    _Kind("panorama", (16, 192), (192, 6144), 45, 2600, 0.07, 0.0021, 0.09, 0.19, (2, 26)),
)  # fmt: skip

#: Category of jobs -> applications.
MODELS = {
    "small": ("tabular", "pictures"),
    "medium": ("speech",),
    "large": ("language",),
    "xlarge": ("panorama",),
}

#: Numbers of machines of the measurements in `scalability.csv`.
_SPREAD_NODES = (6, 8, 12, 16)


def synthetic_workload(
    num_jobs: int = 120, hours: float = 6.0, seed: int = 0, *, most: int = 32
) -> Workload:
    """Draw a workload of made-up applications; same arguments, same workload.

    Args:
        most: largest number of accelerators that an owner asks for.

    Raises:
        ValueError: a number is not positive.
    """
    applications = synthetic_applications()
    return workload_draw(applications, num_jobs, hours, seed, models=MODELS, most=most)


def synthetic_applications() -> dict[str, ProfiledApplication]:
    with tempfile.TemporaryDirectory() as folder:
        synthetic_write(Path(folder))
        return profiles_read(Path(folder))


def synthetic_write(folder: Path) -> None:
    """Write one folder of measurements for each application."""
    random = np.random.default_rng(0)
    for kind in _KINDS:
        _profile_write(folder / kind.name, kind, random)


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


def _doubled(low: int, high: int) -> list[int]:
    return [low * 2**i for i in range(int(math.log2(high / low)) + 1)] + (
        [] if math.log2(high / low).is_integer() else [high]
    )


def _rows_write(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
