"""Submissions as the site takes them: fields, a spec file, a code file."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from virtualflow.transport import bad_input, finite_check

#: Sites take less; a larger file is a mistake, and is not read.
FILE_LIMIT_BYTES = 64 * 1024**2
_SETTING = "settings."
#: Objects whose parts are fields of their own, such as `stop_limit`.
_OBJECTS = ("stop", "selection", "tuning")
_KEY = re.compile(r"[\x20-\x7e]{1,120}")

StrPath = str | os.PathLike[str]
Spec = StrPath | Mapping[str, Any]


def submission_content(
    spec: Spec | None, code: StrPath | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a submission as arguments of `Transport.request`.

    Args:
        spec: fields, or a YAML or JSON file of fields.
        code: a `.py` or `.zip` file.
        fields: override those of `spec`; `settings.NAME`, `stop.NAME`, `selection.NAME` and
            `tuning.NAME` override a part.

    Raises:
        VirtualFlowError: a file cannot be read, or a value is no JSON.
    """
    values: dict[str, Any] = {}
    for name, value in {**(spec if isinstance(spec, Mapping) else {}), **fields}.items():
        whole, _, part = name.partition(".")
        if name in _OBJECTS and isinstance(value, Mapping):
            values |= {f"{name}_{inner}": value[inner] for inner in value}
        elif name.startswith(_SETTING) and isinstance(value, str):
            # The site reads text as JSON where it can: "5" in quotes stays text.
            values[name] = json.dumps(value)
        else:
            values[f"{whole}_{part}" if part and whole in _OBJECTS else name] = value
    if spec is not None and not isinstance(spec, Mapping):
        values["spec"] = _text(Path(spec))
    if code is None:
        return {"json": _checked(values)}
    data = {name: _form_value(name, value) for name, value in values.items()}
    path = Path(code)
    return {"data": data, "files": {"code": (path.name, file_read(path, "code"))}}


def key_headers(idempotency_key: str | None) -> dict[str, str]:
    """Return the header of a key, or of a new one.

    Raises:
        VirtualFlowError: the key is empty, too long, or no printable ASCII.
    """
    key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
    if not _KEY.fullmatch(key):
        raise bad_input("idempotency_key", "Give 1 to 120 printable ASCII characters.")
    return {"Idempotency-Key": key}


def file_read(path: Path, field: str) -> bytes:
    """Read a file of a limited size.

    Raises:
        VirtualFlowError: it cannot be read, or is too large; the error names `field`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise bad_input(field, f"{path}: {error.strerror or error}.") from None
    except ValueError:  # a zero byte: text instead of a path
        raise bad_input(field, "Give the path of a file.") from None
    if len(content) > FILE_LIMIT_BYTES:
        raise bad_input(field, f"{path} has more than {FILE_LIMIT_BYTES} bytes.")
    return content


def _text(path: Path) -> str:
    try:
        return file_read(path, "spec").decode()
    except UnicodeDecodeError:
        raise bad_input("spec", f"{path} is no text in UTF-8.") from None


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    try:
        finite_check(values)
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise bad_input("spec", "Give text that is valid in UTF-8.") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_input("spec", f"Give values of JSON: {error}.") from None
    return values


def _form_value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not name.startswith(_SETTING):
        if value is None:
            return ""  # as null of JSON: the template's value, or the default
        if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            return ",".join(value)  # accelerator kinds
    return json.dumps(_checked({name: value})[name])
