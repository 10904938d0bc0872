"""Measures what trainers that stay notice of one that joins; for `benchmarks.growth`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.specs import spec_make
from controlplane.core.protocol.wire import Membership, ReportKind, TrainerReport
from tests.support.steered_jobs import SteeredJob

JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4096, 256)).astype("float32")
    y = generator.integers(0, 10, size=4096)
    units = settings["hidden_units"]
    model = keras.Sequential(
        [
            keras.Input((256,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-4)
    if settings["optimizer"] == "momentum":
        optimizer = keras.optimizers.SGD(1e-4, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model, (x, y), None
"""


@dataclass(frozen=True)
class Size:
    """A model size: the name of its figure, its hidden units, optimizer, and steps between."""

    name: str
    hidden_units: int
    optimizer: str
    num_steps: int


SIZES = (
    Size("100k", 212, "adam", 100),
    Size("10m", 3030, "adam", 10),
    Size("100m", 9860, "momentum", 3),
)
BATCH = 32
#: The size beside which a restart from a checkpoint stands.
COMPARED = "10m"
#: `steps` reports of the new membership to wait for, so that its normal pace is known.
SETTLED_REPORTS = 4
DEADLINE_S = 180.0


@dataclass(frozen=True)
class Pause:
    """One change of membership as the trainers that stay see it.

    Attributes:
        seconds: from the last step of the old membership to the first one of the new, less a
            normal step, the shorter one of before and after.
        beyond_old_s: the same less a step of before: where joiners listen, the first step still has
            the old mapping, and takes as long as that whatever the switch does.
        delay_s: what the steps took longer than normal ones, from then until all have caught up.
        caught_up_s: the time from the last step of the old membership until then.
        slowed_s: what steps of the old membership took longer than before the change was asked for,
            from when the joiners were ready on. A report that began earlier counts in full, so some
            of what the start of the joiners costs is in it.
    """

    way: str
    is_growth: bool
    seconds: float
    beyond_old_s: float
    delay_s: float
    caught_up_s: float
    slowed_s: float


def pauses_of(size: Size, repeats: int) -> list[Pause]:
    """Grow and shrink so often, live and (10 million parameters) also by restart, in turns.

    Raises:
        SystemExit: a joiner's state was not that of the source.
    """
    ways: dict[str, Callable[[SteeredJob, int], Membership]] = {"live": change_live}
    if size.name == COMPARED:
        ways["restart"] = change_by_restart
    pauses: list[Pause] = []
    with tempfile.TemporaryDirectory(prefix="virtualflow-growth-") as folder:
        code = Path(folder) / "job.py"
        code.write_text(JOB)
        num_slots = 4 * repeats * len(ways) + 4
        spec = spec_make({"hidden_units": size.hidden_units, "optimizer": size.optimizer}, BATCH)
        with SteeredJob(spec, code, Path(folder) / "trainers", num_slots) as job:
            job.resize(1)
            for way, change in [*ways.items()] * repeats:
                for number in (2, 1):
                    job.wait_step(job.step() + size.num_steps, DEADLINE_S)
                    pauses.append(measured(job, way, change, number))
                    print(f"{size.name}: {describe(pauses[-1])}", flush=True)
            check_digests(job)
    return pauses


def check_digests(job: SteeredJob) -> None:
    """Wait for the digests of all changes, and end the benchmark when two of one differ."""

    def found() -> dict[int, set[str]]:
        digests: dict[int, set[str]] = {}
        for trainer in job.trainers.values():
            for report in trainer.reports:
                if report.kind is ReportKind.DIGEST:
                    digests.setdefault(report.generation, set()).add(report.data["sha256"])
        return digests

    newest = job.membership.generation if job.membership else 0
    job.wait(lambda: newest in found(), "the last digests", DEADLINE_S)
    different = {number: digests for number, digests in found().items() if len(digests) > 1}
    if different:
        sys.exit(f"a joiner's state is not that of the source: {different}")


def change_live(job: SteeredJob, number: int) -> Membership:
    """Resize as the engine does it."""
    return job.resize(number)


def change_by_restart(job: SteeredJob, number: int) -> Membership:
    """Save, stop every process, start fresh ones, restore."""
    return job.restore(number, job.preempt())


def measured(
    job: SteeredJob, way: str, change: Callable[[SteeredJob, int], Membership], number: int
) -> Pause:
    """Change the size of a job that trains; a normal step is one after all have caught up."""
    assert job.membership is not None
    old = job.membership.generation
    usual_s = step_s(reports_of(job, old, ReportKind.STEPS))
    new = change(job, number).generation  # returns when every member has switched
    caught_up_at = max(report.at for report in reports_of(job, new, ReportKind.SWITCHED))

    def settled() -> list[TrainerReport]:
        # The first of these may still hold steps from before.
        return [r for r in reports_of(job, new, ReportKind.STEPS) if r.at > caught_up_at][1:]

    job.wait(lambda: len(settled()) >= SETTLED_REPORTS, "steps after the change", DEADLINE_S)
    normal_s = step_s(settled())
    first = reports_of(job, new, ReportKind.STEPS)[0]
    reports_old = reports_of(job, old, ReportKind.STEPS)
    last_old = reports_old[-1]
    ready_at = max((r.at for r in reports_of(job, new, ReportKind.READY)), default=last_old.at)
    before = [report for report in reports_old if report.at <= ready_at][-1]
    num_slowed = last_old.data["last_step"] - before.data["last_step"]
    until = settled()[0]
    num_between = until.data["last_step"] - last_old.data["last_step"]
    return Pause(
        way=way,
        is_growth=number == 2,
        seconds=first.at - last_old.at - min(usual_s, normal_s),
        beyond_old_s=first.at - last_old.at - usual_s,
        delay_s=until.at - last_old.at - num_between * normal_s,
        caught_up_s=max(caught_up_at, first.at) - last_old.at,
        slowed_s=last_old.at - before.at - num_slowed * usual_s,
    )


def step_s(reports: Sequence[TrainerReport]) -> float:
    """Give the mean seconds of a step over `steps` reports, at least one."""
    num_steps = sum(r.data["last_step"] - r.data["first_step"] + 1 for r in reports)
    return float(sum(report.data["seconds"] for report in reports) / num_steps)


def reports_of(job: SteeredJob, generation: int, kind: ReportKind) -> list[TrainerReport]:
    """List a generation's reports of a kind by time; the first of `steps` holds just one step."""
    reports = [
        report
        for trainer in job.trainers.values()
        for report in trainer.reports
        if report.kind is kind and report.generation == generation
    ]
    return sorted(reports, key=lambda report: report.at)


def growths_s(pauses: Sequence[Pause], way: str) -> list[float]:
    """Give the pauses of growing in one way, in seconds."""
    return [pause.seconds for pause in pauses if pause.way == way and pause.is_growth]


def describe(pause: Pause) -> str:
    """Render one pause in a few words."""
    kind = "grow" if pause.is_growth else "shrink"
    return (
        f"{pause.way} {kind}, pause {1e3 * pause.seconds:.0f} ms (beyond a step of before "
        f"{1e3 * pause.beyond_old_s:.0f}), in all {1e3 * pause.delay_s:.0f} ms late, all caught up "
        f"after {pause.caught_up_s:.2f} s, before it steps lost {1e3 * pause.slowed_s:.0f} ms"
    )
