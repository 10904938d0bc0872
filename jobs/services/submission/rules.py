"""Rules for submissions: one pure check for the web form, JSON, YAML and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.protocol.code_archive import CodeArchiveError, archive_check
from controlplane.core.protocol.wire import (
    OnNonfinite,
    ReductionMode,
    StopCondition,
    StopKind,
    Task,
)
from jobs.exceptions import InvalidInputError
from jobs.job_templates import JOB_TEMPLATES, JobTemplate
from jobs.services.submission.batch_rules import BATCH_FIELDS, batch_errors
from jobs.services.submission.fields import (
    accelerator_kinds,
    finite_number,
    one_of,
    settings_object,
    short_text,
    whole_number,
    yes_or_no,
)
from jobs.services.submission.prediction_rules import JOB_ID_LIMIT, ONE_PASS, task_errors

VIRTUAL_NODES_LIMIT = 4096
BATCH_LIMIT = 10_000_000
STOP_LIMIT = 100_000_000
SEED_LIMIT = 2**63 - 1
PRIORITY_RANGE = (1, 1000)
DEFAULT_PRIORITY = 100


#: All fields of a submission; `stop` may also be an object with the `stop_` fields.
FIELDS = (
    "name",
    "task",
    "source_job",
    "template",
    "code",
    "code_name",
    "settings",
    "global_batch_size",
    "batch_size_min",
    "batch_size_max",
    "num_virtual_nodes",
    "min_accelerators",
    "max_accelerators",
    "accepted_kinds",
    "allow_mixed_kinds",
    "priority",
    "stop_kind",
    "stop_limit",
    "stop_metric",
    "stop_target",
    "stop_higher_is_better",
    "seed",
    "reduction",
    "shuffle",
    "on_nonfinite",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A checked submission, complete and within bounds."""

    name: str
    task: Task
    source_job: int | None
    template: str
    code: bytes
    code_name: str
    entry_file: str
    settings: dict[str, Any]
    global_batch_size: int
    batch_size_min: int | None
    batch_size_max: int | None
    num_virtual_nodes: int
    min_accelerators: int
    max_accelerators: int
    accepted_kinds: tuple[str, ...]
    allow_mixed_kinds: bool
    priority: int
    stop: StopCondition
    seed: int
    reduction: ReductionMode
    shuffle: bool
    on_nonfinite: OnNonfinite


@dataclass(slots=True)
class _Reader:
    """Reads fields of the input one by one and collects their errors."""

    values: Mapping[str, Any]
    errors: dict[str, list[str]] = field(default_factory=dict)

    def refuse(self, name: str, message: str) -> None:
        self.errors.setdefault(name, []).append(message)

    def take(self, name: str, default: Any, read: Callable[[Any], Any]) -> Any:
        """Read a field; missing, null and empty text give the default (None: required)."""
        value = self.values.get(name)
        if value is None or value == "":
            if default is None:
                self.refuse(name, "This field is required.")
            return default
        try:
            return read(value)
        except ValueError as error:
            self.refuse(name, str(error))
            return default


def submission_read(
    data: Mapping[str, Any], code: bytes | None = None, code_name: str | None = None
) -> Submission:
    """Check a submission.

    Args:
        data: the fields, as JSON values or as a form's text.
        code: content of an uploaded file; otherwise `data` has `code` (text) or `template`.
        code_name: the uploaded file's name.

    Raises:
        InvalidInputError: with a message for every invalid field.
    """
    values = _flatten(data)
    reader = _Reader(values)
    for name in sorted(set(values) - set(FIELDS)):
        reader.refuse(name, f"There is no such field; use {', '.join(FIELDS)}.")
    template = _template(reader)
    content, file_name, entry_file = _code(reader, template, code, code_name)
    num_virtual_nodes = reader.take(
        "num_virtual_nodes",
        template.num_virtual_nodes if template else 8,
        whole_number(1, VIRTUAL_NODES_LIMIT),
    )
    default_most = num_virtual_nodes
    if template:
        default_most = min(template.max_accelerators, num_virtual_nodes)
    task = reader.take("task", Task.TRAIN, one_of(Task))
    is_prediction = task is Task.PREDICT
    submission = Submission(
        task=task,
        source_job=reader.take("source_job", 0, whole_number(1, JOB_ID_LIMIT)) or None,
        name=reader.take("name", template.title if template else None, short_text(100)) or "",
        template=template.name if template else "",
        code=content,
        code_name=file_name,
        entry_file=entry_file,
        settings=reader.take("settings", template.settings if template else {}, settings_object),
        global_batch_size=reader.take(
            "global_batch_size",
            template.global_batch_size if template else None,
            whole_number(1, BATCH_LIMIT),
        )
        or 0,
        batch_size_min=reader.take("batch_size_min", 0, whole_number(1, BATCH_LIMIT)) or None,
        batch_size_max=reader.take("batch_size_max", 0, whole_number(1, BATCH_LIMIT)) or None,
        num_virtual_nodes=num_virtual_nodes,
        min_accelerators=reader.take("min_accelerators", 1, whole_number(1, VIRTUAL_NODES_LIMIT)),
        max_accelerators=reader.take(
            "max_accelerators", default_most, whole_number(1, VIRTUAL_NODES_LIMIT)
        ),
        accepted_kinds=reader.take("accepted_kinds", (), accelerator_kinds),
        allow_mixed_kinds=reader.take("allow_mixed_kinds", False, yes_or_no),
        priority=reader.take("priority", DEFAULT_PRIORITY, whole_number(*PRIORITY_RANGE)),
        stop=ONE_PASS if is_prediction else _stop(reader, template),
        seed=reader.take("seed", 0, whole_number(0, SEED_LIMIT)),
        reduction=reader.take("reduction", ReductionMode.EXACT, one_of(ReductionMode)),
        shuffle=reader.take("shuffle", not is_prediction, yes_or_no),
        on_nonfinite=reader.take("on_nonfinite", OnNonfinite.STOP, one_of(OnNonfinite)),
    )
    _check_together(submission, reader)
    if reader.errors:
        raise InvalidInputError("The submission is not valid.", fields=reader.errors)
    return submission


def _flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `stop: {kind: ..., limit: ...}` into `stop_kind`, `stop_limit`, as in a form."""
    values = dict(data)
    stop = values.pop("stop", None)
    if isinstance(stop, Mapping):
        values |= {f"stop_{name}": value for name, value in stop.items()}
    elif stop is not None:
        raise InvalidInputError.of(stop="Give an object with kind and limit.")
    return values


def _template(reader: _Reader) -> JobTemplate | None:
    name = reader.values.get("template")
    if not name:
        return None
    template = JOB_TEMPLATES.get(str(name))
    if template is None:
        reader.refuse("template", f"Choose one of {', '.join(JOB_TEMPLATES)}.")
    return template


def _code(
    reader: _Reader, template: JobTemplate | None, code: bytes | None, code_name: str | None
) -> tuple[bytes, str, str]:
    text = reader.values.get("code")
    if code is not None:
        content, file_name = code, code_name or "job.py"
    elif text:
        content, file_name = str(text).encode(), str(reader.values.get("code_name") or "job.py")
    elif template is not None:
        content, file_name = template.code.encode(), template.path.name
    else:
        if "template" not in reader.errors:
            reader.refuse("code", "Give a .py or .zip file, its text, or the name of a template.")
        return b"", "", ""
    try:
        entry_file = archive_check(content, file_name)
    except CodeArchiveError as error:
        reader.refuse("code", str(error))
        return content, file_name, ""
    if file_name.lower().endswith(".py"):
        _check_syntax(reader, content, entry_file)
    # Keep the last part of the name only: browsers and clients may send a path.
    return content, file_name.replace("\\", "/").rsplit("/", 1)[-1][:120], entry_file


def _check_syntax(reader: _Reader, content: bytes, file_name: str) -> None:
    try:
        compile(content, file_name, "exec", dont_inherit=True)
    except SyntaxError as error:
        reader.refuse("code", f"Line {error.lineno}: {error.msg}.")
    except (ValueError, RecursionError, MemoryError) as error:
        reader.refuse("code", f"This is no Python text: {error}.")


def _stop(reader: _Reader, template: JobTemplate | None) -> StopCondition:
    default = template.stop if template else None
    kind = reader.take("stop_kind", default.kind if default else None, one_of(StopKind))
    is_default_kind = default is not None and kind == default.kind
    limit = reader.take(
        "stop_limit",
        default.limit if default and is_default_kind else None,
        whole_number(1, STOP_LIMIT),
    )
    if kind != StopKind.METRIC:
        return StopCondition(kind=kind or StopKind.STEPS, limit=limit or 1)
    return StopCondition(
        kind=kind,
        limit=limit or 1,
        metric=reader.take("stop_metric", None, short_text(100)),
        target=reader.take("stop_target", None, finite_number),
        higher_is_better=reader.take("stop_higher_is_better", True, yes_or_no),
    )


def _check_together(submission: Submission, reader: _Reader) -> None:
    """Check the rules between fields; each rule only if its own fields are valid."""
    for name, message in task_errors(submission.task, submission.source_job, reader.values):
        reader.refuse(name, message)
    wrong = set(reader.errors)
    if not wrong & BATCH_FIELDS:
        for name, message in batch_errors(submission):
            reader.refuse(name, message)
    if not wrong & {"global_batch_size", "num_virtual_nodes"} and (
        submission.global_batch_size < submission.num_virtual_nodes
    ):
        reader.refuse(
            "num_virtual_nodes",
            f"A batch of {submission.global_batch_size} examples cannot be split over "
            f"{submission.num_virtual_nodes} virtual nodes; use at most as many as examples.",
        )
    if not wrong & {"max_accelerators", "num_virtual_nodes"} and (
        submission.max_accelerators > submission.num_virtual_nodes
    ):
        reader.refuse(
            "max_accelerators",
            f"Its {submission.num_virtual_nodes} virtual nodes can use at most as many "
            "accelerators.",
        )
    if not wrong & {"max_accelerators", "min_accelerators"} and (
        submission.min_accelerators > submission.max_accelerators
    ):
        reader.refuse(
            "min_accelerators",
            f"This is more than the {submission.max_accelerators} it may have at most.",
        )
