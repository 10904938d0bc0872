"""Body of the submission page's form, as a browser sends it."""

from __future__ import annotations

from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile

from frontend.forms import all_template_values
from tests.frontend.world import CODE

TEMPLATE = "digits_cnn"


def form_values(**changes: Any) -> dict[str, Any]:
    """Give what a browser sends for the first template, changed."""
    base = {
        name: "on" if value is True else value
        for name, value in all_template_values()[f"template:{TEMPLATE}"].items()
        if value not in (None, False)
    }
    base |= {"code_from": f"template:{TEMPLATE}", "priority": "100", "min_accelerators": "1"}
    base |= {"seed": "7", "reduction": "exact", "shuffle": "on", "do": "submit"}
    return {name: value for name, value in (base | changes).items() if value is not None}


def code_upload(content: bytes = CODE, name: str = "mine.py") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content)
