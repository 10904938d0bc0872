"""Runs one job on this machine without a control plane, optionally with planned resizes."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from agents.trainer.local.local_cluster import LocalJob, LocalJobError, NonfiniteJobError
from agents.trainer.local.predictions import predictions_write
from agents.trainer.local.validation import job_validate
from controlplane.core.protocol.code_archive import archive_check, archive_unpack
from controlplane.core.protocol.nonfinite import nonfinite_read
from controlplane.core.protocol.prediction_parts import RESULT_FILE
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.tuning import TuningSpec
from controlplane.core.protocol.wire import (
    Membership,
    OnNonfinite,
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    Task,
    TrainingSpec,
    decode,
)

EXIT_FAILED = 1
Spec = TypeVar("Spec", SelectionSpec, TuningSpec)


def launcher_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a local run."""
    group = parser.add_argument_group("a whole run on this machine")
    group.add_argument(
        "job",
        nargs="?",
        type=Path,
        metavar="JOB",
        help="a .py file that defines build(settings), or a .zip with it; validated first",
    )
    group.add_argument("--virtual-nodes", type=int, default=8)
    group.add_argument("--workers", type=int, default=1, help="trainer processes to start with")
    group.add_argument("--batch-size", type=int, default=64, help="global batch size")
    group.add_argument("--seed", type=int, default=0)
    stop = group.add_mutually_exclusive_group()
    stop.add_argument("--steps", type=int, help="stop after so many steps")
    stop.add_argument("--epochs", type=int, help="stop after so many epochs (default 1)")
    stop.add_argument(
        "--predict",
        action="store_true",
        help="do not train: go once over the data and keep what the model gives",
    )
    group.add_argument(
        "--settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for build; JSON value",
    )
    group.add_argument("--reduction", choices=list(ReductionMode), default=ReductionMode.EXACT)
    group.add_argument(
        "--on-nonfinite",
        choices=list(OnNonfinite),
        default=OnNonfinite.STOP,
        help="when the loss or a metric is nan or infinite (default stop)",
    )
    group.add_argument(
        "--selection",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="train on chosen examples: method=selective_backprop, beta=2, start=1, ...",
    )
    group.add_argument(
        "--tuning",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help='tune while training: space={"learning_rate": {"low": 1e-5, "high": 1, "log": true}}, '
        "max_trials=20, ...",
    )
    group.add_argument("--output", type=Path, help="folder for model, history and metrics")
    group.add_argument(
        "--resize", default="", metavar="STEP:WORKERS,...", help="planned resizes, e.g. 20:3,40:2"
    )
    group.add_argument("--threads", type=int, default=1, help="CPU threads per trainer")


def launcher_run(options: argparse.Namespace) -> int:
    """Run a job to its end and print its progress; returns the exit status."""
    try:
        spec = _spec(options)
        resizes = resizes_read(options.resize)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  a command-line program
        return EXIT_FAILED
    with tempfile.TemporaryDirectory(prefix="virtualflow-") as folder:
        num_slots = options.workers + sum(workers for _, workers in resizes)
        code = Path(folder) / "code"
        try:
            archive_unpack(options.job.read_bytes(), options.job.name, code)
            job = LocalJob(spec, code, Path(folder), num_slots, options.threads)
            with job:
                memberships = _plan(job, options.workers, resizes)
                facts = job_validate(spec, code, Path(folder) / "validation")
                for warning in facts.get("warnings", ()):
                    _say(f"warning: {warning}")
                job.spec = dataclasses.replace(spec, merges=facts.get("is_merged") is not False)
                result = _train(job, memberships, resizes)
                _say(_summary(result))
                _results_take(job, result, job.output_folder(), options.output)
        except NonfiniteJobError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            _results_take(job, error.data, error.outputs, options.output)
            return EXIT_FAILED
        except (LocalJobError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return EXIT_FAILED
        except KeyboardInterrupt:
            return EXIT_FAILED
    return 0


def resizes_read(text: str) -> list[tuple[int, int]]:
    """Parse "20:3,40:2" to steps and numbers of workers, ascending by step.

    Raises:
        ValueError: the text has another form.
    """
    resizes = []
    for part in filter(None, text.split(",")):
        step, _, workers = part.partition(":")
        if not (step.strip().isdecimal() and workers.strip().isdecimal() and int(workers)):
            raise ValueError(f"--resize {part!r}: write STEP:WORKERS with at least one worker")
        resizes.append((int(step), int(workers)))
    if resizes != sorted(resizes):
        raise ValueError("--resize: steps must ascend")
    return resizes


def _spec(options: argparse.Namespace) -> TrainingSpec:
    if not options.job.is_file():
        raise ValueError(f"there is no file {options.job}")
    if options.workers < 1:
        raise ValueError("--workers must be at least 1")
    code = options.job.read_bytes()
    stop = StopCondition(kind=StopKind.EPOCHS, limit=options.epochs or 1)
    if options.steps:
        stop = StopCondition(kind=StopKind.STEPS, limit=options.steps)
    return TrainingSpec(
        job_id=0,
        name=options.job.stem,
        entry_file=archive_check(code, options.job.name),
        code_sha256=hashlib.sha256(code).hexdigest(),
        settings=settings_read(options.settings),
        global_batch_size=options.batch_size,
        num_virtual_nodes=options.virtual_nodes,
        seed=options.seed,
        reduction=ReductionMode(options.reduction),
        stop=stop,
        task=Task.PREDICT if options.predict else Task.TRAIN,
        shuffle=not options.predict,
        on_nonfinite=OnNonfinite(options.on_nonfinite),
        selection=selection_read(options.selection),
        tuning=_pairs_read(options.tuning, TuningSpec, "--tuning"),
    )


def selection_read(pairs: list[str]) -> SelectionSpec | None:
    """Parse NAME=VALUE pairs of a selection; None without any.

    Raises:
        ValueError: a name is unknown, or a value is out of its bounds.
    """
    return _pairs_read(pairs, SelectionSpec, "--selection")


def _pairs_read(pairs: list[str], expected: type[Spec], option: str) -> Spec | None:
    if not pairs:
        return None
    given = settings_read(pairs, option)
    known = [field.name for field in dataclasses.fields(expected)]
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"{option} {unknown[0]}=...: there is only {', '.join(known)}")
    found = decode(expected, given, option)
    if isinstance(found, TuningSpec) and found.parallel:
        raise ValueError(f"{option} parallel=true needs a cluster: its trials are jobs there")
    return found


def settings_read(pairs: list[str], option: str = "--settings") -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value that is neither JSON nor a word of Python is text.

    Raises:
        ValueError: a pair has no "=".
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"{option} {pair!r}: write NAME=VALUE")
        words = {"True": True, "False": False, "None": None}
        try:
            settings[name] = words[value] if value in words else json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings


def _plan(job: LocalJob, workers: int, resizes: list[tuple[int, int]]) -> list[Membership]:
    memberships = [job.plan(workers, None)]
    for _, wanted in resizes:
        memberships.append(job.plan(wanted, memberships[-1]))
    return memberships


def _train(
    job: LocalJob, memberships: list[Membership], resizes: list[tuple[int, int]]
) -> dict[str, Any]:
    """Start the trainers of all planned memberships, then resize as planned."""
    for membership in memberships:
        job.prepare(membership)
    for membership in memberships:
        job.wait_ready(membership)
    job.go(memberships[0])
    job.wait_switched(memberships[0])
    doing = "predicting" if job.spec.task is Task.PREDICT else "training"
    _say(f"{doing} on {len(memberships[0].members)} worker(s)")
    for (step, _), membership in zip(resizes, memberships[1:], strict=True):
        job.wait_step(step)
        if job.finished() is not None:
            break
        job.go(membership)
        job.wait_switched(membership)
        _say(_resize_line(job, membership))
    return job.wait_finished()


def _resize_line(job: LocalJob, membership: Membership) -> str:
    reports = [
        job.trainers[member.slot].last(ReportKind.SWITCHED, membership.generation)
        for member in membership.members
    ]
    data = [report.data for report in reports if report is not None]
    if not data:
        return "finished before the resize"
    pause_ms = 1e3 * max(entry["pause_s"] for entry in data)
    return (
        f"step {data[0]['step']}: now {len(membership.members)} worker(s), "
        f"pause {pause_ms:.0f} ms, {max(entry['bytes_moved'] for entry in data):,} bytes moved"
    )


def _summary(result: dict[str, Any]) -> str:
    odd = result.get("not_finite", {})
    metrics = ", ".join(
        f"{name} {odd.get(name, 'unknown') if value is None else f'{value:.6g}'}"
        for name, value in result["metrics"].items()
    )
    lines = [f"finished after step {result['step']}: {metrics}", f"sha256 {result['digest']}"]
    found = [nonfinite_read(value) for value in result.get("nonfinite", ())]
    return "\n".join([*lines, *(f"warning: {each.state_text}" for each in found)])


def _results_take(
    job: LocalJob, result: dict[str, Any], outputs: Path, target: Path | None
) -> None:
    """Copy the files that the leader's last report names to `target`, if given."""
    if target is None:
        return
    target.mkdir(parents=True, exist_ok=True)
    for name in result["files"]:
        shutil.copy(outputs / name, target / name)
    if job.spec.task is Task.PREDICT:
        predictions_write(job.folder, target / RESULT_FILE, result["num_examples"])
    _say(f"results in {target}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a command-line program
