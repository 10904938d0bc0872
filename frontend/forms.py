"""Forms of the pages: fields and their texts; services validate the input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from controlplane.core.protocol.wire import OnNonfinite, ReductionMode, StopKind, Task
from controlplane.core.values.lifecycle import JobStatus
from jobs.job_templates import JOB_TEMPLATES, JobTemplate
from jobs.models import Job
from jobs.services.cluster.api_tokens import LIFETIME_DAYS_LIMIT
from jobs.services.submission.prediction_rules import prediction_values
from jobs.services.submission.rows import job_clone_values
from jobs.services.submission.rules import DEFAULT_PRIORITY, PRIORITY_RANGE

_LOW, _HIGH = PRIORITY_RANGE


def _whole(label: str, help_text: str, low: int = 1, high: int | None = None) -> forms.CharField:
    attributes = {"min": low, "inputmode": "numeric", "step": 1}
    if high is not None:
        attributes["max"] = high
    widget = forms.NumberInput(attrs=attributes)
    return forms.CharField(label=label, help_text=help_text, required=False, widget=widget)


class JobForm(forms.Form):
    """A submission as text, with the fields of `submission_read`."""

    code_from = forms.CharField(required=False)
    code = forms.FileField(
        label="File",
        help_text="A .py file, or a .zip with a main file and what it imports.",
        required=False,
        widget=forms.FileInput(attrs={"accept": ".py,.zip"}),
    )
    name = forms.CharField(
        label="Name",
        help_text="At most 100 characters.",
        required=False,
        widget=forms.TextInput(attrs={"maxlength": 100, "autocomplete": "off"}),
    )
    task = forms.ChoiceField(
        label="Task",
        help_text="Predict: one pass over the data, predictions in the order of the examples.",
        choices=[(task.value, task.value) for task in Task],
        required=False,
    )
    source_job = _whole(
        "Model of job", "Number of one of your finished jobs; empty: the code provides the model."
    )
    global_batch_size = _whole(
        "Global batch size", "Examples of one step, over all accelerators together."
    )
    batch_size_min = _whole(
        "Batch size from", "The platform may choose a smaller batch, down to this. Empty: never."
    )
    batch_size_max = _whole(
        "Batch size to", "And a larger one, up to this; learning rates follow. Empty: never."
    )
    num_virtual_nodes = _whole(
        "Virtual nodes",
        "Fixed slices of the batch. More of them let the job grow further.",
        high=4096,
    )
    seed = _whole("Seed", "The same seed reproduces the result.", low=0)
    reduction = forms.ChoiceField(
        label="Reduction",
        help_text="Exact: bitwise equal results on any number of accelerators.",
        choices=[(mode.value, mode.value) for mode in ReductionMode],
        required=False,
    )
    shuffle = forms.BooleanField(
        label="Shuffle",
        help_text="A new order in each epoch, derived from the seed.",
        required=False,
    )
    settings = forms.CharField(
        label="Settings",
        help_text="A JSON object, passed to the code as build(settings).",
        required=False,
        widget=forms.Textarea(attrs={"rows": 5, "spellcheck": "false"}),
    )
    stop_kind = forms.ChoiceField(
        label="Stops after",
        help_text="A number of steps or epochs, or a metric's target.",
        choices=[(kind.value, kind.value) for kind in StopKind],
        required=False,
    )
    stop_limit = _whole("How many", "Steps or epochs; for a metric, the maximum number of epochs.")
    stop_metric = forms.CharField(
        label="Metric",
        help_text="Its name in the epoch's logs, such as val_accuracy.",
        required=False,
        widget=forms.TextInput(attrs={"maxlength": 100, "autocomplete": "off"}),
    )
    stop_target = forms.CharField(
        label="Target", help_text="The value to reach.", required=False, widget=forms.TextInput()
    )
    stop_higher_is_better = forms.BooleanField(
        label="Higher is better", help_text="Off for a loss.", required=False
    )
    on_nonfinite = forms.ChoiceField(
        label="When the loss is not finite",
        help_text="Or a metric (nan or infinite). Stop: the job fails at that step. Continue: "
        "training goes on with a warning.",
        choices=[(choice.value, choice.value) for choice in OnNonfinite],
        required=False,
    )
    min_accelerators = _whole("At least", "The job needs at least this many accelerators to run.")
    max_accelerators = _whole("At most", "At most one for each virtual node.")
    priority = _whole(
        "Priority", f"{_LOW} to {_HIGH}; twice the priority, twice the share.", _LOW, _HIGH
    )
    accepted_kinds = forms.CharField(
        label="Kinds of accelerator",
        help_text="Separated by commas; empty means any.",
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": "any"}),
    )
    allow_mixed_kinds = forms.BooleanField(
        label="Mix kinds",
        help_text="Idle accelerators of other kinds may join while no other job needs them. "
        "Results are then reproducible within rounding, not bitwise.",
        required=False,
    )

    def submission_values(self) -> dict[str, Any]:
        """Return the text fields for `submission_read`; the code is passed separately.

        An unknown choice is passed on unchanged, to be rejected as in the REST API.
        """
        values = {
            name: self.cleaned_data.get(name, self.data.get(name))
            for name in self.fields
            if name not in ("code", "code_from")
        }
        if values["task"] == Task.PREDICT:
            return prediction_values(values, given={})  # the dropped fields are not shown
        values.pop("source_job")
        if values["stop_kind"] != StopKind.METRIC:
            for name in ("stop_metric", "stop_target", "stop_higher_is_better"):
                del values[name]
        return values

    def errors_add(self, fields: Mapping[str, Sequence[str]]) -> None:
        """Add messages to their fields; messages for other fields go to the form's head."""
        for name, messages in fields.items():
            target = {"template": "code_from", "code_name": "code"}.get(name, name)
            for message in messages:
                if target in self.fields:
                    self.add_error(target, message)
                else:
                    self.add_error(None, f"{name}: {message}")


class TokenForm(forms.Form):
    """Name, permissions and lifetime of an API token."""

    name = forms.CharField(
        label="Name",
        help_text="The program that uses the token.",
        max_length=60,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    days = forms.IntegerField(
        label="Valid for (days)",
        help_text="The token expires after that.",
        min_value=1,
        max_value=LIFETIME_DAYS_LIMIT,
        initial=90,
    )
    may_write = forms.BooleanField(
        label="May submit and change jobs",
        help_text="Off: read-only.",
        required=False,
        initial=True,
    )


def values_shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a submission's values to the values of the form's widgets."""
    shown = dict(values)
    if isinstance(shown.get("settings"), dict):
        shown["settings"] = json.dumps(shown["settings"], indent=2)
    if isinstance(shown.get("accepted_kinds"), list | tuple):
        shown["accepted_kinds"] = ", ".join(map(str, shown["accepted_kinds"]))
    return shown


def blank_values() -> dict[str, Any]:
    """Return the initial values of an empty form."""
    return {
        "task": Task.TRAIN.value,
        "seed": 0,
        "reduction": ReductionMode.EXACT.value,
        "shuffle": True,
        "on_nonfinite": OnNonfinite.STOP.value,
        "stop_higher_is_better": True,
        "min_accelerators": 1,
        "priority": DEFAULT_PRIORITY,
        "settings": {},
    }


def template_values(template: JobTemplate) -> dict[str, Any]:
    """Return the form's values of a job template."""
    stop = template.stop
    return values_shown(
        {
            "name": template.title,
            "global_batch_size": template.global_batch_size,
            "num_virtual_nodes": template.num_virtual_nodes,
            "max_accelerators": template.max_accelerators,
            "settings": template.settings,
            "stop_kind": stop.kind.value,
            "stop_limit": stop.limit,
            "stop_metric": stop.metric or "",
            "stop_target": stop.target,
            "stop_higher_is_better": stop.higher_is_better,
        }
    )


def all_template_values() -> dict[str, dict[str, Any]]:
    """Return the values of every template, by the value of its radio button."""
    return {f"template:{name}": template_values(t) for name, t in JOB_TEMPLATES.items()}


def draft_errors(draft: Job) -> dict[str, list[str]]:
    """Return the messages of an invalid measurement, by form field."""
    if draft.status != JobStatus.INVALID or draft.status_code == "validation_lost":
        return {}
    name = draft.error_field.replace(".", "_")
    # Errors of the code or its data are shown where the code was chosen.
    target = name if name in JobForm.base_fields and name != "code" else "code_from"
    return {target: [draft.status_reason]}


def clone_values(job: Job) -> dict[str, Any]:
    """Return the form's values for a clone of a job."""
    return values_shown(job_clone_values(job))
