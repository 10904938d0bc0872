"""Forms of the pages; serializers and services validate the input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import password_validators_help_texts
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from rest_framework import serializers

from controlplane.core.protocol.wire import StopKind, Task
from controlplane.core.values.lifecycle import ValidationStatus
from controlplane.core.values.tiers import Tier
from frontend.sweep_form import SWEEP_FIELDS, SweepForm
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.exceptions import InvalidInputError
from jobs.job_templates import JOB_TEMPLATES, JobTemplate
from jobs.models import ChannelKind, Job, Validation
from jobs.services.cluster.accounts import password_confirm
from jobs.services.cluster.api_tokens import LIFETIME_DAYS_LIMIT
from jobs.services.lifecycle.notifications import CLUSTER_EVENTS, JOB_EVENTS
from jobs.services.notifications.channels import (
    ADDRESS_LIMIT,
    DEFAULT_EVENTS,
    NAME_LIMIT,
    kinds_available,
)
from jobs.services.submission.rows import job_clone_values
from jobs.submission import prediction_values
from jobs.sweep_space import DEFAULT_MAX_RUNNING

_NOT_SHOWN = ("template", "code", "code_name", "stop", "selection", "tuning")
#: Fields shown as JSON.
JSON_FIELDS = ("settings", "tuning_space")
#: Sections of the page with their fields; all others are those of the training.
_SECTIONS = {
    "start": ("forked_from", "checkpoint"),
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
    "tuning": tuple(n for n in map(str, SubmissionSerializer().fields) if n.startswith("tuning_")),
    "metric": ("stop_metric", "stop_target", "stop_higher_is_better"),
    "resources": (
        *("min_accelerators", "max_accelerators", "tier", "priority"),
        *("project", "accepted_kinds", "allow_mixed_kinds"),
    ),
    "labels": ("tags", "note"),
    "sweep": SWEEP_FIELDS,
}


class TickedKindsField(forms.Field):
    """Ticked kinds of accelerators as text, which the serializer validates."""

    widget = forms.CheckboxSelectMultiple

    def clean(self, value: Sequence[str] | None) -> str:
        return ", ".join(value or ())


def _form_field(name: str, field: serializers.Field) -> forms.Field:
    """Return the widget of a serializer's field; the serializer validates the text."""
    options: dict[str, Any] = {"label": field.label, "help_text": field.help_text}
    options["required"] = False
    if name == "accepted_kinds":
        return TickedKindsField(**options | {"help_text": "None ticked means any."})
    # None has `autocomplete="off"`: a browser that comes back would fill in the other fields alone.
    attributes: dict[str, Any] = {"placeholder": "none"} if name in ("tags", "secrets") else {}
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


class JobForm(SweepForm):
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

    def standing_limit(self, ceiling: int, tiers: Sequence[Tier]) -> None:
        """Show the highest priority and the tiers that the user may give."""
        field = self.fields["tier"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(tier.value, tier.value) for tier in tiers]
        self.fields["priority"].widget.attrs["max"] = ceiling
        self[
            "priority"
        ].help_text = f"1 to {ceiling}; inside a tier, a weight or an order, by policy."

    def project_choices(self, names: Sequence[str]) -> None:
        """Offer the projects to which the user may submit."""
        choices = [("", "none"), *((name, name) for name in names)]
        self.fields["project"].widget = forms.Select(choices=choices)

    def kind_choices(self, kinds: Sequence[str]) -> None:
        """Offer kinds of accelerators, and others that are chosen already."""
        widget = self.fields["accepted_kinds"].widget
        assert isinstance(widget, forms.CheckboxSelectMultiple)
        chosen = widget.format_value(self["accepted_kinds"].value())
        absent = [(kind, f"{kind} (no node has it)") for kind in chosen if kind not in kinds]
        widget.choices = [*((kind, kind) for kind in kinds), *absent]

    def checkpoint_choices(self, choices: Sequence[tuple[str, str]]) -> None:
        """Offer the states of the job that this one starts from."""
        self.fields["checkpoint"].widget = forms.Select(choices=choices)

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
            if name not in ("code", "code_from", *SWEEP_FIELDS)
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
            target = target.replace("sweep.", "sweep_", 1)
            for message in messages:
                if target in self.fields:
                    self.add_error(target, message)
                else:
                    self.add_error(None, f"{name}: {message}")


class LoginForm(AuthenticationForm):
    """A name and a password."""

    def confirm_login_allowed(self, user: Any) -> None:
        """Refuse passwords of all but superusers where the site wants that."""
        super().confirm_login_allowed(user)
        if not settings.HAS_PASSWORD_LOGIN and not getattr(user, "is_superuser", False):
            text = f"Passwords let only superusers in here. Log in with {settings.OIDC_TITLE}."
            raise ValidationError(text, code="password_login_off")


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


_CHANNEL_KINDS = {
    ChannelKind.WEBHOOK: "webhook (signed JSON)",
    ChannelKind.EMAIL: "e-mail",
    ChannelKind.CHAT: "chat",
}


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

    def __init__(self, *data: Any, has_password: bool) -> None:
        super().__init__(*data)
        if not has_password:
            del self.fields["password"]

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


class ChannelForm(forms.Form):
    """A notification channel: its address, and the events that are sent there."""

    name = forms.CharField(
        label="Name",
        max_length=NAME_LIMIT,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    kind = forms.ChoiceField(label="Send by")
    address = forms.CharField(
        label="Address",
        max_length=ADDRESS_LIMIT,
        help_text="Webhook: https://…; e-mail: the mailbox; chat: see below.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    events = forms.MultipleChoiceField(
        label="When a job",
        choices=list(JOB_EVENTS.items()),
        initial=DEFAULT_EVENTS,
        widget=forms.CheckboxSelectMultiple,
        required=False,
    )
    is_cluster_wide = forms.BooleanField(
        label="Jobs of everybody",
        help_text="All jobs and nodes instead of your own jobs.",
        required=False,
    )
    cluster_events = forms.MultipleChoiceField(
        label="With jobs of everybody, also when",
        choices=list(CLUSTER_EVENTS.items()),
        widget=forms.CheckboxSelectMultiple,
        required=False,
    )

    def __init__(self, data: Any = None, *, is_admin: bool) -> None:
        super().__init__(data)
        field = self.fields["kind"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(kind.value, _CHANNEL_KINDS[kind]) for kind in kinds_available()]
        if not is_admin:
            del self.fields["is_cluster_wide"], self.fields["cluster_events"]

    def values(self) -> dict[str, Any]:
        """Return the values of a valid form, in the form of `channel_create`."""
        read = dict(self.cleaned_data)
        is_cluster_wide = read.setdefault("is_cluster_wide", False)
        read["events"] += read.pop("cluster_events", []) if is_cluster_wide else []
        return read


def values_shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a submission's values to the values of the form's widgets."""
    shown = dict(values)
    for name in JSON_FIELDS:
        if isinstance(shown.get(name), dict):
            shown[name] = json.dumps(shown[name], indent=2, ensure_ascii=False)
    if isinstance(kinds := shown.get("accepted_kinds"), str):
        shown["accepted_kinds"] = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    for name in ("secrets", "tags"):
        if isinstance(shown.get(name), list | tuple):
            shown[name] = ", ".join(map(str, shown[name]))
    return shown


def blank_values() -> dict[str, Any]:
    """Return the initial values of an empty form: the serializer's defaults."""
    values: dict[str, Any] = {"shuffle": True, "sweep_max_running": DEFAULT_MAX_RUNNING}
    for name, field in SubmissionSerializer().fields.items():
        if field.default is serializers.empty or name in (*_NOT_SHOWN, "tuning_space"):
            continue
        default = field.default() if callable(field.default) else field.default
        if default not in (None, []):
            values[name] = default.value if isinstance(default, Enum) else default
    return values


def template_values(template: JobTemplate) -> dict[str, Any]:
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
