"""The page that says what of Keras is supported, written from the outcomes of all cases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tests.conformance.architecture_cases import all_cases as architecture_cases
from tests.conformance.cases import Case, Outcome, Result
from tests.conformance.registry import MODULES, module_cases, public_classes

OUTCOMES_FILE = Path(__file__).parent / "outcomes.json"
PAGE_FILE = Path(__file__).parents[2] / "docs" / "keras-support.md"
HEAD = """# What of Keras is supported

Written by `python -m benchmarks.conformance` with Keras {version}; edits are lost, and a test finds
them. Each public class has cases in `tests/conformance` that exercise its options. A case is
*equal* when a small model with it trains 20 steps

- on one virtual node like `fit` with the same order of the data and the same random numbers,
- on four virtual nodes like a plain loop of gradient accumulation over the same slices,
- on 1 and on 3 trainers to the same bits,

and *refused* when the validation of a submission names the class, the reason and what to do
instead. Weights, optimizer state and logs may differ by {tolerance:g} of the largest change, which
is what rounding makes of sums in another order; where more is allowed, the note says why.

{equal} of {total} cases are equal, {refused} are refused, {failed} fail.

Batch statistics are those of a virtual node's slice, as they are those of a replica's slice in any
data-parallel training.
"""
CONTROL = "after 20, `fit` from first weights moved by one unit in their last place differs from \
`fit` by {:.1f} times the largest change"
PRIVATE = """
## Private parts of Keras

All stand in `agents/trainer/model/keras_private.py` and `compiled_losses.py` beside it:

| part | what for |
|---|---|
| `Model._symbolic_build` | variables of metrics, losses and optimizer before the first step |
| `Model._call_has_training_arg` | pass `training` only to a `call` that takes it, as `fit` does |
| `Model._compute_loss` | `compute_loss` of the job, by whichever signature it has |
| `Model._aggregate_additional_loss` | arrays given to `add_loss`, which are sums |
| `Model._loss_tracker` | the mean loss of the logs, weighted by examples |
| `Model._compile_loss`, `_flat_losses` | reductions and masks of losses; scale sums |
| `Model._compile_metrics` | name the metric that cannot be added up |
| `Model._flatten_layers` | look at all layers, however deep |
| `Optimizer._trainable_variables` | find weights that were frozen or unfrozen after `compile` |
| `Variable._value` | take gradients by weights that a step of the job's own has updated |
| `Optimizer._learning_rate` | scale the rate with the batch size |
| `Optimizer._iterations` | compare losses as after many updates, gathered gradients or not |
| `keras.src.backend.get_keras_mask` | weight slices by the places that masks leave |
| `keras.src` `global_seed_generator` | its state is part of a job's state |
| `tf.data.Dataset._functions`, `_inputs` | warn of random numbers in the functions of a data set |
"""


def outcomes_read() -> dict[str, Outcome]:
    """Read the outcomes that are kept, by the name of the case."""
    if not OUTCOMES_FILE.exists():
        return {}
    stored = json.loads(OUTCOMES_FILE.read_text(encoding="utf-8"))
    return {name: Outcome.from_json(values) for name, values in stored.items()}


def outcomes_write(outcomes: Mapping[str, Outcome]) -> None:
    """Keep outcomes."""
    kept = {name: outcomes[name].to_json() for name in sorted(outcomes)}
    OUTCOMES_FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def class_outcome(cases: Sequence[Case], outcomes: Mapping[str, Outcome]) -> tuple[str, str]:
    """Give outcome and note of a class from those of its cases."""
    found = [(case, outcomes[case.key]) for case in cases if case.key in outcomes]
    results = {outcome.result for _, outcome in found}
    if len(found) < len(cases):
        return "not tried", _note(found)
    if Result.FAILED in results:
        return "failed", _note(found)
    if results == {Result.EQUAL}:
        return "equal", _note(found)
    return ("refused" if results == {Result.REFUSED} else "equal, with exceptions"), _note(found)


def _note(found: Sequence[tuple[Case, Outcome]]) -> str:
    notes = []
    for case, outcome in found:
        name = f"{case.name}: " if case.name else ""
        if outcome.result is Result.REFUSED:
            notes.append(f"{name}refused (`{outcome.code}`)")
        elif outcome.result is Result.FAILED:
            notes.append(f"{name}fails")
        elif outcome.control:
            notes.append(f"{name}{case.note}; {CONTROL.format(outcome.control)}")
        elif case.note:
            notes.append(f"{name}{case.note}")
    return "; ".join(notes)


def figures(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Count outcomes: of cases, of classes and of architectures."""
    counts = {result.value: 0 for result in Result}
    for outcome in outcomes.values():
        counts[outcome.result] += 1
    classes = [
        class_outcome(cases, outcomes)[0]
        for module in MODULES
        for cases in _by_class(module).values()
    ]
    networks = [outcomes.get(case.key) for case in architecture_cases()]
    judged = [each for each in networks if each is None or each.result is not Result.REFUSED]
    equal = [each for each in judged if each is not None and each.result is Result.EQUAL]
    return {
        "total": len(outcomes),
        **counts,
        "classes": len(classes),
        "equal_share": round(sum(each.startswith("equal") for each in classes) / len(classes), 4),
        "architectures_equal": round(len(equal) / max(1, len(judged)), 4),
    }


def _by_class(module: str) -> dict[str, list[Case]]:
    cases = module_cases(module)
    return {
        name: [case for case in cases if case.subject == name] for name in public_classes(module)
    }


def page_text(outcomes: Mapping[str, Outcome]) -> str:
    """Write the page."""
    counted: dict[str, Any] = figures(outcomes)
    tolerance = 2e-5
    parts = [HEAD.format(version=keras.__version__, tolerance=tolerance, **counted)]
    for module in MODULES:
        parts.append(f"\n## keras.{module}\n\n| class | outcome | note |\n|---|---|---|\n")
        for name, cases in _by_class(module).items():
            outcome, note = class_outcome(cases, outcomes)
            parts.append(f"| {name} | {outcome} | {note} |\n")
    parts.append("\n## Whole networks\n\n| network | outcome | note |\n|---|---|---|\n")
    for case in architecture_cases():
        outcome, note = class_outcome([case], outcomes)
        parts.append(f"| {case.key} | {outcome} | {note} |\n")
    parts.append(PRIVATE)
    return "".join(parts)
