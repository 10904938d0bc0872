"""Facts of a model for the report, its summary as text among them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from agents.trainer.model.state import ModelState
from agents.trainer.validate.model_checks import metric_names
from controlplane.core.protocol.plain_text import plain_text

#: Widths to try, in characters. Keras gives each column a fixed share of the width, so the
#: smallest sufficient width is easiest to read.
WIDTHS = (88, 120, 160, 220, 320, 480)
_LIMIT = 50_000
_CUT_MARK = "…"


def model_facts(model: keras.Model, is_trained: bool = True) -> dict[str, Any]:
    """Return the facts of a built model for the report; fewer for a prediction job."""
    try:
        summary = model_summary(model)
    except Exception as error:  # as of an Embedding that is built without a shape, and trains
        summary = f"Keras cannot describe the model: {type(error).__name__}: {error!s:.300}"
    facts: dict[str, Any] = {
        "num_parameters": _num_elements(model.variables),
        "state_bytes": ModelState(model, is_trained).num_bytes,
        "summary": plain_text(summary),
    }
    if is_trained:
        facts["num_trainable_parameters"] = _num_elements(model.trainable_variables)
        facts["metrics"] = metric_names(model)
    return facts


def model_summary(model: keras.Model) -> str:
    """Render a model's summary at the smallest width at which every layer takes one line.

    No column or cell is truncated; beyond 50,000 characters whole lines are left out.
    """
    widest = _render(model, WIDTHS[-1])
    texts = (_render(model, width) for width in WIDTHS[:-1])
    wanted = widest.count("\n")
    fitting = (text for text in texts if _CUT_MARK not in text and text.count("\n") == wanted)
    summary = next(fitting, widest)
    if len(summary) <= _LIMIT:
        return summary
    kept = summary[:_LIMIT].rpartition("\n")[0]
    return f"{kept}\n{summary.count(chr(10)) - kept.count(chr(10))} more lines"


def _num_elements(variables: Sequence[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def _render(model: keras.Model, width: int) -> str:
    lines: list[str] = []
    with _terminal_width(width):
        model.summary(print_fn=lambda text, **_: lines.append(text), line_length=width)
    return "\n".join(line.rstrip() for line in plain_text("\n".join(lines)).rstrip().split("\n"))


@contextmanager
def _terminal_width(width: int) -> Iterator[None]:
    """Set the terminal width inside the block; Keras drops table columns that do not fit."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
