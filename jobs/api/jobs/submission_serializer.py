"""Serializer of submissions: one check for REST, YAML and the web form, and their document."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import islice
from typing import Any

from rest_framework import serializers

from controlplane.core.protocol.code_archive import CodeArchiveError
from controlplane.core.protocol.selection import (
    BETA_RANGE,
    CONTROL_RANGE,
    EPOCH_LIMIT,
    HISTORY_RANGE,
    LOSS_CAP_RANGE,
    STALE_RANGE,
    SelectionMethod,
)
from controlplane.core.protocol.tuning import (
    MAX_BRANCHES_RANGE,
    MAX_PARALLEL_RANGE,
    SHARE_RANGE,
    TRIAL_STEPS_RANGE,
    TRIALS_RANGE,
)
from controlplane.core.protocol.wire import OnNonfinite, ReductionMode, StopKind, Task
from controlplane.core.values.tiers import Tier
from jobs.api.jobs.submission_code import code_read
from jobs.api.jobs.submission_fields import (
    CheckpointField,
    EnumField,
    FlagField,
    KindsField,
    NoteField,
    NumberField,
    SecretNamesField,
    SettingsField,
    SpaceField,
    TagsField,
    TextField,
    WholeField,
)
from jobs.api.requests import UNKNOWN_LIMIT
from jobs.job_templates import JOB_TEMPLATES, JobTemplate, template_of
from jobs.query_values import WHOLE_LIMIT
from jobs.submission import (
    BATCH_LIMIT,
    DEFAULT_PRIORITY,
    NEWEST,
    ONE_PASS,
    PRIORITY_RANGE,
    STOP_LIMIT,
    VIRTUAL_NODES_LIMIT,
    field_conflicts,
)

STOP_FIELDS = ("stop_kind", "stop_limit", "stop_metric", "stop_target", "stop_higher_is_better")


class SubmissionSerializer(serializers.Serializer):
    """A submission; missing, null and empty fields get the template's value or the default.

    The context's `file` is (content, name) of an uploaded code file, if there is one. Its `copied`
    are the settings of the job that is submitted again.
    """

    name = TextField(100, label="Name", help_text="At most 100 characters.")
    tags = TagsField(
        default=list,
        label="Tags",
        help_text="Words to find and group jobs by, separated by commas.",
    )
    note = NoteField(default="", label="Note", help_text="What the job is meant to show.")
    task = EnumField(
        Task,
        default=Task.TRAIN,
        label="Task",
        help_text="Predict: one pass over the data, predictions in the order of the examples.",
    )
    source_job = WholeField(
        1,
        WHOLE_LIMIT,
        default=None,
        label="Model of job",
        help_text="Number of one of your finished jobs; empty: the code provides the model.",
    )
    forked_from = WholeField(
        1,
        WHOLE_LIMIT,
        default=None,
        label="Start from the state of job",
        help_text="Number of a job whose weights, optimizer and progress it begins with.",
    )
    checkpoint = CheckpointField(
        default=NEWEST,
        label="Which state",
        help_text="newest: the newest kept checkpoint. now: the job saves its state now. Or the "
        "step of a kept one.",
    )
    template = serializers.ChoiceField(
        choices=list(JOB_TEMPLATES),
        default="",
        error_messages={"invalid_choice": f"Choose one of {', '.join(JOB_TEMPLATES)}."},
    )
    code = serializers.CharField(
        required=False, trim_whitespace=False, help_text="Python text, or a .py or .zip file."
    )
    code_name = serializers.CharField(default="job.py")
    global_batch_size = WholeField(
        1,
        BATCH_LIMIT,
        label="Global batch size",
        help_text="Examples of one step, over all accelerators together.",
    )
    num_virtual_nodes = WholeField(
        1,
        VIRTUAL_NODES_LIMIT,
        default=8,
        label="Virtual nodes",
        help_text="Fixed slices of the batch. More of them let the job grow further.",
    )
    batch_size_min = WholeField(
        1,
        BATCH_LIMIT,
        default=None,
        label="Adaptive batch size: min",
        help_text="The platform may choose a smaller batch, down to this. Empty: never.",
    )
    batch_size_max = WholeField(
        1,
        BATCH_LIMIT,
        default=None,
        label="Adaptive batch size: max",
        help_text="And a larger one, up to this; learning rates follow. Empty: never.",
    )
    min_accelerators = WholeField(
        1,
        VIRTUAL_NODES_LIMIT,
        default=1,
        label="At least",
        help_text="The job needs at least this many accelerators to run.",
    )
    max_accelerators = WholeField(
        1,
        VIRTUAL_NODES_LIMIT,
        required=False,
        label="At most",
        help_text="At most one for each virtual node.",
    )
    accepted_kinds = KindsField(
        default=list,
        label="Accelerator types",
        help_text="Separated by commas; empty means any.",
    )
    allow_mixed_kinds = FlagField(
        default=False,
        label="Allow mixed types",
        help_text="Idle accelerators of other types may join while no other job needs them. "
        "Results are then reproducible within rounding, not bitwise.",
    )
    tier = EnumField(
        Tier,
        default=Tier.NORMAL,
        label="Tier",
        help_text="Urgent before normal before idle, whatever the priority: a lower tier gets what "
        "higher ones leave. Idle jobs give way at any moment and lose no step.",
    )
    priority = WholeField(
        *PRIORITY_RANGE,
        default=DEFAULT_PRIORITY,
        label="Priority",
        help_text=f"{PRIORITY_RANGE[0]} to {PRIORITY_RANGE[1]}; inside a tier, a weight or an "
        "order, by policy.",
    )
    project = TextField(
        40,
        default="",
        label="Project",
        help_text="Its members see the job; its guaranteed share and limits count. Empty: none.",
    )
    stop = serializers.DictField(
        required=False, help_text="The `stop_` fields as one object: kind, limit, metric, ..."
    )
    stop_kind = EnumField(
        StopKind,
        required=False,
        label="Stops after",
        help_text="A number of steps or epochs, or a metric's target.",
    )
    stop_limit = WholeField(
        1,
        STOP_LIMIT,
        required=False,
        label="Limit",
        help_text="Steps or epochs; for a metric, the maximum number of epochs.",
    )
    stop_metric = TextField(
        100,
        required=False,
        label="Metric",
        help_text="Its name in the epoch's logs, such as val_accuracy.",
    )
    stop_target = NumberField(required=False, label="Target", help_text="The value to reach.")
    stop_higher_is_better = FlagField(
        default=True, label="Higher is better", help_text="Off for a loss."
    )
    seed = WholeField(
        0, WHOLE_LIMIT, default=0, label="Seed", help_text="The same seed reproduces the result."
    )
    reduction = EnumField(
        ReductionMode,
        default=ReductionMode.EXACT,
        label="Reduction",
        help_text="Exact: bitwise equal results on any number of accelerators.",
    )
    shuffle = FlagField(
        required=False,
        label="Shuffle",
        help_text="A new order in each epoch, derived from the seed.",
    )
    settings = SettingsField(
        default=dict,
        label="Settings",
        help_text="A JSON object, passed to the code as build(settings).",
    )
    secrets = SecretNamesField(
        default=list,
        label="Secrets",
        help_text="Names of your secrets, separated by commas: variables of the job's environment.",
    )
    on_nonfinite = EnumField(
        OnNonfinite,
        default=OnNonfinite.STOP,
        label="When the loss is not finite",
        help_text="Or a metric (nan or infinite). Stop: the job fails at that step. Continue: "
        "training goes on with a warning.",
    )
    selection = serializers.DictField(
        required=False,
        help_text="The `selection_` fields as one object: method, beta, history, ...",
    )
    selection_method = EnumField(
        SelectionMethod,
        default=SelectionMethod.NONE,
        label="Select examples",
        help_text="Train on those with the larger losses; stale: compute losses only in some "
        "epochs; random: as many, for comparison.",
    )
    selection_beta = NumberField(
        *BETA_RANGE,
        default=1.0,
        label="Beta",
        help_text="Larger selects fewer: about 1 of 2 examples at 1, 1 of 3 at 2, 1 of 4 at 3.",
    )
    selection_history = WholeField(
        *HISTORY_RANGE,
        default=1024,
        label="History",
        help_text="Number of recent losses that a loss is compared with.",
    )
    selection_stale_every = WholeField(
        *STALE_RANGE,
        default=3,
        label="Compute losses every",
        help_text="Epochs from one computation of the losses to the next. Stale method only.",
    )
    selection_start = WholeField(
        1,
        EPOCH_LIMIT,
        default=1,
        label="First epoch that selects",
        help_text="Counted from 0, at least 1; earlier ones train on every example.",
    )
    selection_end = WholeField(
        2,
        EPOCH_LIMIT,
        default=None,
        label="Select until epoch",
        help_text="From this epoch on every example is trained on again. Empty: never.",
    )
    selection_loss_cap = NumberField(
        *LOSS_CAP_RANGE,
        default=0.0,
        label="Leave out the largest losses (%)",
        help_text="Against wrong labels, whose losses stay large.",
    )
    selection_guard = FlagField(
        default=True,
        label="Stop selecting when it does not pay",
        help_text="When measured times say that an epoch costs as much as a plain one. "
        "Off: results do not depend on any measured time.",
    )
    selection_control_every = WholeField(
        *CONTROL_RANGE,
        default=None,
        label="Compare with random selection every (epochs)",
        help_text="Stops selecting if the validation loss then falls faster. Empty: never.",
    )
    tuning = serializers.DictField(
        required=False,
        help_text="The `tuning_` fields as one object: space, max_trials, max_share, ...",
    )
    tuning_space = SpaceField(
        default=dict,
        label="Search space",
        help_text="A JSON object with a range for each value to tune: learning_rate or "
        "learning_rate_scale (a factor, for schedules), momentum, weight_decay, batch_size "
        "(multiples of the virtual nodes; with log each twice the one before), selection_beta "
        "(of a selection by losses). Example: "
        '{"learning_rate": {"low": 0.00001, "high": 1, "log": true}}. Empty: no tuning.',
    )
    tuning_max_trials = WholeField(
        *TRIALS_RANGE,
        default=20,
        label="Most trials per search",
        help_text="A trial is some steps of training with other values, from the same state as "
        "the others. The first trial has the job's own values.",
    )
    tuning_max_share = NumberField(
        *SHARE_RANGE,
        default=0.3,
        label="Share of the steps for trials",
        help_text="At most this share of the job's steps: 0.3 is 30 %. Steps of a trial that is "
        "not kept are lost.",
    )
    tuning_max_branches = WholeField(
        *MAX_BRANCHES_RANGE,
        default=4,
        label="Most trials in memory",
        help_text="Trials that are kept for comparison while others run. Each takes as much memory "
        "as the model and its optimizer, on every accelerator.",
    )
    tuning_objective = TextField(
        100,
        default="val_loss",
        label="Metric to watch",
        help_text="A metric at the end of each epoch, such as val_loss or val_accuracy. After 4 "
        "epochs without a better value the job searches again.",
    )
    tuning_higher_is_better = FlagField(
        default=False, label="Higher is better", help_text="On for an accuracy, off for a loss."
    )
    tuning_retune = FlagField(
        default=True,
        label="Search again at a plateau",
        help_text="Off: search once, at the start of the training.",
    )
    tuning_parallel = FlagField(
        default=False,
        label="Trials on idle accelerators",
        help_text="Trials are jobs of tier idle beside this one, which trains on meanwhile and "
        "goes on with the best one's state; worth it where a trial's steps take longer than its "
        "start, some 10 s. Off: trials one after another, in this job.",
    )
    tuning_max_parallel = WholeField(
        *MAX_PARALLEL_RANGE,
        default=4,
        label="Most trials at a time",
        help_text="Of trials on idle accelerators.",
    )
    tuning_trial_steps = WholeField(
        *TRIAL_STEPS_RANGE,
        default=100,
        label="Steps of a trial",
        help_text="Of trials on idle accelerators: a multiple of 10. Twice as many after a round "
        "in which no loss fell clearly.",
    )

    def to_internal_value(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Check every field, then the rules between those that are valid."""
        given = {name: value for name, value in data.items() if value is not None and value != ""}
        unknown = (str(name)[:60] for name in given if name not in self.fields)
        errors = {name: [self._unknown(name)] for name in islice(unknown, UNKNOWN_LIMIT)}
        template = JOB_TEMPLATES.get(str(given.get("template")))
        complete = given if template is None else _template_values(template, given) | given
        values: dict[str, Any] = {}
        for name, field in self.fields.items():
            try:
                values[name] = field.run_validation(field.get_value(complete))
            except serializers.ValidationError as error:
                errors[name] = [str(message) for message in error.detail]
            except serializers.SkipField:
                pass
        if "max_accelerators" not in values | errors and "num_virtual_nodes" in values:
            most = VIRTUAL_NODES_LIMIT if template is None else template.max_accelerators
            values["max_accelerators"] = min(most, values["num_virtual_nodes"])
        values.setdefault("shuffle", values.get("task") is not Task.PREDICT)
        self._code_check(values, template, errors)
        self._settings_check(values, errors)
        _stop_check(values, errors)
        if "task" in values:
            for name, message in field_conflicts(values, given):
                errors.setdefault(name, []).append(message)
        if "template" in errors:  # what it would have given is not missing
            errors = {name: errors[name] for name in errors if name in given}
        if errors:
            raise serializers.ValidationError(errors)
        return values

    def _unknown(self, name: str) -> str:
        """Name the fields that an unknown one may mean: like it, of its object, or all."""
        known = [str(field) for field in self.fields]
        prefix = f"{name.partition('_')[0]}_"
        offered = difflib.get_close_matches(name, known)
        if prefix in ("stop_", "selection_", "tuning_"):
            offered = [field for field in known if field.startswith(prefix)]
        more = "" if offered else " What `build` reads goes into settings."
        return f"There is no such field; use {', '.join(offered or known)}.{more}"

    def _code_check(
        self, values: dict[str, Any], template: JobTemplate | None, errors: dict[str, list[str]]
    ) -> None:
        """Replace `code` by its bytes and add `entry_file`."""
        try:
            values |= code_read(
                values.get("code"), values.get("code_name", ""), self.context.get("file"), template
            )
        except CodeArchiveError as error:
            errors.setdefault("code", []).append(str(error))

    def _settings_check(self, values: Mapping[str, Any], errors: dict[str, list[str]]) -> None:
        """Refuse settings that a template does not read, but for those of the copied job."""
        if "settings" in values and (own := template_of(values.get("code", b""))):
            copied = self.context.get("copied", {})
            new = {k: v for k, v in values["settings"].items() if k not in copied or copied[k] != v}
            if texts := [*islice(own.settings_wrong(new), UNKNOWN_LIMIT)]:
                errors["settings"] = texts


def _template_values(template: JobTemplate, given: Mapping[str, Any]) -> dict[str, Any]:
    same = ("settings", "global_batch_size", "num_virtual_nodes")
    values = {"name": template.title} | {name: getattr(template, name) for name in same}
    if given.get("task") == Task.PREDICT:
        return values
    kind = template.stop.kind.value
    stop = {"stop_kind": kind, "stop_limit": template.stop.limit}
    return values | (stop if given.get("stop_kind", kind) == kind else {})


def _stop_check(values: dict[str, Any], errors: dict[str, list[str]]) -> None:
    """Require the fields of the stop condition; a prediction has none."""
    if values.get("task") is Task.PREDICT:
        values.setdefault("stop_kind", ONE_PASS.kind)
        return
    for name in STOP_FIELDS[: 4 if values.get("stop_kind") is StopKind.METRIC else 2]:
        if name not in values and name not in errors:
            errors[name] = ["This field is required."]
