"""Workloads drawn after the recipe that Pollux (OSDI 2021) and Sia (SOSP 2023) published.

The recipe: 160 jobs are submitted within 8 hours, by the hour as in Microsoft's Philly trace, with
the peak in the fourth hour at three times the rate of the first. A job is small, medium, large or
extra large as jobs of that trace are by their accelerator-time: 72, 20, 6 and 2 %. Small ones train
ResNet18 on CIFAR-10 or NeuMF, medium ones DeepSpeech2, large ones YOLOv3, extra large ones ResNet50
on ImageNet. Owners have tuned their jobs: they ask for a number of accelerators, with the batch
that ends soonest on it, drawn among those with a speedup of 50 to 80 % of the number.

Deviations: only the first and the fourth hour are published, the other rates are straight lines to
as much as in the first at the end; jobs are drawn by the four shares, not from rows of the trace,
so no file of it is needed; no medium job is turned into one of BERT, as in the published program;
and no more accelerators are asked for than one kind of the cluster has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from controlplane.simulator.applications.batches import Batch
from controlplane.simulator.applications.profiled import ProfiledApplication
from controlplane.simulator.applications.step_times import packed
from controlplane.simulator.published.workload_files import pollux_job
from controlplane.simulator.workloads.workloads import Workload

#: Hours in which jobs are submitted, and jobs in them at the published load.
HOURS, NUM_JOBS = 8.0, 160

#: Relative rates of submission in eighths of the time.
RATES = (1.0, 5.0 / 3.0, 7.0 / 3.0, 3.0, 2.5, 2.0, 1.5, 1.0)

#: Category of jobs -> share of the jobs.
SHARES: Mapping[str, float] = MappingProxyType(
    {"small": 0.72, "medium": 0.20, "large": 0.06, "xlarge": 0.02}
)

#: Category -> applications of Pollux' profiles, each as likely as the others.
MODELS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "small": ("cifar10", "ncf"),
        "medium": ("deepspeech2",),
        "large": ("yolov3",),
        "xlarge": ("imagenet",),
    }
)

#: Numbers of accelerators that owners consider, and accelerators on a node as they see it.
COUNTS, PER_NODE = (2, 4, 6, 8, 12, 16, 24, 32, 48), 4

#: Speedup over one accelerator, as a share of the number, of a tuned job: above, below.
TUNED = (0.5, 0.8)

#: Longest run of a tuned job in seconds.
LONGEST_S = 12 * 3600.0


def workload_draw(
    applications: Mapping[str, ProfiledApplication],
    num_jobs: int = NUM_JOBS,
    hours: float = HOURS,
    seed: int = 0,
    *,
    models: Mapping[str, Sequence[str]] = MODELS,
    most: int = COUNTS[-1],
) -> Workload:
    """Draw a workload; same arguments, same workload.

    Args:
        models: category of `SHARES` -> names of its applications.
        most: largest number of accelerators that an owner asks for.

    Raises:
        ValueError: a number is not positive, or an application is missing.
    """
    if num_jobs < 1 or not hours > 0.0 or most < 1:
        raise ValueError("--jobs: jobs, hours and accelerators of a workload must be positive")
    missing = sorted({name for names in models.values() for name in names} - set(applications))
    if missing:
        raise ValueError(f"--profiles: {', '.join(missing)} is missing; add a folder of it")
    random = np.random.default_rng(seed)
    rates, shares = np.array(RATES), [SHARES[category] for category in models]
    parts = random.choice(rates.size, num_jobs, p=rates / rates.sum())
    moments = np.sort(parts + random.random(num_jobs)) * hours * 3600.0 / rates.size
    choices = {
        name: tuned_configurations(applications[name], most)
        for names in models.values()
        for name in names
    }
    jobs = []
    for number, at_s in enumerate(moments):
        names = list(models.values())[int(random.choice(len(shares), p=shares))]
        name = names[int(random.integers(len(names)))]
        count, batch = choices[name][int(random.integers(len(choices[name])))]
        jobs.append(pollux_job(f"{name}-{number}", round(float(at_s)), name, count, batch))
    return Workload(tuple(jobs), applications)


def tuned_configurations(application: ProfiledApplication, most: int) -> list[tuple[int, int]]:
    """List (accelerators, batch size) of tuned jobs; one accelerator where there is none.

    On each number the batch is, of those with a measured run, the one that ends soonest, packed.
    """
    alone_s, alone_batch = _soonest(application, 1)
    found = []
    for count in COUNTS:
        if count > min(most, application.most_accelerators(None)):
            break
        run_s, batch = _soonest(application, count)
        if run_s < LONGEST_S and TUNED[0] < alone_s / run_s / count < TUNED[1]:
            found.append((count, batch))
    return found or [(1, alone_batch)]


def _soonest(application: ProfiledApplication, count: int) -> tuple[float, int]:
    """Return the seconds of the whole training on `count` accelerators, and its batch size."""
    place, bounds, found = packed(count, PER_NODE), application.bounds, []
    for size in sorted(application.validations):
        local = math.ceil(size / count)
        slices = math.ceil(local / bounds.largest_local)
        if local >= bounds.smallest_local:
            pace = application.pace("", place, Batch(count, math.ceil(local / slices), slices), 0)
            step_s = pace.step_s + (slices - 1) * (pace.step_s - pace.sync_s)
            found.append((application.iterations(size, application.num_epochs - 1) * step_s, size))
    return min(found)
