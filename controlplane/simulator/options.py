"""Parsers of command-line options; errors name the option and the fix."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.simulator.applications.profiled import ProfiledApplication
from controlplane.simulator.cluster_files import ClusterFile, cluster_read
from controlplane.simulator.published.gavel import JOBS_PER_HOUR, gavel_workload
from controlplane.simulator.published.scaled import ScaledApplication
from controlplane.simulator.published.synthetic import synthetic_workload
from controlplane.simulator.published.workload_files import (
    philly_workload,
    pollux_workload,
    virtualflow_workload,
    workload_is,
)
from controlplane.simulator.settings import MEASURED, MOST_COST_S, Failures, ResizeCosts
from controlplane.simulator.workloads.history import history_cluster, history_read, history_workload
from controlplane.simulator.workloads.profiles import profiles_read
from controlplane.simulator.workloads.reading import MOST_COUNT
from controlplane.simulator.workloads.workloads import Cluster, Workload, cluster_make

#: Least seconds between decisions.
LEAST_ROUND_S = 1.0

#: Application with the speeds of jobs that scale as ResNet-50 does (Philly's, VirtualFlow's).
SCALED = "imagenet"

#: Largest number of jobs.
MOST_JOBS = 1_000_000

#: The word for the workload that is shipped with the project.
SYNTHETIC = "synthetic"


def costs_parse(text: str) -> ResizeCosts:
    """Read --resize-cost: measured, flat:SECONDS, or start,pause,growth[,release] in seconds.

    Raises:
        ValueError: the text has none of these forms, or a cost is negative or above a day.
    """
    if text == "measured":
        return MEASURED
    flat = text.startswith("flat:")
    costs = _numbers(text.removeprefix("flat:"))
    if len(costs) in ((1,) if flat else (3, 4)) and 0.0 <= min(costs) <= max(costs) <= MOST_COST_S:
        return ResizeCosts.flat(costs[0]) if flat else ResizeCosts(*costs)
    raise ValueError(
        "--resize-cost: give measured, flat:30 or start,pause,growth[,release], each from 0 to "
        f"{MOST_COST_S:g} seconds, not {text!r}"
    )


def failures_parse(text: str | None) -> Failures | None:
    """Read --failures: mean hours between two losses of a node, and until its return.

    Raises:
        ValueError: the text is not two positive, finite numbers.
    """
    if text is None:
        return None
    hours = _numbers(text)
    if len(hours) == 2 and 0.0 < min(hours) <= max(hours) < math.inf:
        return Failures(hours[0] * 3600.0, hours[1] * 3600.0)
    raise ValueError(
        f"--failures: give hours between two losses of a node and until it is back, as 48,0.5, "
        f"both positive and finite, not {text!r}"
    )


def _numbers(text: str) -> list[float]:
    """Return numbers with commas between; none where one is no number."""
    try:
        found = [float(value) for value in text.split(",")]
    except ValueError:
        return []
    return [] if any(math.isnan(value) for value in found) else found


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
        if not re.fullmatch("[0-9]{1,9}", number) or name in by_kind:
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


def tiers_parse(text: str | None) -> dict[Tier, float]:
    """Read --tiers, as urgent:0.1,idle:0.3: the share of jobs of each tier; the rest is normal.

    Raises:
        ValueError: a tier is unknown, or the shares are not positive or exceed 1 together.
    """
    shares: dict[Tier, float] = {}
    for part in (text or "").split(",") if text else []:
        name, _, number = part.partition(":")
        share = _numbers(number)
        if name not in list(Tier) or name in shares or len(share) != 1 or not 0.0 < share[0] <= 1.0:
            raise ValueError(
                f"--tiers: give shares of {', '.join(Tier)}, as urgent:0.1,idle:0.3, not {text!r}"
            )
        shares[Tier(name)] = share[0]
    if sum(shares.values()) > 1.0 + 1e-9:
        raise ValueError(f"--tiers: the shares are more than 1 together, not {text!r}")
    return shares


def tiers_draw(workload: Workload, shares: Mapping[Tier, float], seed: int) -> Workload:
    """Give jobs tiers at random, as many of each as its share of the jobs; none: as they are."""
    if not shares:
        return workload
    tiers = [*shares, Tier.NORMAL]
    drawn = _groups_drawn(len(workload.jobs), list(shares.values()), np.random.default_rng(seed))
    jobs = (replace(job, tier=tiers[one]) for job, one in zip(workload.jobs, drawn, strict=True))
    return replace(workload, jobs=tuple(jobs))


def _groups_drawn(
    num_jobs: int, shares: Sequence[float], generator: np.random.Generator
) -> list[int]:
    """Draw the group of each job; those beyond all shares are in the last, `len(shares)`."""
    ends = np.cumsum([num_jobs * share for share in shares]).round()
    groups = np.searchsorted(ends, np.arange(num_jobs), "right")
    drawn = np.empty(num_jobs, int)
    drawn[generator.permutation(num_jobs)] = groups
    return [int(group) for group in drawn]


def projects_parse(text: str | None, kinds: Mapping[str, int]) -> list[tuple[float, ProjectQuota]]:
    """Read --projects, as 0.5:8-16,0.3:4:a100=2-3: share of the jobs and quota of each project.

    Args:
        kinds: accelerators of the cluster, by kind.

    Raises:
        ValueError: a project is not written so, a limit is below its guarantee, a kind is unknown,
            more is guaranteed than there is, or the shares exceed 1 together.
    """
    try:
        found = [_project_parse(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ValueError(
            "--projects: give each project's share of the jobs, its guarantee and, behind a dash, "
            "a limit that is not less; then the same of kinds, which are not more together: "
            f"0.5:8-16,0.3:4:a100=2-3, not {text!r}"
        ) from None
    if sum(share for share, _ in found) > 1.0 + 1e-9:
        raise ValueError(f"--projects: the shares are more than 1 together, not {text!r}")
    guaranteed: Counter[str] = Counter()
    for _, quota in found:
        guaranteed.update(quota.guaranteed_by_kind)
    for kind, number in guaranteed.items():
        if kind not in kinds:
            raise ValueError(
                f"--projects: {kind}: no node has this kind; give one of {', '.join(kinds)}"
            )
        if number > kinds[kind]:
            raise ValueError(
                f"--projects: {kind}: the cluster has {kinds[kind]}, {number} are guaranteed; "
                "guarantee less of it, or simulate more nodes"
            )
    total = sum(max(quota.guaranteed, sum(quota.guaranteed_by_kind.values())) for _, quota in found)
    if total > sum(kinds.values()):
        raise ValueError(
            f"--projects: the cluster has {sum(kinds.values())}, {total} are guaranteed; guarantee "
            "less, or simulate more nodes"
        )
    return found


def _project_parse(text: str) -> tuple[float, ProjectQuota]:
    """Read share and quota of a project.

    Raises:
        ValueError: it is not written so, or a limit is below what is guaranteed.
    """
    share_text, total, *of_kinds = text.split(":")
    [share] = _numbers(share_text)
    guaranteed, limit = _counts_parse(total)
    own: dict[str, int] = {}
    limits: dict[str, int] = {}
    for kind, _, counts in (one.partition("=") for one in of_kinds):
        if kind in own:
            raise ValueError(text)
        own[kind], most = _counts_parse(counts)
        if most is not None:
            limits[kind] = most
    if (limit is not None and sum(own.values()) > limit) or not 0.0 < share <= 1.0:
        raise ValueError(text)
    return share, ProjectQuota(guaranteed, limit, guaranteed_by_kind=own, limit_by_kind=limits)


def _counts_parse(text: str) -> tuple[int, int | None]:
    """Read a guarantee and, behind a dash, a limit that is not less.

    Raises:
        ValueError: they are not written so.
    """
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(text)
    return int(match[1]), int(match[2]) if match[2] else None


def projects_draw(
    workload: Workload, projects: Sequence[tuple[float, ProjectQuota]], seed: int
) -> Workload:
    """Put jobs into projects, numbered from 1, at random; none: as they are."""
    if not projects:
        return workload
    # Independent of the tiers that are drawn from the same seed.
    generator = np.random.default_rng([seed, len(projects)])
    drawn = _groups_drawn(len(workload.jobs), [share for share, _ in projects], generator)
    numbers = [*range(1, len(projects) + 1), None]
    jobs = (replace(job, project=numbers[i]) for job, i in zip(workload.jobs, drawn, strict=True))
    quotas = {number: quota for number, (_, quota) in enumerate(projects, start=1)}
    return replace(workload, jobs=tuple(jobs), projects=quotas)


def round_parse(seconds: float) -> float:
    """Check --round.

    Raises:
        ValueError: it is below a second or not finite.
    """
    if not LEAST_ROUND_S <= seconds < math.inf:
        raise ValueError(f"--round: give at least {LEAST_ROUND_S:g} second, not {seconds:g}")
    return seconds


def cluster_load(
    path: Path | None, num_nodes: int | None, per_node: int | None, kinds: str | None, workload: str
) -> ClusterFile:
    """Read --cluster, or --nodes, --accelerators and --kinds; without all, a history's cluster.

    Raises:
        ValueError: naming the option and the fix.
    """
    if path is not None:
        if (num_nodes, per_node, kinds) != (None, None, None):
            raise ValueError(
                "--cluster: the file says all of the nodes; leave out --nodes, --accelerators and "
                "--kinds"
            )
        return cluster_read(path)
    if (num_nodes, per_node, kinds) == (None, None, None):
        recorded = Path(workload)
        if workload != SYNTHETIC and recorded.is_file() and workload_is(recorded) == "history":
            return ClusterFile(history_cluster(history_read(recorded)))
    return ClusterFile(cluster_parse(num_nodes, per_node, kinds))


def workload_load(
    name: str,
    profiles: Path | None,
    file: ClusterFile,
    kind_speeds: Mapping[str, Mapping[str, float]],
    *,
    num_jobs: int,
    seed: int,
) -> Workload:
    """Read --workload in any supported form, with notes on speeds that are missing or not used.

    Args:
        kind_speeds: application -> kind -> relative speed, for kinds that `file` says nothing of.
        num_jobs: largest number of jobs of a Philly list, exact number of a generated workload.

    Raises:
        ValueError: naming the option and the fix.
    """
    if not 1 <= num_jobs <= MOST_JOBS:
        raise ValueError(f"--jobs: give a positive number up to {MOST_JOBS}, not {num_jobs}")
    if not 0 <= seed <= MOST_COUNT:
        raise ValueError(f"--seed: give a number from 0 to {MOST_COUNT}, not {seed}")
    speeds = {
        application: {**kind_speeds.get(application, {}), **file.speeds.get(application, {})}
        for application in {*kind_speeds, *file.speeds}
    }
    path, source = Path(name), name
    if name != SYNTHETIC and not path.is_file():
        raise ValueError(
            f"--workload: there is no file {path}; name one, or {SYNTHETIC!r} for the workload "
            "that is made up by this program"
        )
    form = SYNTHETIC if name == SYNTHETIC else workload_is(path)
    match form:
        case "synthetic":
            most = max(file.cluster.kinds.values())
            found = synthetic_workload(num_jobs, hours=num_jobs / 20.0, seed=seed, most=most)
            for application in found.applications.values():
                assert isinstance(application, ProfiledApplication)
                application.speeds = speeds.get(application.name, {})
            source = f"{SYNTHETIC}, {num_jobs} jobs"
        case "pollux":
            if profiles is None:
                raise ValueError(
                    f"--profiles: {path} names applications; say in which folder their profiles are"
                )
            found = pollux_workload(path, profiles_read(profiles, speeds, file.profiles))
        case "philly":
            found = philly_workload(path, num_jobs, speeds.get(SCALED, {}))
        case "gavel":
            found = gavel_workload(path, num_jobs, hours=num_jobs / JOBS_PER_HOUR, seed=seed)
        case "virtualflow":
            found = virtualflow_workload(path, speeds.get(SCALED, {}))
        case _:
            found = history_workload(history_read(path))
    notes = [*found.notes, *speed_notes(found, file, speeds)]
    if profiles is not None and form != "pollux":
        notes.append("--profiles is not used: the jobs of this workload bring speeds of their own.")
    return replace(found, notes=tuple(notes), source=source)


def speed_notes(
    workload: Workload, file: ClusterFile, speeds: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Say on which kinds speeds are missing, and which given ones are not used."""
    used = [workload.applications[name] for name in {job.application for job in workload.jobs}]
    relative = [one for one in used if isinstance(one, ProfiledApplication | ScaledApplication)]
    notes = []
    if (speeds or file.profiles) and not relative:
        notes.append(
            "Speeds and profiles of --cluster and --kind-speeds are not used: the jobs of this "
            "workload bring speeds of their own."
        )
    elif file.speeds or file.profiles:
        names = {one.name if isinstance(one, ProfiledApplication) else SCALED for one in relative}
        unused = sorted(set(file.speeds) - names)
        if unused:
            notes.append(
                f"Speeds of {', '.join(unused)} in --cluster are not used: no job runs these."
            )
        measured = {kind for one in relative for kind in _kinds_measured(one)}
        notes += [
            f"Profiles of {kind} in --cluster are not used: this workload takes none."
            for kind in sorted(set(file.profiles) - measured)
        ]
    if len(file.cluster.kinds) > 1:
        for kind in file.cluster.kinds:
            known = ((one.name, {*one.speeds, *_kinds_measured(one)}) for one in relative)
            lacking = sorted(name for name, kinds in known if kind not in kinds)
            if lacking:
                named = ", ".join(lacking[:6]) + (", ..." if len(lacking) > 6 else "")
                notes.append(
                    f"No speeds on {kind} are given of {named}: as fast there as where they were "
                    "measured."
                )
    return notes


def _kinds_measured(application: ProfiledApplication | ScaledApplication) -> set[str]:
    return set(application.times_by_kind if isinstance(application, ProfiledApplication) else ())
