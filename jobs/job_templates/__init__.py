"""Ready jobs for the submission form: real models on data that every machine has.

Each template is a job file as a user would write it. What the form needs besides stands here; the
settings are read from the file's own `DEFAULTS`, so that they exist once.
"""

from __future__ import annotations

import ast
import copy
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from controlplane.core.protocol.wire import StopCondition, StopKind
from jobs.python_text import python_parse

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class JobTemplate:
    """A job file and the submission that suits it.

    Attributes:
        name: the file's name without ".py"; part of addresses and commands.
        title: a few words for the form.
        description: one or two sentences: model, data, what to expect.
        max_accelerators: how many accelerators it can put to good use.
    """

    name: str
    title: str
    description: str
    global_batch_size: int
    num_virtual_nodes: int
    max_accelerators: int
    stop: StopCondition

    @property
    def path(self) -> Path:
        """Give the job file."""
        return FOLDER / f"{self.name}.py"

    @cached_property
    def code(self) -> str:
        """Give the job file's text."""
        return self.path.read_text(encoding="utf-8")

    @property
    def settings(self) -> dict[str, Any]:
        """Give a fresh copy of the job file's `DEFAULTS`, read without running the file."""
        return copy.deepcopy(self._defaults)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        for statement in python_parse(self.code).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="DEFAULTS")], value=value):
                    defaults: dict[str, Any] = ast.literal_eval(value)
                    return defaults
        raise ValueError(f"{self.path.name} has no DEFAULTS = {{...}} at its top level")

    def settings_wrong(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message for every setting that it lacks, or whose value is of another kind."""
        for name, value in given.items():
            if name not in self._defaults:
                near = difflib.get_close_matches(name, self._defaults, n=1)
                known = f"use {near[0]}" if near else f"it has {', '.join(sorted(self._defaults))}"
                yield f"{self.name} has no setting {name[:60]}; {known}."
            elif _kind(value) != _kind(usual := self._defaults[name]):
                yield (
                    f"{name}: {json.dumps(value)[:40]} will not do, as {self.name} takes "
                    f"{_kind(usual)}, such as {json.dumps(usual)[:60]}."
                )


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "true, false or null"
    if isinstance(value, int | float):
        return "a number"
    return "text" if isinstance(value, str) else "a list or object"


def _epochs(limit: int) -> StopCondition:
    return StopCondition(kind=StopKind.EPOCHS, limit=limit)


_ALL = (
    JobTemplate(
        name="digits_cnn",
        title="Digits, convolutional network",
        description=(
            "A small convolutional network on scikit-learn's 1,797 handwritten digits of 8 by 8 "
            "pixels. Reads 98 of 100 new digits after about 30 epochs."
        ),
        global_batch_size=128,
        num_virtual_nodes=8,
        max_accelerators=4,
        stop=_epochs(200),
    ),
    JobTemplate(
        name="tabular",
        title="Tabular data, dense network",
        description=(
            "A dense network with normalisation and AdamW on scikit-learn's breast cancer table "
            "(569 patients, 30 measurements). Tells 97 of 100 new patients right."
        ),
        global_batch_size=32,
        num_virtual_nodes=4,
        max_accelerators=2,
        stop=_epochs(600),
    ),
    JobTemplate(
        name="residual",
        title="Digits, residual network",
        description=(
            "A small residual network with batch normalisation, dropout, L2 penalty and a cosine "
            "learning rate on scikit-learn's handwritten digits. Reads 99 of 100 new digits."
        ),
        global_batch_size=128,
        num_virtual_nodes=8,
        max_accelerators=4,
        stop=_epochs(150),
    ),
    JobTemplate(
        name="char_transformer",
        title="Python source, character transformer",
        description=(
            "A character-level transformer on 300,000 characters of Python's own standard library. "
            "Guesses two of three characters after about six epochs."
        ),
        global_batch_size=64,
        num_virtual_nodes=8,
        max_accelerators=4,
        stop=_epochs(12),
    ),
)

#: Template by name, in the order of the form.
JOB_TEMPLATES: Mapping[str, JobTemplate] = {template.name: template for template in _ALL}


def template_of(code: bytes) -> JobTemplate | None:
    """Return the template that has this code; None for code of one's own."""
    return next((one for one in _ALL if one.code.encode() == code), None)
