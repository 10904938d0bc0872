"""All public classes of Keras that a job can train with, and the cases of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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


def module_cases(module: str) -> list[Case]:
    """List the cases of a public module's classes."""
    classes = public_classes(module)
    cases = [case for file in MODULES[module] for case in cases_of(file.all_cases)]
    return [case for case in cases if case.subject in classes]


@cache
def cases_of(make: Callable[[], list[Case]]) -> list[Case]:
    """Make a file's cases once."""
    return make()


def all_cases() -> list[Case]:
    """List the cases of all classes."""
    files = dict.fromkeys(file for files in MODULES.values() for file in files)
    return [case for file in files for case in cases_of(file.all_cases)]
