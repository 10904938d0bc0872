"""Conversion of a request, in any supported format, to a submission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict
from rest_framework.request import Request

from jobs.api.parsers import yaml_read
from jobs.exceptions import InvalidInputError, TooLargeError
from jobs.services.submission.rules import Submission, submission_read

#: Form fields that are not job fields.
_IGNORED = ("csrfmiddlewaretoken",)


def submission_of(request: Request) -> Submission:
    """Read and check a submission.

    A multipart request may carry the code as a file `code`, and a YAML or JSON file `spec` with
    fields that the request's own fields override.

    Raises:
        InvalidInputError: see `submission_read`.
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
    spec = values.pop("spec", None)
    if spec is not None:
        text = spec.read() if isinstance(spec, UploadedFile) else str(spec).encode()
        read = yaml_read(text)
        if not isinstance(read, Mapping):
            raise InvalidInputError.of(spec="Give an object of fields.")
        values = {**read, **values}
    return submission_read(values, code, name)


def _values(data: Any) -> dict[str, Any]:
    if isinstance(data, QueryDict):
        values: dict[str, Any] = {name: data[name] for name in data if name not in _IGNORED}
        kinds = data.getlist("accepted_kinds")
        if len(kinds) > 1:
            values["accepted_kinds"] = kinds
        return values
    if not isinstance(data, Mapping):
        raise InvalidInputError("The body must be an object of fields.")
    return dict(data)
