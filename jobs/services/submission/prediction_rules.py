"""Rules for submissions of prediction jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib.auth.models import User

from controlplane.core.protocol.wire import StopCondition, StopKind, Task
from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import InvalidInputError
from jobs.models import Artifact, Job

#: One pass over the data.
ONE_PASS = StopCondition(kind=StopKind.EPOCHS, limit=1)
MODEL_FILE = "model.keras"
JOB_ID_LIMIT = 2**63 - 1

_NOT_FOR_PREDICTION = {
    "stop_kind": "A job that predicts ends with its data; leave this out.",
    "stop_limit": "A job that predicts ends with its data; leave this out.",
    "stop_metric": "A job that predicts has no metrics; leave this out.",
    "stop_target": "A job that predicts has no metrics; leave this out.",
    "shuffle": "Predictions come in the order of the data; leave this out or say false.",
    "allow_mixed_kinds": "A job that predicts runs on one kind; leave this out or say false.",
    "on_nonfinite": "A job that predicts has no loss; leave this out.",
    "batch_size_min": "The batch of a job that predicts is fixed; leave this out.",
    "batch_size_max": "The batch of a job that predicts is fixed; leave this out.",
}
_OFF = ("", None, False, "false", "False", "off", "no", "0", 0)


def task_errors(
    task: Task, source_job: int | None, values: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for every field that does not fit the task."""
    if task is Task.TRAIN:
        if source_job is not None:
            yield "source_job", "Only a job with task: predict takes the model of another job."
        return
    for name, message in _NOT_FOR_PREDICTION.items():
        if values.get(name) not in _OFF:
            yield name, message


def prediction_values(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Drop from a training job's values those that a prediction cannot have, unless `given`."""
    return {k: v for k, v in values.items() if k in given or k not in _NOT_FOR_PREDICTION}


def source_find(user: User, source_job: int | None) -> Artifact | None:
    """Return the model of the source job; None without a source job.

    Raises:
        InvalidInputError: the user has no such job, or the job has no model.
    """
    if source_job is None:
        return None
    job = Job.objects.filter(id=source_job, owner=user, is_draft=False).first()
    if job is None:
        raise InvalidInputError.of(source_job=f"You have no job {source_job}.")
    model = job.artifacts.filter(name=MODEL_FILE).first()
    if job.status != JobStatus.FINISHED or model is None:
        raise InvalidInputError.of(
            source_job=f"Job {source_job} is {job.status} and has left no model; choose one that "
            "has finished its training."
        )
    return model
