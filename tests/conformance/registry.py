"""All public classes of Keras that a job can train with, and the cases of each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType

import keras

from tests.conformance import (
    image_cases,
    layer_cases,
    loss_cases,
    metric_cases,
    optimizer_cases,
    sequence_cases,
    state_cases,
    value_cases,
)
from tests.conformance.cases import Case

#: Public module -> the files whose tables hold its cases; a class that is missing goes there.
MODULES: Mapping[str, tuple[ModuleType, ...]] = {
    "layers": (layer_cases, state_cases, sequence_cases, image_cases),
    "losses": (loss_cases,),
    "metrics": (metric_cases,),
    "optimizers": (optimizer_cases,),
    "optimizers.schedules": (optimizer_cases,),
    "regularizers": (value_cases,),
    "constraints": (value_cases,),
    "initializers": (value_cases,),
    "dtype_policies": (value_cases,),
}
Classes = dict[str, type]


def public_classes(module: str) -> Classes:
    """Find the classes of a public module of Keras; of several names for one, the class's own."""
    owner = keras
    for part in module.split("."):
        owner = getattr(owner, part)
    found = {value for _, value in inspect.getmembers(owner, inspect.isclass)}
    return {value.__name__: value for value in sorted(found, key=lambda each: each.__name__)}


@cache
def module_cases(module: str) -> list[Case]:
    """List the cases of a public module's classes."""
    classes = public_classes(module)
    return [
        replace(case, module=module)
        for file in MODULES[module]
        for case in file.all_cases()
        if case.subject in classes
    ]


def all_cases() -> list[Case]:
    """List the cases of all classes."""
    return [case for module in MODULES for case in module_cases(module)]
