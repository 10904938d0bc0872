"""Parsers of command-line options; errors name the option and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controlplane.simulator.applications.recorded import RecordedApplication
from controlplane.simulator.published.gavel import (
    JOBS_PER_HOUR,
    MeasuredApplication,
    gavel_workload,
)
from controlplane.simulator.published.synthetic import synthetic_workload
from controlplane.simulator.published.workload_files import (
    philly_workload,
    pollux_workload,
    virtualflow_workload,
    workload_is,
)
from controlplane.simulator.settings import FLAT_30, MEASURED, Failures, ResizeCosts
from controlplane.simulator.workloads.history import history_cluster, history_read, history_workload
from controlplane.simulator.workloads.profiles import profiles_read
from controlplane.simulator.workloads.workloads import Cluster, Workload, cluster_make

#: The word for the workload that is shipped with the project.
SYNTHETIC = "synthetic"


def costs_parse(text: str) -> ResizeCosts:
    """Read --resize-cost: measured, flat:SECONDS, or start,pause,growth[,release] in seconds.

    Raises:
        ValueError: the text has none of these forms.
    """
    if text == "measured":
        return MEASURED
    try:
        if text.startswith("flat:"):
            seconds = float(text.removeprefix("flat:"))
            return FLAT_30 if seconds == FLAT_30.pause_s else ResizeCosts(seconds, seconds, 0.0)
        values = [float(value) for value in text.split(",")]
        if len(values) in (3, 4):
            return ResizeCosts(*values)
    except ValueError as error:
        raise ValueError(f"--resize-cost: {error}") from error
    raise ValueError(
        f"--resize-cost: give measured, flat:30 or start,pause,growth[,release], not {text!r}"
    )


def failures_parse(text: str | None) -> Failures | None:
    """Read --failures: mean hours between two losses of a node, and until its return.

    Raises:
        ValueError: the text is not two positive numbers.
    """
    if text is None:
        return None
    try:
        between_h, back_h = (float(value) for value in text.split(","))
        return Failures(between_h * 3600.0, back_h * 3600.0)
    except ValueError as error:
        raise ValueError(
            f"--failures: give hours between two losses of a node and until it is back, as 48,0.5, "
            f"both positive, not {text!r}"
        ) from error


def cluster_parse(num_nodes: int | None, per_node: int | None, kinds: str | None) -> Cluster:
    """Read --nodes, --accelerators and --kinds (v100:8,k80:8: number of nodes of each).

    Missing values are taken from --kinds, or 16 nodes of 4.

    Raises:
        ValueError: the values contradict each other.
    """
    by_kind: dict[str, int] = {}
    for part in (kinds or "").split(","):
        if not part:
            continue
        name, _, number = part.partition(":")
        if not name or not number.isdigit() or name in by_kind:
            raise ValueError(
                f"--kinds: give kinds with numbers of nodes, as v100:8,k80:8, not {kinds!r}"
            )
        by_kind[name] = int(number)
    if num_nodes is None:
        num_nodes = sum(by_kind.values()) if by_kind else 16
    try:
        return cluster_make(num_nodes, 4 if per_node is None else per_node, by_kind)
    except ValueError as error:
        raise ValueError(f"--nodes, --accelerators, --kinds: {error}") from error


def workload_load(
    name: str,
    profiles: Path | None,
    speeds: Mapping[str, Mapping[str, float]],
    *,
    num_jobs: int,
    seed: int,
) -> Workload:
    """Read --workload in any supported form.

    Args:
        speeds: application -> kind -> relative speed.
        num_jobs: largest number of jobs of a Philly list, exact number of a generated workload.

    Raises:
        ValueError: naming the option and the fix.
    """
    if num_jobs < 1:
        raise ValueError(f"--jobs: give a positive number, not {num_jobs}")
    if name == SYNTHETIC:
        return synthetic_workload(num_jobs, hours=num_jobs / 20.0, seed=seed)
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"--workload: there is no file {path}; name one, or {SYNTHETIC!r} for the workload "
            "that is made up by this program"
        )
    match workload_is(path):
        case "pollux":
            if profiles is None:
                raise ValueError(
                    f"--profiles: {path} names applications; say in which folder their profiles are"
                )
            return pollux_workload(path, profiles_read(profiles, speeds))
        case "philly":
            return philly_workload(path, num_jobs, speeds.get("imagenet", {}))
        case "gavel":
            return gavel_workload(path, num_jobs, hours=num_jobs / JOBS_PER_HOUR, seed=seed)
        case "virtualflow":
            return virtualflow_workload(path, None, speeds.get("imagenet", {}))
        case _:
            return history_workload(history_read(path))


def recorded_cluster(name: str) -> Cluster | None:
    """Return the cluster that a history was recorded on, if --workload is one."""
    path = Path(name)
    if name == SYNTHETIC or not path.is_file() or workload_is(path) != "history":
        return None
    return history_cluster(history_read(path))


def kinds_are_alike(workload: Workload, speeds: Mapping[str, Mapping[str, float]]) -> bool:
    """Return whether all kinds count as equally fast for lack of information."""
    knowing = (MeasuredApplication, RecordedApplication)
    return not speeds and not any(isinstance(a, knowing) for a in workload.applications.values())
