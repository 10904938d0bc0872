"""Validations without a job that match a new job."""

from __future__ import annotations

import dataclasses

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

#: Stands for every selection by losses, which all need the same of a model.
_SELECTS_BY_LOSS = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP)


def validation_matching(job: Job) -> Validation | None:
    """Find the owner's passed validation that matches the computation of a new job.

    The job may have more virtual nodes: its slices are smaller than the validated ones.
    """
    passed = Validation.objects.filter(
        owner_id=job.owner_id,
        job=None,
        status=ValidationStatus.PASSED,
        code_sha256=job.code_sha256,
        job_fields__num_virtual_nodes__lte=job.num_virtual_nodes,
    ).select_related("owner")
    spec = _validated_part(job)
    passed = passed.order_by("-job_fields__num_virtual_nodes", "-id")
    return next(
        (
            one
            for one in passed
            if _validated_part(one.validated_job) == spec
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
        stop=dataclasses.replace(spec.stop, limit=1),
        merges=True,
        on_nonfinite=OnNonfinite.STOP,
        selection=_tried_selection(spec.selection),
        tuning=_tried_tuning(spec.tuning),
    )
