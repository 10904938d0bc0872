"""Which files a node may fetch and store: those of jobs that have something on it, no others."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.core.lifecycle import GenerationPhase, JobStatus
from jobs.exceptions import ConflictError, NotFoundError
from jobs.models import Allocation, Artifact, Generation, Job, Node

_HIDDEN = "This node has nothing to do with such a job."


def code_for_node(node: Node, job_id: int) -> Job:
    """Find a job whose code the node may read.

    Raises:
        NotFoundError: the job has neither a trainer nor a validation on the node.
    """
    is_validating = Job.objects.filter(
        id=job_id, status=JobStatus.VALIDATING, validation_node=node
    ).exists()
    if not is_validating and not _tenures(node, job_id).exists():
        raise NotFoundError(_HIDDEN)
    return Job.objects.get(id=job_id)


def checkpoint_for_node(node: Node, job_id: int) -> Artifact:
    """Find a job's newest checkpoint.

    Raises:
        NotFoundError: the job has no trainer on the node, or no checkpoint.
    """
    if not _tenures(node, job_id).exists():
        raise NotFoundError(_HIDDEN)
    artifact = Artifact.objects.filter(job_id=job_id, name="checkpoint.npz").first()
    if artifact is None:
        raise NotFoundError("This job has no checkpoint.")
    return artifact


def upload_target(node: Node, job_id: int, slot: int, generation: int) -> Job:
    """Find the job that a trainer of `slot` may leave a file for.

    Raises:
        NotFoundError: no trainer of the job in that slot is on the node.
        ConflictError: the trainer is not wanted any more, or the generation is over.
    """
    tenure = _tenures(node, job_id).filter(slot=slot).select_related("job").first()
    if tenure is None:
        raise NotFoundError(_HIDDEN)
    is_open = Generation.objects.filter(
        job_id=job_id,
        number=generation,
        phase__in=[GenerationPhase.ACTIVE, GenerationPhase.SWITCHING],
    ).exists()
    if tenure.stop_asked_at is not None or not is_open:
        raise ConflictError(
            f"Generation {generation} is over, or slot {slot} was told to stop.",
            code="stale_generation",
        )
    return tenure.job


def _tenures(node: Node, job_id: int) -> QuerySet[Allocation]:
    return Allocation.objects.filter(job_id=job_id, accelerator__node=node, released_at=None)
