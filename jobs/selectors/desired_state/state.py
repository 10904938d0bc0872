"""Desired state of a node, derived from the rows alone: the response to an agent's long poll."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import F

from controlplane.core.protocol.codec import is_nested_deeper
from controlplane.core.protocol.node_messages import WantedState, WantedTrainer, WantedValidation
from controlplane.core.protocol.wire import (
    OnNonfinite,
    ReductionMode,
    StopCondition,
    StopKind,
    Task,
    TrainingSpec,
    encode,
)
from controlplane.core.values.lifecycle import OPEN_PHASES, GenerationPhase, ValidationStatus
from jobs.models import Allocation, Artifact, Generation, Job, Node, Validation
from jobs.selectors.secrets import (
    SecretsError,
    UnreadableSecretError,
    sealed_secrets,
    secret_values,
)

#: Levels of settings that messages can hold; submissions have fewer.
SENT_DEPTH_LIMIT = 64
_TOO_DEEP = "Its settings are nested too deeply to be sent to a node; submit it with flatter ones."

Wanted = WantedTrainer | WantedValidation


def training_spec(job: Job) -> TrainingSpec:
    """Return the specification of a job's computation, for trainers; `job_id` is 0 if unsaved."""
    is_prediction = job.task == Task.PREDICT
    return TrainingSpec(
        job_id=job.pk or 0,
        name=job.name,
        entry_file=job.entry_file,
        code_sha256=job.code_sha256,
        settings=job.settings,
        global_batch_size=job.global_batch_size,
        num_virtual_nodes=job.num_virtual_nodes,
        seed=job.seed,
        reduction=ReductionMode(job.reduction),
        stop=StopCondition(
            kind=StopKind(job.stop_kind),
            limit=job.stop_limit,
            metric=job.stop_metric or None,
            target=job.stop_target,
            higher_is_better=job.stop_higher_is_better,
        ),
        shuffle=job.shuffle,
        # A prediction job's progress is saved in its parts.
        checkpoint_every_s=0.0 if is_prediction else float(settings.CHECKPOINT_EVERY_S),
        task=Task(job.task),
        model_sha256=job.source_sha256 or None,
        batch_size_min=job.batch_size_min,
        batch_size_max=job.batch_size_max,
        merges=job.facts.get("is_merged") is not False,
        on_nonfinite=OnNonfinite(job.on_nonfinite),
        selection=job.selection_spec,
        tuning=job.tuning_spec,
        fork=job.fork_spec,
    )


def wanted_state(node: Node) -> WantedState:
    """Return the desired state of `node`, without what cannot be sent.

    Always four queries, and one more if a job names secrets.
    """
    return wanted_orders(node)[0]


@dataclass(frozen=True, slots=True)
class Unsendable:
    """A trainer or validation that is left out of a desired state.

    Attributes:
        field: of the submission, that makes it so.
        message: the reason and the fix, for the owner.
    """

    item: Wanted
    code: str
    field: str
    message: str


def wanted_orders(node: Node) -> tuple[WantedState, list[Unsendable]]:
    """Return the desired state of `node`, and trainers and validations left out of it.

    These have settings nested so deeply that a message with them cannot be encoded, or secrets that
    are missing; a key of the site that was lost stops no trainer that has been started.
    """
    return orders_by_node([node.pk])[node.pk]


def orders_by_node(
    node_ids: Collection[int],
) -> dict[int, tuple[WantedState, list[Unsendable]]]:
    """Return the desired state of each of some nodes, and what is left out of it."""
    rows = list(
        Allocation.objects.filter(
            accelerator__node__in=node_ids, released_at=None, stop_requested_at=None
        ).select_related("job", "accelerator")
    )
    generations = _generations({row.job_id for row in rows})
    restoring = [
        job_id
        for job_id, phases in generations.items()
        if any(generation.membership.restore for generation in phases.values())
    ]
    saved = Artifact.objects.filter(job_id__in=restoring, name="checkpoint.npz")
    checkpoints = dict(saved.values_list("job_id", "sha256"))
    trainers: dict[int, list[tuple[Job, WantedTrainer]]] = defaultdict(list)
    for row in rows:
        generation = _generation_for(row, generations.get(row.job_id, {}))
        if generation is not None:
            preparing = generations[row.job_id].get(GenerationPhase.PREPARING)
            checkpoint = checkpoints.get(row.job_id)
            trainer = _wanted_trainer(row, generation, checkpoint, preparing)
            trainers[row.accelerator.node_id].append((row.job, trainer))
    running = Validation.objects.filter(node__in=node_ids, status=ValidationStatus.RUNNING)
    submitted_first = running.select_related("job", "owner").order_by(
        F("job").asc(nulls_last=True), "id"
    )
    wanted: dict[int, list[tuple[Job, Wanted]]] = {node_id: [] for node_id in node_ids}
    for node_id, pairs in trainers.items():
        pairs.sort(key=lambda pair: (pair[1].spec.job_id, pair[1].slot))
        wanted[node_id].extend(pairs)
    for one in submitted_first:
        if one.node_id is not None:
            wanted[one.node_id].append((one.validated_job, _wanted_validation(one)))
    named = ((job.owner_id, job.secrets) for pairs in wanted.values() for job, _ in pairs)
    sealed = sealed_secrets(named)
    return {node_id: _sent(pairs, sealed) for node_id, pairs in wanted.items()}


def _sent(
    pairs: Sequence[tuple[Job, Wanted]], sealed: Mapping[tuple[int, str], str]
) -> tuple[WantedState, list[Unsendable]]:
    """Add the secrets; leave out what cannot be sent."""
    content: list[Wanted] = []
    sent: list[Wanted] = []
    unsendable = []
    for job, item in pairs:
        if is_nested_deeper(item.spec.settings, SENT_DEPTH_LIMIT):
            unsendable.append(Unsendable(item, "settings_too_deep", "settings", _TOO_DEEP))
            continue
        try:
            values = secret_values(job.owner_id, job.secrets, sealed)
        except SecretsError as error:
            has_started = isinstance(item, WantedTrainer) and item.go
            if not (has_started and isinstance(error, UnreadableSecretError)):
                unsendable.append(Unsendable(item, "secret_missing", "secrets", str(error)))
                continue
            values = {}  # its process has them
        encrypted = {name: sealed[job.owner_id, name] for name in job.secrets}
        content.append(dataclasses.replace(item, secrets=encrypted))
        sent.append(dataclasses.replace(item, secrets=values))
    digest = hashlib.sha256(json.dumps(encode(content), sort_keys=True).encode())
    state = WantedState(
        version=digest.hexdigest()[:24],
        trainers=tuple(item for item in sent if isinstance(item, WantedTrainer)),
        validations=tuple(item for item in sent if isinstance(item, WantedValidation)),
    )
    return state, unsendable


def _wanted_validation(validation: Validation) -> WantedValidation:
    job = validation.validated_job
    return WantedValidation(
        validation_id=validation.pk,
        spec=training_spec(job),
        attempt=validation.attempt,
        code_name=job.code_name,
        timeout_s=float(settings.VALIDATION_TIMEOUT_S),
    )


def _generations(job_ids: set[int]) -> dict[int, dict[str, Generation]]:
    by_job: dict[int, dict[str, Generation]] = {}
    rows = Generation.objects.filter(job_id__in=job_ids, phase__in=OPEN_PHASES)
    for generation in rows:
        by_job.setdefault(generation.job_id, {})[generation.phase] = generation
    return by_job


def _generation_for(row: Allocation, phases: dict[str, Generation]) -> Generation | None:
    """Return the membership for a trainer's desired state.

    While a generation prepares, only its joiners receive it; members train on and receive only the
    hosts of the joiners. Once the generation switches, all trainers receive it, leavers included.
    """
    preparing = phases.get(GenerationPhase.PREPARING)
    ruling = phases.get(GenerationPhase.SWITCHING) or phases.get(GenerationPhase.ACTIVE)
    if preparing is not None and row.granted_generation == preparing.number:
        return preparing
    return ruling


def _wanted_trainer(
    row: Allocation,
    generation: Generation,
    checkpoint_sha256: str | None,
    preparing: Generation | None,
) -> WantedTrainer:
    membership = generation.membership
    peers: frozenset[str] = frozenset()
    if preparing is not None and preparing.pk != generation.pk:
        peers = preparing.membership.hosts - membership.hosts
    is_restoring = generation.membership.restore and generation.phase != GenerationPhase.ACTIVE
    return WantedTrainer(
        spec=training_spec(row.job),
        slot=row.slot,
        accelerator_index=row.accelerator.index,
        membership=membership,
        go=generation.phase != GenerationPhase.PREPARING,
        code_name=row.job.code_name,
        checkpoint_sha256=checkpoint_sha256 if is_restoring else None,
        profile=row.profile_requested,
        peers=tuple(sorted(peers)),
        save_request=row.job.save_request,
        adoption=row.job.due_adoption,
        was_ready=row.ready_at is not None,
    )
