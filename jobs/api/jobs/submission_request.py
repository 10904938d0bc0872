"""Submissions as they come: JSON, YAML, forms and uploads, brought into one set of fields."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict
from rest_framework import serializers
from rest_framework.request import Request

from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.tuning import TuningSpec
from controlplane.core.protocol.wire import StopCondition, StopKind, Task, decode, encode
from jobs.api.jobs.submission_fields import SettingsField
from jobs.api.jobs.submission_serializer import STOP_FIELDS, SubmissionSerializer
from jobs.api.parsers import yaml_read
from jobs.exceptions import InvalidInputError, TooLargeError, messages_by_field
from jobs.job_templates import JOB_TEMPLATES
from jobs.selectors.settings_values import settings_with
from jobs.submission import ONE_PASS, Submission

#: Form fields that are not job fields.
_IGNORED = ("csrfmiddlewaretoken",)
_LISTS = ("accepted_kinds", "secrets", "tags")
_INVALID = "The submission is not valid."
#: Prefix of a field that changes one setting.
_SETTING = "settings."
#: Most such fields, as of a form. Each copies the settings, so their time grows with the square.
_CHANGES_LIMIT = 1000
#: Words of Python that would be true in `build` if they were taken as text.
_WORDS = {"True": True, "False": False, "None": None}
_SELECTION_FIELDS = tuple(f"selection_{field.name}" for field in dataclasses.fields(SelectionSpec))
_TUNING_FIELDS = tuple(f"tuning_{field.name}" for field in dataclasses.fields(TuningSpec))
#: Fields that may also be given as one object, such as `stop: {kind: epochs, limit: 3}`.
_OBJECTS = {"stop": "kind and limit", "selection": "method", "tuning": "space"}


def submission_read(
    data: Mapping[str, Any],
    code: bytes | None = None,
    code_name: str | None = None,
    copied: Mapping[str, Any] | None = None,
    serializer_class: type[SubmissionSerializer] = SubmissionSerializer,
) -> Submission:
    """Check a submission.

    Args:
        data: the fields, as JSON values or as a form's text; `stop`, `selection` and `tuning` may
            also be objects.
        code: content of an uploaded file; otherwise `data` has `code` (text) or `template`.
        code_name: the uploaded file's name.
        copied: settings of the job that is submitted again, which may be more than its code reads.

    Raises:
        InvalidInputError: with a message for every invalid field.
    """
    file = None if code is None else (code, code_name)
    context = {"file": file, "copied": copied or {}}
    serializer = serializer_class(data=objects_flattened(data), context=context)
    if not serializer.is_valid():
        raise InvalidInputError(_INVALID, fields=messages_by_field(serializer.errors))
    values = {**serializer.validated_data}
    values |= {name: tuple(values[name]) for name in _LISTS}
    stop = {name.removeprefix("stop_"): values.pop(name, None) for name in STOP_FIELDS}
    values["selection"] = _selection_of(values)
    values["tuning"] = _tuning_of(values)
    if values["task"] is Task.PREDICT:
        return Submission(**values, stop=ONE_PASS)
    if stop["kind"] is not StopKind.METRIC:
        stop = {"kind": stop["kind"], "limit": stop["limit"]}
    return Submission(**values, stop=StopCondition(**stop))


def objects_flattened(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `stop: {kind: ..., limit: ...}` into `stop_kind`, `stop_limit`, as in a form.

    Raises:
        InvalidInputError: `stop`, `selection` or `tuning` is no object, nor JSON text of one, or
            has a field that is there beside it, too.
    """
    values = {str(name): value for name, value in data.items()}
    for prefix, needed in _OBJECTS.items():
        given = _json_or_text(values.pop(prefix, None))
        if isinstance(given, Mapping):
            flat = {f"{prefix}_{name}": value for name, value in given.items()}
            if twice := sorted(flat.keys() & values.keys()):
                raise InvalidInputError.of(
                    **{twice[0]: f"Give it here or in {prefix}, not in both."}
                )
            values |= flat
        elif given not in (None, ""):
            raise InvalidInputError.of(**{prefix: f"Give an object with {needed}."})
    return values


def _selection_of(values: dict[str, Any]) -> dict[str, Any]:
    """Take the `selection_` fields out of valid values; empty if nothing is selected."""
    given = {name.removeprefix("selection_"): values.pop(name) for name in _SELECTION_FIELDS}
    if given["method"] is SelectionMethod.NONE or values["task"] is Task.PREDICT:
        return {}
    return encode(SelectionSpec(**given))


def _tuning_of(values: dict[str, Any]) -> dict[str, Any]:
    """Take the `tuning_` fields out of valid values; empty if nothing is tuned."""
    given = {name.removeprefix("tuning_"): values.pop(name) for name in _TUNING_FIELDS}
    if not given["space"] or values["task"] is Task.PREDICT:
        return {}
    return encode(decode(TuningSpec, given))


def submission_of(
    request: Request, serializer_class: type[SubmissionSerializer] = SubmissionSerializer
) -> Submission:
    """Read and check the submission of a request; see `submission_apart`."""
    return submission_apart(request, (), serializer_class)[0]


def submission_apart(
    request: Request,
    apart: Sequence[str],
    serializer_class: type[SubmissionSerializer] = SubmissionSerializer,
) -> tuple[Submission, dict[str, Any]]:
    """Read and check the submission of a request in any supported format.

    Returns:
        The submission, and the values of the fields `apart`, which are none of a job.

    A request may carry YAML or JSON text of fields as `spec`, also as a file of a multipart
    request, which its own fields override; `settings.NAME` overrides one setting.

    Raises:
        InvalidInputError: see `submission_read`.
        TooLargeError: the code file is too large.
    """
    values, code, name = submission_fields(request)
    spec = values.pop("spec", None)
    if spec is not None:
        text = spec.read() if isinstance(spec, UploadedFile) else str(spec).encode()
        read = yaml_read(text)
        if not isinstance(read, Mapping):
            raise InvalidInputError.of(spec="Give an object of fields.")
        values = objects_flattened(read) | objects_flattened(values)
    others = {one: values.pop(one) for one in apart if one in values}
    values = _settings_changed(objects_flattened(values))
    return submission_read(values, code, name, serializer_class=serializer_class), others


def submission_fields(request: Request) -> tuple[dict[str, Any], bytes | None, str | None]:
    """Read the fields of a request in any supported format, without a check of their values.

    Returns:
        The fields, and content and name of the file `code` of a multipart request.

    Raises:
        InvalidInputError: the body is no object, or a form has a field twice.
        TooLargeError: the code file is too large.
    """
    # Before the body is read: an upload is streamed to a temporary file.
    limit_bytes = settings.CODE_LIMIT_BYTES + settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if int(request.META.get("CONTENT_LENGTH") or 0) > limit_bytes:
        raise TooLargeError(f"At most {limit_bytes} bytes a submission.")
    values = _values(request.data)
    code, name = None, None
    upload = values.pop("code") if isinstance(values.get("code"), UploadedFile) else None
    if upload is not None:
        if (upload.size or 0) > settings.CODE_LIMIT_BYTES:
            raise TooLargeError(f"At most {settings.CODE_LIMIT_BYTES} bytes of code.")
        code, name = upload.read(), upload.name
    return values, code, name


def _settings_changed(values: dict[str, Any]) -> dict[str, Any]:
    """Apply fields `settings.NAME`, each a change of one setting of the spec or the template.

    A value is JSON or a word of Python, or else plain text; text in a JSON body is read the same
    way as in a form.
    """
    template = JOB_TEMPLATES.get(str(values.get("template")))
    return settings_changed({} if template is None else template.settings, values)


def settings_changed(base: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Apply fields `settings.NAME` of `values` to its own settings, or else to `base`.

    Raises:
        InvalidInputError: `settings` itself is no object, or too many are changed.
    """
    changes = {name: values[name] for name in values if name.startswith(_SETTING)}
    if not changes:
        return values
    if _SETTING in changes:
        raise InvalidInputError(_INVALID, fields={"settings": ["Name the setting: settings.NAME."]})
    if len(changes) > _CHANGES_LIMIT:
        text = f"Give at most {_CHANGES_LIMIT} fields settings.NAME; use one object."
        raise InvalidInputError(_INVALID, fields={"settings": [text]})
    base = values.get("settings") or dict(base)
    try:
        merged = SettingsField().run_validation(base)
    except serializers.ValidationError as error:
        messages = [str(message) for message in error.detail]
        raise InvalidInputError(_INVALID, fields={"settings": messages}) from None
    read = {name.removeprefix(_SETTING): _json_or_text(changes[name]) for name in changes}
    others = {name: values[name] for name in values if name not in changes}
    return {**others, "settings": settings_with(merged, read)}


def _json_or_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return _WORDS[value] if value in _WORDS else json.loads(value)
    except (ValueError, RecursionError):
        return value


def _values(data: Any) -> dict[str, Any]:
    if isinstance(data, QueryDict):
        if next(iter(data), "").lstrip().startswith("{"):
            text = "This is JSON, sent as a form: send it as application/json (`curl --json`)."
            raise InvalidInputError(text)
        values: dict[str, Any] = {name: data[name] for name in data if name not in _IGNORED}
        twice = [name for name in values if name not in _LISTS and len(data.getlist(name)) > 1]
        if twice:
            raise InvalidInputError.of(**{twice[0][:60]: "Give this once."})
        lists = {name: data.getlist(name) for name in _LISTS}
        return values | {name: words for name, words in lists.items() if len(words) > 1}
    if not isinstance(data, Mapping):
        raise InvalidInputError("The body must be an object of fields.")
    return dict(data)
