"""Access of nodes to files: only those of jobs with a trainer or validation on the node."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.core.protocol.prediction_parts import part_of
from controlplane.core.protocol.reported_values import GENERATION_LIMIT
from controlplane.core.protocol.wire import Task
from controlplane.core.values.lifecycle import OPEN_PHASES, ValidationStatus
from jobs.exceptions import ConflictError, NotFoundError
from jobs.models import Allocation, Artifact, Generation, Job, Node
from jobs.selectors.forks import ADOPTED_FILE

_HIDDEN = "This node has nothing to do with such a job."


def code_for_node(node: Node, job_id: int | None = None, validation_id: int | None = None) -> Job:
    """Find a job whose code the node may read, by its id or that of its validation.

    A job that is not submitted is unsaved.

    Raises:
        NotFoundError: the job has no trainer on the node, or the validation does not run there.
    """
    if validation_id is not None:
        running = node.validations.filter(id=validation_id, status=ValidationStatus.RUNNING)
        validation = running.select_related("job", "owner").first()
        if validation is not None:
            return validation.validated_job
    elif job_id is not None and _allocations(node, job_id).exists():
        job = Job.objects.get(id=job_id)
        if job.files_deleted_at is None:
            return job
    raise NotFoundError(_HIDDEN)


def checkpoint_for_node(
    node: Node, job_id: int | None = None, validation_id: int | None = None
) -> Artifact:
    """Find a job's newest checkpoint, or the state that a validated job starts from.

    Raises:
        NotFoundError: the job has no trainer or validation on the node, or no checkpoint.
    """
    job = code_for_node(node, job_id, validation_id)
    checkpoints = Artifact.objects.filter(job_id=job.pk, name="checkpoint.npz")
    if not job.pk:  # it is not submitted, and has no file of its own
        checkpoints = Artifact.objects.filter(
            job=job.forked_from, sha256=job.fork.get("sha256") or "none"
        )
    artifact = checkpoints.first()
    if artifact is None:
        raise NotFoundError("This job has no checkpoint.")
    return artifact


def adopted_state(job: Job) -> Artifact:
    """Find the state of a trial that a job goes on with.

    Raises:
        NotFoundError: there is none.
    """
    artifact = Artifact.objects.filter(job=job, name=ADOPTED_FILE).first()
    if artifact is None:
        raise NotFoundError("This job adopts no state.")
    return artifact


def source_model(job: Job) -> Artifact:
    """Find the model that a prediction job uses, made by another job.

    Raises:
        NotFoundError: the model is gone.
    """
    models = Artifact.objects.filter(name="model.keras", sha256=job.source_sha256)
    artifact = models.filter(job=job.source_job).first()
    if artifact is None:
        raise NotFoundError("The model of its source job is not there.")
    return artifact


def upload_target(node: Node, job_id: int, slot: int, generation: int, name: str) -> Job:
    """Find the job for which a trainer of `slot` may upload the file `name`.

    Parts of predictions do not depend on trainer or generation, so they are accepted at any time.

    Raises:
        NotFoundError: the job has no trainer in this slot on the node.
        ConflictError: the trainer was ordered to stop, or the generation has ended.
    """
    allocation = _allocations(node, job_id).filter(slot=slot).select_related("job").first()
    if allocation is None:
        raise NotFoundError(_HIDDEN)
    if part_of(name) is not None and allocation.job.task == Task.PREDICT:
        return allocation.job
    # A database restored from a backup does not know the newest ones.
    known = Generation.objects.filter(job_id=job_id, number=generation)
    is_over = known.exclude(phase__in=OPEN_PHASES).exists()
    is_open = 0 <= generation < GENERATION_LIMIT and not is_over
    if allocation.stop_requested_at is not None or not is_open:
        raise ConflictError(
            f"Generation {generation} is over, or slot {slot} was told to stop.",
            code="stale_generation",
        )
    return allocation.job


def _allocations(node: Node, job_id: int) -> QuerySet[Allocation]:
    return Allocation.objects.filter(job_id=job_id, accelerator__node=node, released_at=None)
