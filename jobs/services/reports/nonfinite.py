"""Events and state of a job that continues training despite a non-finite loss or metric."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite, nonfinite_read
from controlplane.core.protocol.wire import OnNonfinite
from jobs.models import StepReport
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.report_context import ReportContext

#: Non-finite losses and metrics kept per job.
NAMES_LIMIT = 50
#: Events about one non-finite loss or metric; its state may alternate.
TIMES_LIMIT = 10
_TIMES = "num_times"

logger = logging.getLogger(__name__)


def loss_note(context: ReportContext, row: StepReport, reported: Any) -> None:
    """Record from a step report whether the loss is finite, and since when it is not."""
    finite = {} if row.loss is None else {"loss": row.first_step}
    _note(context, _read([reported] if reported is not None else []), finite)


def metrics_note(context: ReportContext, logs: Mapping[str, Any], step: int, reported: Any) -> None:
    """Record which metrics of the newest epoch are not finite."""
    finite = {f"metric:{name}": step for name, value in logs.items() if value is not None}
    _note(context, _read(reported if isinstance(reported, list) else []), finite)


def failure_nonfinite(reported: Any) -> Nonfinite | None:
    """Read a trainer's report of a non-finite value; None if it has another form."""
    return next(iter(_read([reported])), None)


def _read(values: Iterable[Any]) -> list[Nonfinite]:
    found = []
    for value in list(values)[:NAMES_LIMIT]:
        try:
            found.append(nonfinite_read(value))
        except ValueError as error:
            logger.warning("left out of a report: %s", error)
    return found


def _note(context: ReportContext, found: Iterable[Nonfinite], finite: Mapping[str, int]) -> None:
    """Store which values are not finite and which are finite again; add an event per change.

    Args:
        finite: finite losses and metrics, with the step since which each is finite.
    """
    job = context.job
    if not context.is_live or job.on_nonfinite != OnNonfinite.CONTINUE:
        return
    states: dict[str, dict[str, Any]] = dict(job.nonfinite)
    for state in found:
        old = states.get(state.name)
        if old is None and len(states) >= NAMES_LIMIT:
            continue
        states[state.name] = _begun(context, state, old)
    for name, step in finite.items():
        old = states.get(name)
        if old is None or old["until_step"] is not None or step < old["step"]:
            if old is not None and step < old["step"]:
                del states[name]  # the job resumed from an earlier step and repeats this one
            continue
        states[name] = _ended(context, nonfinite_read(old), step, old[_TIMES])
    if states != job.nonfinite:
        job.update_columns(nonfinite=states)


def _begun(context: ReportContext, state: Nonfinite, old: dict[str, Any] | None) -> dict[str, Any]:
    times = old[_TIMES] if old is not None else 0
    is_known = old is not None and (old["until_step"] is None or old["step"] == state.step)
    if not is_known:
        times += 1
        _event_write(context, "nonfinite", f"{state.became_text}; the job trains on", state, times)
    if state.until_step is not None and (old is None or old["until_step"] != state.until_step):
        return _ended(context, state, state.until_step, times)
    return {**encode(state), _TIMES: times}


def _ended(context: ReportContext, state: Nonfinite, step: int, times: int) -> dict[str, Any]:
    over = dataclasses.replace(state, until_step=step)
    _event_write(context, "finite_again", over.again_text, over, times)
    return {**encode(over), _TIMES: times}


def _event_write(
    context: ReportContext, kind: str, text: str, state: Nonfinite, times: int
) -> None:
    if times > TIMES_LIMIT:
        return
    if times == TIMES_LIMIT and kind == "finite_again":
        text += f". That was the case {times} times; from now on it is not recorded any more"
    event_add(kind, text, now=context.now, job=context.job, data=encode(state))
