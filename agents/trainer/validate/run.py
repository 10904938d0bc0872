"""Validates a job before it is queued: builds it, checks it and runs real steps on two slices.

Runs in a disposable process: `python -m agents.trainer --validate DIR`.
"""

from __future__ import annotations

import json
import math
import re
import resource
import time
import traceback as traceback_module
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.atomic_write import text_write
from agents.trainer.contract.failures import TrainerError
from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.arrays import extreme_examples
from agents.trainer.data.fingerprint import changing_refuse, data_fingerprint, data_warnings
from agents.trainer.data.nests import STACK_HINT
from agents.trainer.data.sources import ExampleSource
from agents.trainer.model.custom_steps import building_steps, is_custom
from agents.trainer.model.fork import DAMAGED, MISFIT, fork_read
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.outputs import MODEL_FILE, WEIGHTS_FILE, model_save
from agents.trainer.model.progress import Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.model.tunables import tunables_of
from agents.trainer.tuning.tuner import job_steps
from agents.trainer.validate.job_file import LoadedJob, job_load
from agents.trainer.validate.model_checks import (
    built_model_check,
    labels_check,
    metric_names,
    model_check,
    variables_check,
)
from agents.trainer.validate.model_summary import model_facts, model_summary
from agents.trainer.validate.split_checks import splitting_check
from agents.trainer.validate.trial_prediction import prediction_try
from agents.trainer.validate.trial_steps import free_bytes, memory_read, steps_try
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.selection import SelectionMethod
from controlplane.core.protocol.tuning import TuningSpec
from controlplane.core.protocol.wire import StopKind, Task, TrainingSpec, decode, encode
from controlplane.core.tuning.course import TuningCourse, course_begin
from controlplane.core.virtual_nodes.mapping import even_bounds

ORDERS_FILE = "orders.json"
REPORT_FILE = "validation.json"
CODE_FOLDER = "code"
FORKED_FILE = "restore.npz"
WARNINGS_LIMIT = 20
#: Most examples of the batch whose parts are compared with the whole.
SPLIT_LIMIT = 256
#: Largest state of a model, in bytes, for which saving is tried.
SAVED_LIMIT_BYTES = 1024**3
#: Largest file of the code, in bytes, that is searched for names of settings.
SEARCHED_LIMIT_BYTES = 1024**2


@dataclass
class Findings:
    """Results of a validation so far; part of the report even if the job is refused later."""

    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def validation_run(directory: Path) -> int:
    """Validate the job in `directory` and write the report there.

    Reads `orders.json` (a `TrainingSpec`) and `code/`; writes `validation.json` (a
    `ValidationReport` with `attempt` 0; the agent sets the actual attempt).

    Returns:
        0, also if the job is refused, which the report states.
    """
    orders = json.loads((directory / ORDERS_FILE).read_text(encoding="utf-8"))
    spec = decode(TrainingSpec, orders)
    _runtime_prepare()
    _memory_bound()
    report = job_validate(spec, directory / CODE_FOLDER)
    text_write(directory / REPORT_FILE, json.dumps(encode(report)))
    return 0


def job_validate(spec: TrainingSpec, code_dir: Path) -> ValidationReport:
    """Build a job, check it and try a step; errors become part of the report."""
    findings = Findings()
    refusal: JobCodeError | None = None
    try:
        _validate(spec, code_dir, findings)
    except JobCodeError as error:
        refusal = error
    except TrainerError as error:
        field_ = "forked_from" if error.code in (MISFIT, DAMAGED) else "code.build"
        refusal = JobCodeError(error.code, field_, error.message, error.traceback)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        refusal = JobCodeError(
            "out_of_memory",
            "num_virtual_nodes",
            f"a slice of the batch does not fit into memory ({error!s:.200}); use more virtual "
            "nodes, so that each takes fewer examples",
        )
    except Exception as error:
        # A fault of the project: reported with the full traceback.
        trace = "".join(traceback_module.format_exception(error))
        refusal = JobCodeError("internal", "code", f"the validation itself failed: {error}", trace)
    findings.facts["warnings"] = findings.warnings[:WARNINGS_LIMIT]
    return ValidationReport(
        ok=refusal is None,
        code=refusal.code if refusal else None,
        field=refusal.field if refusal else None,
        message=refusal.message if refusal else "",
        traceback=refusal.traceback if refusal else "",
        facts=findings.facts,
    )


def _validate(spec: TrainingSpec, code_dir: Path, findings: Findings) -> None:
    if spec.task is Task.PREDICT:
        facts, findings.warnings = prediction_try(spec, code_dir)
        findings.facts |= facts
        return
    started_at = time.perf_counter()
    findings.warnings += _unread_settings(spec.settings, code_dir)
    job = job_load(code_dir, spec.entry_file, spec.settings, spec.seed)
    findings.facts["build_s"] = round(time.perf_counter() - started_at, 3)
    loaded_job_check(spec, job, code_dir, findings)
    if spec.fork is not None:  # last: it takes memory, which the trial steps measure
        fork_read(code_dir.parent / FORKED_FILE, ModelState(job.model), spec)


def loaded_job_check(
    spec: TrainingSpec, job: LoadedJob, code_dir: Path, findings: Findings
) -> None:
    """Check a job that `build` has returned, and try a step; adds to `findings`.

    Raises:
        JobCodeError: the job cannot be trained, or not as `fit` would train it.
    """
    findings.facts |= _data_facts(spec, job)
    _check_sizes(spec, job.train)
    findings.warnings += model_check(job.model, job.validation is not None)
    labels_check(job.model, job.train.fetch(np.arange(1)))
    _note_data(spec, job, findings)

    bounds = even_bounds(spec.global_batch_size, spec.num_virtual_nodes)
    sizes = [high - low for low, high in bounds]
    order = job.train.order(spec.seed, 0, spec.shuffle)
    sample = job.train.fetch(order[: max(sizes)])
    with suppress(Exception):  # a partial summary, for a model that does not build
        findings.facts["summary"] = model_summary(job.model)
    doing = f"building the model for {max(sizes)} of a batch's examples, a virtual node's slice,"
    with user_code(code_dir, "code.build", doing, sample):
        model_build(job.model, sample, building_steps(job.model, job.validation is not None))
    variables_check(job.model)  # first: the summary of complex ones fails
    with user_code(code_dir, "code.build", "describing the model and its metrics"):
        findings.facts |= model_facts(job.model)
        findings.warnings += built_model_check(job.model, min(sizes))
    _check_stop(spec, job)
    findings.warnings += _check_selection(spec, job)
    findings.warnings += _check_tuning(spec, job)

    examples = job.train.fetch(_split_places(job.train, order, min(sizes) + max(sizes)))

    def check_splitting() -> None:
        with user_code(code_dir, "code.build", "the model's forward pass", examples):
            if len(order) > 1:
                has_validation = job.validation is not None
                findings.warnings += splitting_check(
                    job.model, examples, has_validation, spec.global_batch_size
                )

    # Steps run first, because memory kept by earlier runs would hide theirs. If they fail, the
    # splitting check runs too, because it has the clearer messages.
    try:
        with user_code(code_dir, "code.build", "a training step", sample):
            tried = steps_try(spec, job, sizes)
    except JobCodeError:
        check_splitting()
        raise
    findings.facts |= tried.facts
    findings.warnings += tried.warnings
    _check_sums(spec, tried.sums)
    check_splitting()
    findings.warnings += _save_try(job.model)


def _split_places(train: ExampleSource, order: np.ndarray, num_examples: int) -> np.ndarray:
    """Return the places of the batch whose parts are compared: extreme labels, then the order's.

    A loss may treat a label apart that none of the first examples has.
    """
    extremes = extreme_examples(train)
    num_first = min(SPLIT_LIMIT, max(2, num_examples, 2 * len(extremes)))
    places = np.concatenate([extremes, order[:num_first]])
    return np.array(list(dict.fromkeys(places.tolist()))[:num_first], np.int64)


def _unread_settings(settings: Mapping[str, Any], code_dir: Path) -> list[str]:
    """Return a warning about settings whose names are in no file of the code, as after a typo."""
    files = [path for path in code_dir.rglob("*") if path.is_file()]
    texts = [path.read_bytes() for path in files if path.stat().st_size <= SEARCHED_LIMIT_BYTES]
    words = {word for text in texts for word in re.findall(rb"\w+", text)}
    unread = [name for name in settings if not words.issuperset(re.findall(rb"\w+", name.encode()))]
    if not unread:
        return []
    names = ", ".join(f"{name:.60}" for name in unread[:10])
    return [f"no file of the code names the settings {names}; one that is not read has no effect"]


def _check_sizes(spec: TrainingSpec, train: ExampleSource) -> None:
    """Raise if the batch exceeds the data or has fewer examples than virtual nodes."""
    num_examples = len(train)
    if spec.global_batch_size > num_examples:
        num_arrays = len(keras.tree.flatten(train.fetch(np.arange(1))[0]))
        hint = ""
        if num_arrays >= spec.global_batch_size:  # rows of numbers, each taken as an input
            hint = f". They come as {num_arrays} inputs: {STACK_HINT}"
        raise JobCodeError(
            "batch_too_large",
            "global_batch_size",
            f"a global batch of {spec.global_batch_size} is larger than the whole training data "
            f"({num_examples} example{'s' * (num_examples != 1)}); use at most {num_examples}"
            f"{hint}",
        )
    if spec.num_virtual_nodes > spec.global_batch_size:
        raise JobCodeError(
            "too_many_virtual_nodes",
            "num_virtual_nodes",
            f"{spec.num_virtual_nodes} virtual nodes cannot share a batch of "
            f"{spec.global_batch_size} examples; use at most {spec.global_batch_size}",
        )


def _note_data(spec: TrainingSpec, job: LoadedJob, findings: Findings) -> None:
    for source, name in ((job.train, "data.train"), (job.validation, "data.validation")):
        if source is not None:
            changing_refuse(source, name)
            findings.warnings += data_warnings(source, name)
    if job.random:
        findings.warnings.append(
            f"the tf.data.Dataset draws random numbers ({', '.join(sorted(job.random))}) and is "
            "read once, so each epoch has the same ones; move augmentation into layers of the model"
        )
    given = job.train.batch_size
    if given not in (None, spec.global_batch_size):
        findings.warnings.append(
            f"the training data have batches of {given}, and fit would do a step on each; here a "
            f"step takes global_batch_size examples: {spec.global_batch_size}"
        )
    rest = len(job.train) % spec.global_batch_size
    if 0 < rest < spec.num_virtual_nodes:
        findings.warnings.append(
            f"the last batch of each epoch has {rest} example{'s' * (rest > 1)}, fewer than there "
            "are virtual nodes"
        )


def _check_stop(spec: TrainingSpec, job: LoadedJob) -> None:
    """Raise if the metric of the stop condition is not among the job's logs."""
    if spec.stop.kind is not StopKind.METRIC:
        return
    names = [*_metric_names(job), "learning_rate"]
    if spec.stop.metric not in names:
        hint = "" if job.validation is not None else "; val_ names need validation data"
        raise JobCodeError(
            "unknown_metric",
            "stop.metric",
            f"{spec.stop.metric!r} is not among the job's logs: {', '.join(names)}{hint}",
        )


def _check_sums(spec: TrainingSpec, sums: Collection[str]) -> None:
    """Raise if the batch size may change, and with it a loss that is a sum over the batch."""
    is_tuned = spec.tuning is not None and spec.tuning.batch_size is not None
    if sums and (is_tuned or spec.batch_size_min is not None):
        raise JobCodeError(
            "loss_reduction",
            "tuning.space" if is_tuned else "batch_size_min",
            f"the loss {', '.join(sorted(sums))} is a sum over the batch, so losses and gradients "
            "of batches of several sizes cannot be compared; use "
            "reduction='sum_over_batch_size' or a mean, or keep one batch size",
        )


def _check_selection(spec: TrainingSpec, job: LoadedJob) -> list[str]:
    """Raise if control epochs have no validation loss to compare; returns warnings."""
    selection = spec.selection
    if selection is None or selection.method is SelectionMethod.NONE:
        return []
    if selection.needs_losses and is_custom(job.model, training=True):
        raise JobCodeError(
            "custom_train_step",
            "selection.method",
            f"{type(job.model).__name__} has its own train_step(), which gives no loss for each "
            "example to select by; move the loss into compute_loss(), or select nothing",
        )
    if selection.control_every is not None and job.validation is None:
        raise JobCodeError(
            "no_validation_data",
            "selection.control_every",
            "control epochs are compared by their validation loss, but build() returns no "
            "validation data; return some as the third value, or leave control_every out",
        )
    num_epochs = spec.stop.limit
    if spec.stop.kind is StopKind.STEPS:
        num_epochs = math.ceil(num_epochs / math.ceil(len(job.train) / spec.global_batch_size))
    if selection.num_selecting(range(num_epochs)):
        return []
    return [
        f"no epoch selects: selection.start is {selection.start}, counted from 0, and the job has "
        f"{num_epochs} epoch{'s' * (num_epochs > 1)}; train longer"
        + (", or give a smaller selection.start" if selection.start > 1 else "")
    ]


def _check_tuning(spec: TrainingSpec, job: LoadedJob) -> list[str]:
    """Raise if the optimizer lacks a tunable, or the logs the objective; returns warnings."""
    if spec.tuning is None:
        return []
    tunables_of(job.model, spec)
    if spec.tuning.largest_batch_size > len(job.train):
        raise JobCodeError(
            "batch_too_large",
            "tuning.space",
            f"tuning.space.batch_size.high is {spec.tuning.largest_batch_size}, more than the "
            f"{len(job.train)} examples of the training data; give at most as many",
        )
    if spec.tuning.parallel:
        return []
    names = _metric_names(job)
    if spec.tuning.objective not in names:
        hint = "" if job.validation is not None else "; val_ names need validation data"
        raise JobCodeError(
            "unknown_metric",
            "tuning.objective",
            f"{spec.tuning.objective!r} is not among the job's metrics: {', '.join(names)}{hint}",
        )
    return _few_steps_warnings(spec, spec.tuning, len(job.train))


def _few_steps_warnings(spec: TrainingSpec, tuning: TuningSpec, num_train: int) -> list[str]:
    """Warn if the first search has too few steps for two trials, which it could compare."""
    schedule = TrainingSchedule(
        num_train,
        0,
        spec.global_batch_size,
        spec.stop,
        selection=spec.selection,
        tunes_selection=tuning.tunes_selection,
    )
    first_epoch = schedule.selection.start if schedule.selection and tuning.tunes_selection else 0
    plan = job_steps(schedule, Progress(epoch=first_epoch))
    search = course_begin(TuningCourse(), tuning, {}, plan).search
    if search is not None and search.max_steps >= 2 * search.shortest:
        return []
    return [
        f"of the job's {plan.total} steps tuning.max_share leaves too few for two trials, so "
        "nothing is tuned; train longer, or raise tuning.max_share"
    ]


def _data_facts(spec: TrainingSpec, job: LoadedJob) -> dict[str, Any]:
    return {
        "num_examples": len(job.train),
        "num_validation_examples": 0 if job.validation is None else len(job.validation),
        "steps_per_epoch": math.ceil(len(job.train) / spec.global_batch_size),
        "data_fingerprint": data_fingerprint(job.train, job.validation),
    }


def _metric_names(job: LoadedJob) -> list[str]:
    names = metric_names(job.model)
    if job.validation is None:
        return names
    return [*names, *(f"val_{name}" for name in metric_names(job.model, training=False))]


def _save_try(model: keras.Model) -> list[str]:
    """Save the model as at the job's end; returns warnings.

    Raises:
        JobCodeError: Keras can save neither the model nor its weights.
    """
    if ModelState(model).num_bytes > SAVED_LIMIT_BYTES:
        return ["the model is large, so saving it was not tried"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / MODEL_FILE
        try:
            model_save(model, path)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip()}"
            reason = " ".join(text.partition("\n\n")[0].split())  # advice comes below
            try:
                model.save_weights(Path(folder) / WEIGHTS_FILE)
            except Exception as second:
                text = f"neither the model nor its weights can be saved ({reason})"
                raise JobCodeError("not_saveable", "code.build", text, str(second)) from error
            return [
                f"Keras cannot save the model as {MODEL_FILE}, so the job will leave its weights, "
                f"{WEIGHTS_FILE}; for the whole model, layers, models, losses and metrics of your "
                "own need get_config() with the arguments of __init__, and compile() objects or "
                f"functions, not classes or functools.partial ({reason})"
            ]
        try:
            keras.saving.load_model(path, compile=False)
        except Exception as error:
            # Keras wraps the error of a class in one of each layer or model around it.
            text = str(error).rpartition("Exception encountered: ")[2]
            reason = text.splitlines()[0][:200] if text else type(error).__name__
            return [f"the saved model cannot be loaded without your code: {reason}"]
    return []


def _memory_bound() -> None:
    """Limit this process's memory, so that allocations fail before the kernel kills others."""
    asked = memory_read("VmData")
    if asked is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (asked + free_bytes(), most))


def _runtime_prepare() -> None:
    """Configure the process like a trainer, but for one core: other jobs train on this node."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, enable=True)
    keras.utils.set_random_seed(0)  # the next call forbids random operations without a seed
    tf.config.experimental.enable_op_determinism()
