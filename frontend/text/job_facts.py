"""Validation facts of a job, in words and units for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontend.templatetags.pages import file_size, seconds_text, separated

#: Facts shown elsewhere on the page.
_ELSEWHERE = frozenset({"selection", "summary", "warnings"})
_LABELS = {
    "num_parameters": "Parameters",
    "num_trainable_parameters": "Trainable parameters",
    "num_examples": "Training examples",
    "num_validation_examples": "Validation examples",
    "steps_per_epoch": "Steps per epoch",
    "state_bytes": "Size of the state",
    "build_s": "Build time",
    "trace_s": "Tracing time",
    "slice_s": "Time per slice",
    "slice_examples": "Examples per slice",
    "data_fingerprint": "Data fingerprint",
    "is_merged": "Virtual nodes run together",
    "not_merged_because": "Run one by one because",
    "metrics": "Metrics",
    "outputs": "Outputs",
}
_LONGEST = 24


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the specification; `whole` is the full text if `text` was shortened."""

    label: str
    text: str
    whole: str = ""


def shown_facts(facts: Mapping[str, Any]) -> list[Fact]:
    """Turn a validation's facts into lines; empty facts are left out."""
    return [
        _fact(name, value)
        for name, value in facts.items()
        if name not in _ELSEWHERE and value not in (None, "", [], {})
    ]


def _memory_fact(measured: Mapping[str, Any]) -> Fact:
    """Describe a step's memory beyond the process itself: a base, and an amount per example."""
    base, each = measured.get("base_bytes"), measured.get("bytes_per_example")
    if not isinstance(base, int | float) or not isinstance(each, int | float):
        return Fact("Memory of a step", "not measured")
    return Fact("Memory of a step", f"{file_size(base)} + {file_size(each)} per example")


def _fact(name: str, value: Any) -> Fact:
    label = _LABELS.get(name) or name.replace("_", " ").capitalize()
    if isinstance(value, bool):
        return Fact(label, "yes" if value else "no")
    if isinstance(value, int | float) and name.endswith("_bytes"):
        return Fact(label, file_size(value))
    if isinstance(value, int | float) and name.endswith("_s"):
        return Fact(label, seconds_text(value))
    if isinstance(value, int):
        return Fact(label, separated(value))
    if name == "memory" and isinstance(value, Mapping):
        return _memory_fact(value)
    if isinstance(value, list):
        return Fact(label, ", ".join(map(str, value)))
    text = str(value)
    if len(text) > _LONGEST and " " not in text:
        return Fact(label, text[:12] + "…", text)
    return Fact(label, text)
