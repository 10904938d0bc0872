"""manage.py simulate: runs a workload through policies, without a cluster."""

from __future__ import annotations

import importlib.resources
import json
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.core.policies import POLICIES
from controlplane.simulator import BatchMode, Knowledge, Report, Rules, StuckError, simulate
from controlplane.simulator.engine.report import GroupOutcome
from controlplane.simulator.native_output import native_output_dropped
from controlplane.simulator.options import (
    SYNTHETIC,
    cluster_load,
    costs_parse,
    failures_parse,
    projects_draw,
    projects_parse,
    round_parse,
    tiers_draw,
    tiers_parse,
    workload_load,
)
from controlplane.simulator.page import FIGURES, page_make
from controlplane.simulator.published.speeds import gavel_speeds

_DEFAULT = " (default: %(default)s)"

#: Most characters in a line of the table.
MOST_COLUMNS = 100


class Command(BaseCommand):
    """Runs the same policies as the real cluster; see docs/simulator.md."""

    help = "Simulate a workload under one or more policies; table, JSON and a page that shows it."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--workload", required=True, help=f"a file (see docs/simulator.md), or {SYNTHETIC!r}")
        add("--profiles", type=Path, help="folder with one folder of measurements an application; "
            "default: none, which only a workload of Pollux' needs")  # fmt: skip
        add("--cluster", type=Path, help="YAML file of nodes and kinds (see docs/simulator.md); "
            "default: as --nodes, --accelerators and --kinds say")  # fmt: skip
        add("--nodes", type=int, help="default: as recorded, as many as --kinds says, or 16")
        add("--accelerators", type=int, help="on each node; default: as recorded, or 4")
        add("--kinds", help="nodes by kind, as v100:8,k80:8; default: all of one kind, gpu")
        add("--kind-speeds", type=Path, help="Gavel's table of steps a second by kind; default: "
            "all kinds are equally fast")  # fmt: skip
        add("--policy", required=True, choices=sorted(POLICIES))
        add("--compare", nargs="*", default=[], choices=sorted(POLICIES), metavar="POLICY",
            help="policies to run besides; default: none")  # fmt: skip
        add("--resize-cost", default="measured",
            help="measured, flat:30 or start,pause,growth[,release] in s" + _DEFAULT)  # fmt: skip
        add("--rules", default=Rules.OWN.value, choices=[rule.value for rule in Rules],
            help="rules of time" + _DEFAULT)  # fmt: skip
        add("--knowledge", default=Knowledge.FITTED.value, choices=[k.value for k in Knowledge],
            help="job speeds as policies see them" + _DEFAULT)  # fmt: skip
        add("--batch", choices=[mode.value for mode in BatchMode], help="default: by policy")
        add("--round", type=float, default=60.0, help="seconds between decisions" + _DEFAULT)
        add("--failures", help="hours between losses of a node and until it is back, as 48,0.5; "
            "default: no failures")  # fmt: skip
        add("--jobs", type=int, default=120, help="of a Philly list, or made up" + _DEFAULT)
        add("--seed", type=int, default=0, help="of policies and workload" + _DEFAULT)
        add("--tiers", help="shares of jobs drawn for tiers, as urgent:0.1,idle:0.3; default: as "
            "the workload has them")  # fmt: skip
        add("--projects", help="share of jobs, guarantee and limit of drawn projects, then the "
            "same of kinds, as 0.5:8-16,0.3:4:a100=2-3; default: as the workload says")  # fmt: skip
        add("--json", type=Path, help="file for everything, jobs included; default: none")
        add("--page", type=Path, help="file for a page with figures; default: none")

    def handle(self, *_args: Any, **options: Any) -> None:
        for option in ("json", "page"):
            _place_check(f"--{option}", options[option])
        _files_check(options)
        try:
            with native_output_dropped():
                reports = self._run(options)
        except (ValueError, StuckError) as error:
            raise CommandError(str(error)) from error
        tiers = group_table("tier", [(one.policy, one.tiers) for one in reports])
        projects = group_table("project", [(one.policy, one.projects) for one in reports])
        for line in [*heading(reports[0]), "", *table(reports), *tiers, *projects]:
            self.stdout.write(line)
        if options["json"] is not None:
            text = json.dumps([report.to_dict() for report in reports]) + "\n"
            self._write("--json", options["json"], text)
        if options["page"] is not None:
            package = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js")
            self._write("--page", options["page"], page_make(reports, package.read_text()))

    def _run(self, options: dict[str, Any]) -> list[Report]:
        """Read all options, then simulate each policy.

        Raises:
            ValueError: naming the option and the fix.
        """
        round_s, seed = round_parse(options["round"]), options["seed"]
        costs, failures = costs_parse(options["resize_cost"]), failures_parse(options["failures"])
        speeds = gavel_speeds(options["kind_speeds"]) if options["kind_speeds"] else {}
        nodes = (options["nodes"], options["accelerators"], options["kinds"])
        file = cluster_load(options["cluster"], *nodes, options["workload"])
        workload = workload_load(
            options["workload"],
            options["profiles"],
            file,
            speeds,
            num_jobs=options["jobs"],
            seed=seed,
        )
        workload = tiers_draw(workload, tiers_parse(options["tiers"]), seed)
        workload = projects_draw(
            workload, projects_parse(options["projects"], file.cluster.kinds), seed
        )
        for note in workload.notes:
            self._tell(note)
        return [
            simulate(
                workload,
                file.cluster,
                policy,
                costs=costs,
                rules=options["rules"],
                seed=seed,
                round_s=round_s,
                knowledge=options["knowledge"],
                batch=options["batch"],
                failures=failures,
                progress=self._progress(policy),
            )
            for policy in dict.fromkeys([options["policy"], *options["compare"]])
        ]

    def _tell(self, text: str, ending: str = "\n") -> None:
        """Write to standard error, which Django colours red unless a style is named."""
        self.stderr.write(text, style_func=self.style.HTTP_INFO, ending=ending)

    def _progress(self, policy: str) -> Callable[[int, int, float], None]:
        """Print the progress: always on a terminal, else every 25 % of the jobs or 15 s."""
        is_terminal = self.stderr.isatty()
        every_s, start, end = (0.0, "\r", "") if is_terminal else (15.0, "", "\n")
        shown, shown_at = 0, time.monotonic()

        def report(ended: int, total: int, now: float) -> None:
            nonlocal shown, shown_at
            percent, at = 100 * ended // total, time.monotonic()
            if percent >= shown + 25 or ended == total or at - shown_at >= every_s:
                shown, shown_at = percent, at
                text = f"{start}{policy}: {ended} of {total} jobs after {now / 3600.0:.1f} h"
                self._tell(text, ending="\n" if ended == total else end)
                self.stderr.flush()

        return report

    def _write(self, option: str, path: Path, text: str) -> None:
        try:
            path.write_text(text)
        except OSError as error:
            raise CommandError(f"{option}: cannot write {path}: {error.strerror}.") from error
        self._tell(f"Wrote {path}")


def _place_check(option: str, path: Path | None) -> None:
    """Reject an unwritable output file before the simulation starts."""
    if path is not None and path.is_dir():
        raise CommandError(f"{option}: {path} is a folder; name a file in it.")
    if path is not None and not path.absolute().parent.is_dir():
        raise CommandError(f"{option}: there is no folder {path.parent}; make it first.")


def _files_check(options: Mapping[str, Any]) -> None:
    """Reject an output file that another option names, too: it would be overwritten."""
    names: dict[Path, str] = {}
    for option in ("workload", "cluster", "json", "page"):
        if options[option] is not None:
            first = names.setdefault(Path(options[option]).resolve(), option)
            if first != option:
                raise CommandError(f"--{option}: --{first} names that file, too; name another one.")


def heading(report: Report) -> list[str]:
    """Return the settings that all reports share, one a line."""
    settings = report.settings
    names = ("workload", "resize_cost", "seed", "version")
    return [f"{name.replace('_', ' ')}: {settings[name]}" for name in names]


def table(reports: Sequence[Report]) -> list[str]:
    """Return the figures, a line per report under a line of titles, in blocks of limited width."""
    columns = [
        [title, *(f"{getattr(report, name):,.{decimals}f}{unit}" for report in reports)]
        for name, (title, decimals, unit) in FIGURES.items()
    ]
    names = ["policy", *(report.policy for report in reports)]
    lines: list[str] = []
    rows = names = _aligned(names, str.ljust)
    for column in columns:
        cells = _aligned(column, str.rjust)
        if len(rows[0]) + 2 + len(cells[0]) > MOST_COLUMNS:
            lines += [*rows, ""]
            rows = names
        rows = [f"{row}  {cell}" for row, cell in zip(rows, cells, strict=True)]
    return [*lines, *rows]


def group_table(
    title: str, outcomes: Sequence[tuple[str, Mapping[str, GroupOutcome]]]
) -> list[str]:
    """Return the figures of each group of jobs under each policy; nothing where all are in one."""
    rows = [
        (
            policy,
            name,
            str(one.num_jobs),
            *(f"{value:,.0f} s" for value in (one.mean_jct_s, one.p90_jct_s, one.mean_queued_s)),
        )
        for policy, groups in outcomes
        for name, one in groups.items()
    ]
    if not rows:
        return []
    titles = ("policy", title, "jobs", "mean JCT", "90 % JCT", "mean queue")
    columns = [
        _aligned(list(cells), str.ljust if place < 2 else str.rjust)
        for place, cells in enumerate(zip(titles, *rows, strict=True))
    ]
    return ["", *("  ".join(cells) for cells in zip(*columns, strict=True))]


def _aligned(cells: Sequence[str], align: Callable[[str, int], str]) -> list[str]:
    width = max(map(len, cells))
    return [align(cell, width) for cell in cells]
