"""Makes the rows that Django tests start from. Each builder takes what matters to the test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.db.models import QuerySet
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.protocol.node_messages import EnrolRequest
from controlplane.core.protocol.wire import AcceleratorInfo, Member, Membership
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus, ValidationStatus
from jobs.models import ApiToken, AuditEntry, Job, Node, StepReport, Validation
from jobs.services.cluster.api_tokens import JOB_SCOPES, SCOPES
from jobs.services.cluster.nodes import enrolment_token_create, node_enrol
from jobs.services.cluster.tokens import token_digest, token_make
from jobs.services.submission.rows import SUBMITTED_COLUMNS

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
#: The fixture `client_of`: makes clients that act for a user.
Clients = Callable[..., APIClient]
CODE = b"def build(settings):\n    return None, None, None\n"

_numbers = count(1)


def at(seconds: float) -> datetime:
    """Give a moment of a test's own clock."""
    return START + timedelta(seconds=seconds)


def user_make(name: str = "", *, is_staff: bool = False) -> User:
    """Make a person; an admin if `is_staff`."""
    # No password: hashing one takes longer than most tests.
    return User.objects.create_user(name or f"person{next(_numbers)}", is_staff=is_staff)


def logged_in(user: User, **options: Any) -> Client:
    """Return a browser with a session of `user`; the options are those of the client."""
    client = Client(**options)
    client.force_login(user)
    return client


def acting_as(user: User) -> APIClient:
    """Return a client of the API whose requests are `user`'s, whatever they carry."""
    client = APIClient()
    client.force_authenticate(user)
    return client


def api_token_make(user: User, scopes: tuple[str, ...] = ()) -> str:
    """Give a program's token that acts for `user`; unless told, with all that the user may."""
    text = token_make("vfp")
    scopes = scopes or (SCOPES if user.is_staff else JOB_SCOPES)
    ApiToken.objects.create(user=user, name="test", digest=token_digest(text), scopes=list(scopes))
    return text


def agent_client(token: str) -> Client:
    """Return a client whose requests are those of the agent with this token."""
    return Client(headers={"Authorization": f"Agent {token}"})


def agent_token_give(node: Node) -> str:
    """Give the agent of a node a token that the test knows."""
    Node.objects.filter(pk=node.pk).update(agent_token_digest=token_digest("known"))
    return "known"


def accelerators(num: int, kind: str = "cpu") -> tuple[AcceleratorInfo, ...]:
    """Describe some equal accelerators as an agent would."""
    return tuple(
        AcceleratorInfo(index=i, kind=kind, name=f"{kind} {i}", memory_bytes=2**30, threads=1)
        for i in range(num)
    )


def enrol_request(token: str, name: str, num_accelerators: int = 2, **other: Any) -> EnrolRequest:
    """Give a node's introduction."""
    first_port = 10_000 + 100 * (next(_numbers) % 500)
    values: dict[str, Any] = {
        "token": token,
        "name": name,
        "host": "127.0.0.1",
        "first_port": first_port,
        "last_port": first_port + 99,
        "boot_id": f"boot-of-{name}",
        "accelerators": accelerators(num_accelerators),
    }
    return EnrolRequest(**{**values, **other})


def audit_acts() -> QuerySet[AuditEntry]:
    """List the audit entries, oldest first, but for first uses of tokens by tests' clients."""
    return AuditEntry.objects.exclude(action="token_used_elsewhere").order_by("id")


def node_make(
    name: str = "", num_accelerators: int = 2, *, now: datetime = START, **other: Any
) -> tuple[Node, str]:
    """Enrol a node; give it and its agent's token."""
    _, text = enrolment_token_create(None, now)
    name = name or f"node{next(_numbers)}"
    reply = node_enrol(enrol_request(text, name, num_accelerators, **other), now)
    return Node.objects.get(id=reply.node_id), reply.agent_token


def job_make(
    owner: User | None = None, *, status: JobStatus = JobStatus.PENDING, **other: Any
) -> Job:
    """Make a job straight in a status, as if everything before had happened."""
    values: dict[str, Any] = {
        "owner": owner or user_make(),
        "name": "a job",
        "code_name": "job.py",
        "code_sha256": hashlib.sha256(CODE).hexdigest(),
        "entry_file": "job.py",
        "global_batch_size": 32,
        "num_virtual_nodes": 4,
        "max_accelerators": 4,
        "stop_kind": "steps",
        "stop_limit": 100,
        "status": status.value,
        "submitted_at": START,
        "ended_at": START if status in ENDED_JOB_STATUSES else None,
    }
    job = Job(**{**values, **other})
    job.code.save("job.py", ContentFile(CODE), save=False)
    job.save()
    if status is JobStatus.VALIDATING:
        Validation.objects.create(owner=job.owner, job=job, requested_at=START)
    return job


def steps_add(job: Job) -> datetime:
    """Report steps up to the job's present one on two accelerators; return when: now."""
    report = StepReport.objects.create(
        job=job, generation=job.generation + 1, first_step=job.step or 1, last_step=job.step or 1,
        epoch=0, examples=32, seconds=2.0, num_accelerators=2, at=timezone.now(),
    )  # fmt: skip
    return report.at


def membership_make(
    generation: int, shares: Mapping[int, Sequence[int]] | None = None, **other: Any
) -> Membership:
    """Make a membership of slot -> virtual nodes; the first slot leads."""
    members = tuple(
        Member(slot=slot, node_id=1, accelerator_index=slot, virtual_nodes=tuple(share))
        for slot, share in (shares or {}).items()
    )
    return Membership(
        generation=generation,
        members=members,
        leader_slot=members[0].slot if members else None,
        source_slot=None,
        cluster_addresses=(),
        **other,
    )


def validation_make(job: Job) -> Validation:
    """Make a passed validation, without a job, of the same computation as `job`."""
    return Validation.objects.create(
        owner=job.owner,
        job_fields={name: getattr(job, name) for name in SUBMITTED_COLUMNS},
        code_sha256=job.code_sha256,
        status=ValidationStatus.PASSED.value,
        requested_at=START,
    )


def submission_values(**other: Any) -> dict[str, Any]:
    """Give the fields of a submission that is accepted."""
    values = {
        "name": "a job",
        "code": CODE.decode(),
        "global_batch_size": 32,
        "num_virtual_nodes": 4,
        "stop": {"kind": "steps", "limit": 100},
    }
    return {**values, **other}
