"""Validations without a job that match a new job."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from controlplane.core.protocol.selection import (
    BETA_RANGE,
    CONTROL_RANGE,
    SelectionMethod,
    SelectionSpec,
)
from controlplane.core.protocol.tuning import TunableName, TunableRange, TuningSpec
from controlplane.core.protocol.wire import OnNonfinite, TrainingSpec
from controlplane.core.values.lifecycle import ValidationStatus
from jobs.models import Job, Validation
from jobs.selectors.desired_state.state import training_spec
from jobs.submission import ONE_PASS

#: Stands for every selection by losses, which all need the same of a model.
_SELECTS_BY_LOSS = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP)


def validations_passed(job: Job) -> list[Validation]:
    """List the passed validations, without a job, of the code of a job and its owner.

    Those with the most virtual nodes are first, of these the newest ones.
    """
    passed = Validation.objects.filter(
        owner_id=job.owner_id,
        job=None,
        status=ValidationStatus.PASSED,
        code_sha256=job.code_sha256,
    ).select_related("owner")
    return list(passed.order_by("-job_fields__num_virtual_nodes", "-id"))


def validation_matching(job: Job, passed: Sequence[Validation]) -> Validation | None:
    """Find the one of `validations_passed` that matches the computation of a new job.

    The job may have more virtual nodes: its slices are smaller than the validated ones.
    """
    spec = _validated_part(job) if passed else None
    return next(
        (
            one
            for one in passed
            if one.job_fields["num_virtual_nodes"] <= job.num_virtual_nodes
            and _validated_part(one.validated_job) == spec
            and one.validated_job.secrets == job.secrets
        ),
        None,
    )


def _tried_selection(selection: SelectionSpec | None) -> SelectionSpec | None:
    """Return what a validation looks at: losses of single examples, and control epochs."""
    if selection is None or not selection.needs_losses:
        return None
    control_every = None if selection.control_every is None else CONTROL_RANGE[0]
    return dataclasses.replace(_SELECTS_BY_LOSS, control_every=control_every)


def _tried_tuning(tuning: TuningSpec | None) -> TuningSpec | None:
    """Return what a validation looks at: the names of the tunables, and the objective."""
    if tuning is None:
        return None
    space = dict.fromkeys(tuning.names, TunableRange(low=0.0, high=0.5))
    if tuning.tunes_selection:
        space[TunableName.SELECTION_BETA] = TunableRange(low=BETA_RANGE[0], high=BETA_RANGE[1])
    if tuning.batch_size is not None:  # the data has to have as many examples
        space[TunableName.BATCH_SIZE] = tuning.batch_size
    if tuning.parallel:
        return TuningSpec(space=space, parallel=True)
    return TuningSpec(space=space, objective=tuning.objective)


def _validated_part(job: Job) -> TrainingSpec:
    """Return the validated part of a job's spec, except the number of virtual nodes."""
    spec = training_spec(job)
    return dataclasses.replace(
        spec,
        job_id=0,
        name="",
        num_virtual_nodes=1,
        stop=dataclasses.replace(spec.stop, limit=1) if spec.stop.metric else ONE_PASS,
        merges=True,
        on_nonfinite=OnNonfinite.STOP,
        selection=_tried_selection(spec.selection),
        tuning=_tried_tuning(spec.tuning),
    )
