"""Runs a workload through a policy: the entry of the simulator."""

from __future__ import annotations

import math
from typing import Any

from controlplane.core.policies import DEMANDS, POLICIES, BatchMode, Demand
from controlplane.simulator.engine.event_clock import EventRun, Watch
from controlplane.simulator.engine.fairness import alone_s
from controlplane.simulator.engine.jobs import SimulatedJob, Terms
from controlplane.simulator.engine.pollux_clock import RoundRun
from controlplane.simulator.engine.report import Report, report_make
from controlplane.simulator.engine.run import Progress
from controlplane.simulator.settings import (
    FLAT_30,
    MEASURED,
    Failures,
    Knowledge,
    ResizeCosts,
    Rules,
)
from controlplane.simulator.version import code_version
from controlplane.simulator.workloads.workloads import LATEST_S, Cluster, Workload


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: str,
    *,
    costs: ResizeCosts = MEASURED,
    rules: Rules | str = Rules.OWN,
    seed: int = 0,
    round_s: float = 60.0,
    knowledge: Knowledge | str = Knowledge.FITTED,
    batch: BatchMode | str | None = None,
    failures: Failures | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Report:
    """Run `workload` on `cluster` under `policy`, and report the outcome of every job.

    Same arguments, same report, decision times apart.

    Args:
        costs: costs of resizes; the rules of Pollux have their own.
        round_s: interval of decisions in addition to those at arrivals and ends.
        knowledge: source of job speeds for the policy.
        batch: chooser of batch sizes; None: as the policy was designed (`policies.DEMANDS`).
        failures: failure model of nodes; None: no failures. Not with the rules of Pollux.
        progress: called with jobs ended, jobs in all and the simulated time after every end and
            every other second; may raise to stop the simulation.
        watch: called with the snapshot and the plan of every decision; by the product's rules only.

    Raises:
        ValueError: there is no such policy or no job, a job could never run on the cluster, or the
            rules do not support failures or tuned jobs.
        StuckError: jobs would never end.
    """
    rules = Rules(rules)
    _arguments_check(workload, policy, rules, failures)
    demand = DEMANDS[policy]
    if batch is not None:
        demand = Demand(BatchMode(batch), demand.is_rigid and batch == BatchMode.SUBMITTED)
    terms = Terms(
        accelerators={one.id: one for one in cluster.accelerators},
        per_node=cluster.per_node,
        demand=demand,
        knowledge=Knowledge(knowledge),
        costs=FLAT_30 if rules is Rules.POLLUX else costs,
        rules=rules,
        failures=failures,
    )
    run: EventRun | RoundRun
    if rules is Rules.POLLUX:
        run = RoundRun(workload, cluster, policy, terms, seed=seed, progress=progress)
    else:
        run = EventRun(
            workload,
            cluster,
            policy,
            terms,
            seed=seed,
            round_s=round_s,
            progress=progress,
            watch=watch,
        )
    for job in run.jobs:
        _fits_check(job, cluster, workload)
    run.run()
    settings = _settings(workload, cluster, terms, seed, round_s)
    trials = run.trials.jobs if isinstance(run, EventRun) else []
    return report_make(policy, settings, run.jobs, cluster, run.records, trials)


def _arguments_check(
    workload: Workload, policy: str, rules: Rules, failures: Failures | None
) -> None:
    """Refuse what no simulation can be made of."""
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if not workload.jobs:
        raise ValueError("--workload: there is no job in it, so there is nothing to simulate")
    if failures is not None and rules is Rules.POLLUX:
        raise ValueError("--failures: the rules of Pollux know none; take --rules own")
    if rules is Rules.POLLUX and any(job.tuning for job in workload.jobs):
        raise ValueError("workload: the rules of Pollux know no tuned jobs; simulate by our own")


def _settings(
    workload: Workload, cluster: Cluster, terms: Terms, seed: int, round_s: float
) -> dict[str, Any]:
    """Return the settings that the report names."""
    settings: dict[str, Any] = {
        "workload": workload.source or "of the caller",
        "resize_cost": str(terms.costs),
        "version": code_version(),
        "rules": str(terms.rules),
        "knowledge": str(terms.knowledge),
        "batch": str(terms.demand.batch),
        "seed": seed,
        "round_s": round_s,
        "kinds": cluster.kinds,
    }
    if workload.notes:
        settings["notes"] = " ".join(workload.notes)
    if (failures := terms.failures) is not None:
        settings["failures"] = f"{failures.mtbf_s / 3600:g} h, {failures.mttr_s / 3600:g} h"
    return settings


def _fits_check(job: SimulatedJob, cluster: Cluster, workload: Workload) -> None:
    """Refuse a job that no kind or project has room for, or that would take years."""
    kinds = [kind for kind in cluster.kinds if job.accepts(kind)]
    if not kinds:
        raise ValueError(
            f"workload: job {job.spec.name} runs on {', '.join(sorted(job.spec.accepted_kinds))} "
            f"only, the cluster has {', '.join(cluster.kinds)}; simulate nodes of these kinds, as "
            f"--kinds {min(job.spec.accepted_kinds)}:16"
        )
    most = max(cluster.kinds[kind] for kind in kinds)
    least, _ = job.bounds
    if least > most:
        raise ValueError(
            f"workload: job {job.spec.name} needs {least} accelerators of one kind, the cluster "
            f"has {most}; simulate more nodes, or let jobs make do with less (a policy for "
            "elastic jobs)"
        )
    quota = None if job.spec.project is None else workload.projects.get(job.spec.project)
    within = max(min(cluster.kinds[kind], quota.most([kind])) for kind in kinds) if quota else most
    if least > within:
        raise ValueError(
            f"workload: job {job.spec.name} needs {least} accelerator{'s' * (least > 1)}, its "
            f"project may hold {within:g}; raise the limit, or let jobs make do with less (a "
            "policy for elastic jobs)"
        )
    needed_s = alone_s(job, cluster, len(cluster.accelerators))
    if LATEST_S < needed_s < math.inf:
        raise ValueError(
            f"workload: job {job.spec.name} alone on the whole cluster would take {needed_s:.3g} s;"
            f" give it work for at most {LATEST_S:g} s"
        )
