"""Forms of the pages; serializers and services validate the input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from django import forms
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import password_validators_help_texts
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from rest_framework import serializers

from controlplane.core.protocol.wire import StopKind, Task
from controlplane.core.values.lifecycle import ValidationStatus
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.exceptions import InvalidInputError
from jobs.job_templates import JOB_TEMPLATES, JobTemplate
from jobs.models import Job, Validation
from jobs.services.cluster.accounts import password_confirm
from jobs.services.cluster.api_tokens import LIFETIME_DAYS_LIMIT
from jobs.services.submission.rows import job_clone_values
from jobs.submission import prediction_values

_NOT_SHOWN = ("template", "code", "code_name", "stop", "selection")
#: Sections of the page with their fields; all others are those of the training.
_SECTIONS = {
    "stop": ("stop_kind", "stop_limit", "on_nonfinite"),
    "selection": (
        "selection_method",
        "selection_beta",
        "selection_start",
        "selection_end",
        "selection_stale_every",
        "selection_loss_cap",
        "selection_history",
        "selection_guard",
        "selection_control_every",
    ),
    "metric": ("stop_metric", "stop_target", "stop_higher_is_better"),
    "resources": (
        *("min_accelerators", "max_accelerators", "priority"),
        *("accepted_kinds", "allow_mixed_kinds"),
    ),
    "labels": ("tags", "note"),
}
#: Attributes of text fields beyond those of their serializer field.
_ATTRIBUTES = {
    "name": {"autocomplete": "off"},
    "tags": {"autocomplete": "off", "placeholder": "none"},
    "note": {"autocomplete": "off"},
    "stop_metric": {"autocomplete": "off"},
    "accepted_kinds": {"autocomplete": "off", "placeholder": "any"},
    "secrets": {"autocomplete": "off", "placeholder": "none"},
}


def _form_field(name: str, field: serializers.Field) -> forms.Field:
    """Return the widget of a serializer's field; the serializer validates the text."""
    options: dict[str, Any] = {"label": field.label, "help_text": field.help_text}
    options["required"] = False
    attributes: dict[str, Any] = dict(_ATTRIBUTES.get(name, {}))
    match field:
        case serializers.ChoiceField():
            return forms.ChoiceField(choices=[*field.choices.items()], **options)
        case serializers.BooleanField():
            return forms.BooleanField(**options)
        case serializers.DictField():
            attributes |= {"rows": 5, "spellcheck": "false"}
            return forms.CharField(widget=forms.Textarea(attrs=attributes), **options)
        case serializers.IntegerField():
            attributes |= {"min": field.min_value, "max": field.max_value}
            attributes |= {"inputmode": "numeric", "step": 1}
            return forms.CharField(widget=forms.NumberInput(attrs=attributes), **options)
    if isinstance(field, serializers.CharField) and field.max_length:
        attributes["maxlength"] = field.max_length
    return forms.CharField(widget=forms.TextInput(attrs=attributes), **options)


class JobForm(forms.Form):
    """A submission as text: the fields of `SubmissionSerializer`, and where its code comes from."""

    code_from = forms.CharField(required=False)
    code = forms.FileField(
        label="File",
        help_text="A .py file, or a .zip with a main file and what it imports.",
        required=False,
        widget=forms.FileInput(attrs={"accept": ".py,.zip"}),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, field in SubmissionSerializer().fields.items():
            if name not in _NOT_SHOWN:
                self.fields[name] = _form_field(name, field)

    def priority_limit(self, ceiling: int) -> None:
        """Show the highest priority that the user may give."""
        self.fields["priority"].widget.attrs["max"] = ceiling
        self["priority"].help_text = f"1 to {ceiling}; twice the priority, twice the share."

    def sections(self) -> dict[str, list[forms.BoundField]]:
        """Return the fields of each section, "training" included, without the code's."""
        placed = {name for names in _SECTIONS.values() for name in names} | {"code_from", "code"}
        others = [name for name in self.fields if name not in placed]
        return {
            section: [self[name] for name in names]
            for section, names in {"training": others, **_SECTIONS}.items()
        }

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


class PasswordForm(PasswordChangeForm):
    """A new password; failures with the old one count like those of a login."""

    def __init__(self, user: User, data: Any = None, *, request: HttpRequest, **more: Any) -> None:
        super().__init__(user, data, **more)
        self.request = request
        self.fields["new_password1"].help_text = " ".join(password_validators_help_texts())

    def clean_old_password(self) -> str:
        """Check the present password."""
        old: str = self.cleaned_data["old_password"]
        try:
            password_confirm(self.request, self.user, old)
        except InvalidInputError as error:
            raise ValidationError(error.fields["password"][0]) from None
        return old


class SecretInput(forms.Textarea):
    """A text area that comes back empty from a refused form."""

    def format_value(self, _value: Any) -> None:
        return None


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
    may_read = forms.BooleanField(
        label="May read jobs",
        help_text="Scope jobs:read: jobs, logs, files, nodes.",
        required=False,
        initial=True,
    )
    may_write = forms.BooleanField(
        label="May submit and change jobs",
        help_text="Scope jobs:write.",
        required=False,
        initial=True,
    )
    may_administer = forms.BooleanField(
        label="May act as an admin",
        help_text="Scope admin: all jobs, nodes, the policy. Without it: as a member.",
        required=False,
    )
    password = forms.CharField(
        label="Your password",
        help_text="Asked again for each new token.",
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )

    def scopes(self) -> list[str]:
        """Return the scopes chosen in a valid form."""
        boxes = {"may_read": "jobs:read", "may_write": "jobs:write", "may_administer": "admin"}
        return [scope for name, scope in boxes.items() if self.cleaned_data[name]]


class SecretForm(forms.Form):
    """Name and value of a secret."""

    name = forms.CharField(
        label="Name",
        help_text="An environment variable of your jobs, such as S3_KEY.",
        max_length=64,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    value = forms.CharField(
        label="Value",
        help_text="8 characters to 16 KiB. Never shown again; a new value replaces it.",
        strip=False,
        widget=SecretInput(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"}),
    )

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, auto_id="secret_%s")  # beside another form


def values_shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a submission's values to the values of the form's widgets."""
    shown = dict(values)
    if isinstance(shown.get("settings"), dict):
        shown["settings"] = json.dumps(shown["settings"], indent=2)
    for name in ("accepted_kinds", "secrets", "tags"):
        if isinstance(shown.get(name), list | tuple):
            shown[name] = ", ".join(map(str, shown[name]))
    return shown


def blank_values() -> dict[str, Any]:
    """Return the initial values of an empty form: the serializer's defaults."""
    values: dict[str, Any] = {"shuffle": True}
    for name, field in SubmissionSerializer().fields.items():
        default = field.default() if callable(field.default) else field.default
        if name not in _NOT_SHOWN and default not in (serializers.empty, None, []):
            values[name] = default.value if isinstance(default, Enum) else default
    return values


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


def validation_errors(validation: Validation) -> dict[str, list[str]]:
    """Return the messages of a failed validation, by form field."""
    is_failed = validation.status == ValidationStatus.FAILED
    if not is_failed or validation.status_code == "validation_lost":
        return {}
    name = validation.error_field.replace(".", "_")
    # Errors of the code or its data are shown where the code was chosen.
    target = name if name in JobForm().fields and name != "code" else "code_from"
    return {target: [validation.status_reason]}


def clone_values(job: Job, user: User) -> dict[str, Any]:
    """Return the form's values for a clone of a job by a user."""
    return values_shown(job_clone_values(job, user))
