"""A small world for the pages: people, nodes, jobs in every state, with a past."""

from __future__ import annotations

import datetime
import hashlib
import math
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.utils import timezone

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, GenerationPhase, JobStatus
from controlplane.core.virtual_nodes.mapping import even_mapping
from jobs.models import (
    Accelerator,
    AcceleratorPrice,
    Allocation,
    EpochReport,
    Event,
    Generation,
    Job,
    JobMetric,
    Node,
    NotificationChannel,
    NotificationDelivery,
    Project,
    ProjectMembership,
    Replay,
    ReplayStatus,
    StepReport,
    Sweep,
)
from jobs.services.lifecycle.colours import free_colour
from tests.support.builders import at, membership_make
from tests.support.rows import allocation_make, artifact_make, log_add, trial_make

PASSWORD = "rowing-boat-on-a-lake"
CODE = b"def build(settings):\n    raise SystemExit\n"
SCRIPT_NAME = "<script>window.hurt = 1</script><b>bold</b> %{x}"


@dataclass
class World:
    """What was made, by name."""

    admin: User
    ada: User
    ben: User
    nodes: list[Node]
    jobs: dict[str, Job]


def make_person(name: str, *, is_admin: bool = False) -> User:
    return User.objects.create_user(
        name, password=PASSWORD, is_staff=is_admin, is_superuser=is_admin
    )


def make_node(name: str, count: int, *, kind: str = "cpu", **more: object) -> Node:
    node = Node.objects.create(
        name=name,
        host="10.0.0.7",
        first_port=30000,
        last_port=30999,
        boot_id=f"boot-of-{name}",
        agent_token_digest=hashlib.sha256(name.encode()).hexdigest(),
        last_seen_at=timezone.now(),
        **more,
    )
    long_ago = timezone.now() - datetime.timedelta(days=30)
    Node.objects.filter(pk=node.pk).update(enrolled_at=long_ago)
    for index in range(count):
        Accelerator.objects.create(
            node=node, index=index, kind=kind, name=f"emulated {kind} {index}", threads=1,
            memory_bytes=2 * 1024**3,
        )  # fmt: skip
    return node


SUMMARY = "\n".join(
    [
        'Model: "sequential"',
        "┏━" + "━" * 300 + "┓",
        "┃ Layer (type)"
        + " " * 120
        + "Output Shape"
        + " " * 120
        + "Param #"
        + " " * 43
        + "Connected to ┃",
        "└─" + "─" * 300 + "┘",
        " Total params: 5",
    ]
)


def make_job(owner: User, name: str, status: JobStatus = JobStatus.PENDING, **more: object) -> Job:
    now = timezone.now()
    values: dict[str, object] = {
        "owner": owner,
        "name": name,
        "colour": free_colour(),
        "code_name": "digits_cnn.py",
        "code_sha256": hashlib.sha256(CODE).hexdigest(),
        "entry_file": "digits_cnn.py",
        "settings": {"filters": 16, "dropout": 0.25},
        "global_batch_size": 128,
        "num_virtual_nodes": 8,
        "min_accelerators": 1,
        "max_accelerators": 4,
        "stop_kind": "epochs",
        "stop_limit": 120,
        "status": status.value,
        "submitted_at": now - datetime.timedelta(minutes=12),
        "facts": {
            "steps_per_epoch": 12,
            "num_parameters": 12345,
            "metrics": ["loss", "accuracy", "top_k_categorical_accuracy", "auc"],
        },
    }
    if status in ENDED_JOB_STATUSES:
        values["ended_at"] = now
    job = Job(**(values | more))
    job.code.save("digits_cnn.py", ContentFile(CODE), save=False)
    job.save()
    return job


def give_history(job: Job, accelerators: list[Accelerator], counts: list[int]) -> None:
    """Let a job have trained for ten minutes, in equal parts on `counts` accelerators each."""
    now = timezone.now()
    start = now - datetime.timedelta(minutes=10)
    part = datetime.timedelta(minutes=10) / len(counts)
    digest = hashlib.sha256(job.name.encode()).hexdigest()
    open_allocations: dict[int, Allocation] = {}
    next_slot = 0
    slots: list[int] = []
    for number, count in enumerate(counts, start=1):
        at = start + (number - 1) * part
        is_last = number == len(counts)
        for slot in slots[count:]:
            allocation = open_allocations.pop(slot)
            allocation.released_at = allocation.left_at = at
            allocation.save()
        slots = slots[:count]
        while len(slots) < count:
            times = {"granted_generation": number, "granted_at": at, "joined_at": at}
            place = accelerators[len(slots)]
            open_allocations[next_slot] = allocation_make(job, place, slot=next_slot, **times)
            slots.append(next_slot)
            next_slot += 1
        mapping = even_mapping(job.num_virtual_nodes, count) if count else ()
        Generation.objects.create(
            job=job,
            number=number,
            previous=number - 1 or None,
            phase=(GenerationPhase.ACTIVE if is_last else GenerationPhase.CLOSED).value,
            membership=membership_make(number, dict(zip(slots, mapping, strict=True))),
            num_members=count,
            reason=f"Weight {job.priority} of 400 gives {count} of 8 accelerators.",
            actor="policy:weighted_fair",
            requested_at=at - datetime.timedelta(seconds=8),
            ready_at=at - datetime.timedelta(seconds=0.4),
            switched_at=at,
            step=number * 300 - 300,
            pause_s=0.0 if number == 1 else 0.0183 * number,
            bytes_moved=1_250_000 * number,
            digest_before="" if number == 1 else digest,
            digest_after=digest,
        )
    Job.objects.filter(pk=job.pk).update(generation=len(counts), next_slot=next_slot)
    _give_steps(job, start, counts)


def _give_steps(job: Job, start: datetime.datetime, counts: list[int]) -> None:
    """Let a job have reported 900 steps, 15 at a time, and the end of each epoch of 12."""
    num_reports, num_epochs = 60, 75
    per_part = num_reports // len(counts)
    reports, epochs = [], []
    for place in range(num_reports):
        part = min(place // per_part, len(counts) - 1)
        count = max(counts[part], 1)
        reports.append(
            StepReport(
                job=job,
                generation=part + 1,
                first_step=place * 15 + 1,
                last_step=place * 15 + 15,
                epoch=place * 15 // 12,
                examples=15 * 128,
                seconds=9.5 / count * (1 + 0.06 * math.sin(place)),
                loss=2.3 * math.exp(-place / 18) + 0.12 + 0.03 * math.sin(place * 1.7),
                num_accelerators=count,
                batch_size=128,
                learning_rate=1e-5 * 0.95**place,
                at=start + datetime.timedelta(seconds=10 * (place + 1)),
            )
        )
    for epoch in range(num_epochs):
        fall = math.exp(-epoch * 4 / 90)
        epochs.append(
            EpochReport(
                job=job,
                epoch=epoch,
                generation=1,
                step=(epoch + 1) * 12,
                logs={
                    "loss": 1.0,
                    "accuracy": 1 - 0.85 * fall,
                    "val_loss": 2.3 * fall + 0.19,
                    "val_accuracy": 1 - 0.9 * fall,
                    "auc": 0.99 - 0.4 * fall,
                    "learning_rate": 0.001,
                },
                at=start + datetime.timedelta(seconds=8 * (epoch + 1)),
            )
        )
    StepReport.objects.bulk_create(reports)
    EpochReport.objects.bulk_create(epochs)
    Job.objects.filter(pk=job.pk).update(
        step=num_epochs * 12, epoch=num_epochs, loss=0.1432,
        examples_per_s=384 / (1.9 / max(counts[-1], 1)), started_at=start,
        attained_accelerator_s=1234.5,
    )  # fmt: skip
    job.refresh_from_db()


def make_world() -> World:
    """Make three people, three nodes and a job in every status."""
    admin, ada, ben = make_person("admin", is_admin=True), make_person("ada"), make_person("ben")
    nodes = [
        make_node("node-a", 4),
        make_node("node-b", 4),
        make_node("gpu-rack-17-lower-shelf.a-rather-long-name.example", 2, kind="t4",
                  is_cordoned=True),
    ]  # fmt: skip
    cpus = list(Accelerator.objects.filter(node__in=nodes[:2]).order_by("node_id", "index"))
    why = "Weight 300 of 400 gives 3 of 8 accelerators; it can use 4."
    jobs = {
        "finished": make_job(ada, "digits, first try", JobStatus.FINISHED, step=1440,
                             metrics={"val_accuracy": 0.9812, "loss": 0.0412}, loss=0.0412,
                             digest="ab" * 32),
        "running": make_job(ada, "digits, patient", JobStatus.RUNNING, policy_reason=why),
        "urgent": make_job(ben, "character transformer on the standard library, long run four "
                           "with warm-up and a very long name",
                           JobStatus.RUNNING, priority=300, policy_reason=why),
        "script": make_job(ada, SCRIPT_NAME, JobStatus.RUNNING, policy_reason="One " + SCRIPT_NAME),
        "pending": make_job(ada, "tabular", JobStatus.PENDING, priority=50, min_accelerators=4,
                            policy_reason="Needs at least 4 accelerators of kind cpu; 2 are free, "
                            "6 are held by jobs of higher priority (#2, #3)."),
        "validating": make_job(ben, "residual network", JobStatus.VALIDATING),
        "paused": make_job(ada, "weekend run", JobStatus.PAUSED, status_reason="Paused by user:ada",
                           step=300),
        "failed": make_job(ada, "wide network", JobStatus.FAILED, status_code="user_code",
                           status_reason="The code failed in step 17: ValueError: shapes differ",
                           error_traceback="Traceback (most recent call last):\n"
                           '  File "job.py", line 12, in build\n    model.fit()\n'
                           "ValueError: shapes (3, 4) and (5,) differ\n"),
        "invalid": make_job(ada, "typo", JobStatus.INVALID, error_field="code",
                            status_reason="build(settings) returned a model that is not compiled.",
                            error_traceback="Traceback: line 3",
                            facts={"summary": SUMMARY}),
        "cancelled": make_job(ben, "mistake", JobStatus.CANCELLED,
                              status_reason="Cancelled by user:ben"),
    }  # fmt: skip
    give_history(jobs["running"], cpus[0:3], [1, 3, 2, 3])
    give_history(jobs["urgent"], cpus[3:6], [3, 1, 3])
    give_history(jobs["script"], cpus[6:7], [1])
    _give_papers(jobs["running"])
    _give_project(admin, ada, jobs["running"])
    _give_trials(jobs["running"])
    _give_replays(admin, jobs)
    return World(admin, ada, ben, nodes, jobs)


def make_channel(owner: User, *, num_messages: int) -> NotificationChannel:
    """Make a channel of long names, whose messages have failed."""
    now = timezone.now()
    channel = NotificationChannel.objects.create(
        owner=owner, name="W" * 60, kind="webhook", shown_address="https://" + "w" * 100,
        events=["finished"], created_at=now,
    )  # fmt: skip
    NotificationDelivery.objects.bulk_create(
        NotificationDelivery(
            channel=channel, kind="finished", body={"data": {"job": {"id": 1}}}, status="failed",
            num_attempts=5, next_try_at=now, answer="404 " + "w" * 200, created_at=now,
        )
        for _ in range(num_messages)
    )  # fmt: skip
    return channel


def make_sweep(owner: User, values: list[float | None], **other: Any) -> Sweep:
    """Make a sweep whose jobs have these best accuracies, and units 8, 16, 24..."""
    given = {"name": "search", "space": {"units": [8], "kind": ["a"]}, "max_running": 2, **other}
    sweep = Sweep.objects.create(owner=owner, submitted_at=at(0), **given)
    for place, value in enumerate(values, start=1):
        settings = {"units": 8 * place, "kind": "<b>&x" if place % 2 else "b"}
        status = JobStatus.PENDING if value is None else JobStatus.FINISHED
        job = make_job(owner, f"search {place}", status, sweep=sweep, settings=settings,
                       epoch=max(5 - place, 0))  # fmt: skip
        if value is not None:
            JobMetric.objects.create(job=job, name="val_accuracy", best=value, best_epoch=1,
                                     last=value)  # fmt: skip
    return sweep


def _give_project(admin: User, ada: User, job: Job) -> None:
    """Put a job into a project of two people, with a price of its accelerators."""
    now = timezone.now()
    project = Project.objects.create(
        name="vision", description="Pictures of everything", guaranteed=2, limit=6, created_at=now
    )
    for person, role in ((admin, "admin"), (ada, "member")):
        ProjectMembership.objects.create(project=project, user=person, role=role, since=now)
    Job.objects.filter(pk=job.pk).update(project=project)
    AcceleratorPrice.objects.create(kind="cpu", per_hour=0.05)


def _give_trials(job: Job) -> None:
    """Tune a job: one trial is kept, one has diverged, and a second search runs."""
    space = {
        "learning_rate": {"low": 1e-5, "high": 1.0, "log": True},
        "momentum": {"low": 0.0, "high": 0.99, "log": False},
    }
    Job.objects.filter(pk=job.pk).update(tuning={"space": space})
    for number, end, search in ((1, "kept", 1), (2, "diverged", 1), (3, "", 2)):
        trial_make(
            job,
            number,
            search=search,
            values={"learning_rate": 0.01 * 10**number, "momentum": 0.9},
            steps=20 if end else 7,
            start_loss=2.3026,
            losses=[2.1, 1.9, 1.4] if end == "kept" else [4.5],
            verdict={"kept": "converging", "diverged": "diverged"}.get(end, ""),
            speed=0.0421 if end == "kept" else 0.0,
            end=end,
            search_end="trials" if search == 1 else "",
            is_running=not end,
            step=20 * number,
            at=timezone.now(),
        )


def _give_replays(admin: User, jobs: dict[str, Job]) -> None:
    """Let an admin have compared two scenarios, and let another replay run."""
    now = timezone.now()
    start = now - datetime.timedelta(minutes=10)
    values = {
        "requested_by": admin, "requested_at": now, "accelerators": {"cpu": 16, "t4": 2},
        "start_at": start, "end_at": now,
    }  # fmt: skip
    running, urgent = jobs["running"], jobs["urgent"]
    summary = {"mean_jct_s": 520.0, "median_jct_s": 500.0, "p90_jct_s": 590.0,
               "mean_queueing_s": 12.0, "makespan_s": 600.0, "utilisation": 0.75,
               "resizes_per_job": 2.5, "worst_fairness": 1.25}  # fmt: skip
    result = {
        "recorded": summary | {"worst_fairness": None},
        "as_is": summary,
        "changed": {name: value / 2 for name, value in summary.items()},
        "as_is_policy": "weighted_fair",
        "as_is_accelerators": {"cpu": 8, "t4": 2},
        "num_jobs": 2,
        "tiers": [
            {"tier": tier, "num_jobs": 1, "recorded": {"mean_jct_s": recorded_s},
             "as_is": {"mean_jct_s": 520.0, "mean_queueing_s": 12.0},
             "changed": {"mean_jct_s": 260.0, "mean_queueing_s": 3.0}}
            for tier, recorded_s in (("urgent", 500.0), ("idle", None))
        ],
        "notes": ["1 job without a stop condition that can be told was left out."],
        "jobs": [
            {"id": job.pk, "name": job.name, "recorded_s": recorded_s, "as_is_s": 520.0,
             "changed_s": 260.0}
            for job, recorded_s in ((running, 500.0), (urgent, None))
        ],
        "allocation": [
            [start.timestamp() + at, job.pk, count]
            for at, job, count in (
                (5, running, 8), (20, urgent, 8), (200, running, 16), (200, urgent, 0),
                (265, running, 0),
            )
        ],
    }  # fmt: skip
    done = values | {"status": ReplayStatus.DONE, "progress": 1.0, "finished_at": now}
    Replay.objects.create(policy="priority", result=result, **done)
    running_values = values | {"start_at": start - datetime.timedelta(hours=1)}
    Replay.objects.create(
        policy="fifo", status=ReplayStatus.RUNNING, progress=0.4, attempts=1, beat_at=now,
        **running_values,
    )  # fmt: skip
    slower = {name: value * 1.5 for name, value in summary.items()} | {"utilisation": 0.9}
    Replay.objects.create(policy="fifo", result=result | {"changed": slower},
                          **done | {"accelerators": {"cpu": 8}})  # fmt: skip


def _give_papers(job: Job) -> None:
    now = timezone.now()
    for minute, kind, actor, message in (
        (12, "submitted", "user:ada", "Submitted"),
        (11, "valid", "system", "The code builds: 12,345 parameters, 12 steps an epoch"),
        (10, "resized", "policy:weighted_fair", "0 → 1 accelerator"),
        (7, "resized", "policy:weighted_fair", "1 → 3 accelerators in 0.055 s of pause"),
        (3, "reprioritised", "user:admin", f"Priority 100 → 300: {SCRIPT_NAME}"),
    ):
        at = now - datetime.timedelta(minutes=minute)
        Event.objects.create(job=job, kind=kind, actor=actor, message=message, at=at)
    for slot in range(2):
        text = "".join(f"12:00:{i % 60:02d} step {i} loss {2 / (i + 1):.4f}\n" for i in range(120))
        text += f"a line with {SCRIPT_NAME}\n"
        log_add(job, text, slot=slot, now=now)
    values = {"sha256": "cd" * 32, "size_bytes": 1_234_567, "generation": 4, "at": now}
    artifact_make(job, "model.keras", file=ContentFile(b"weights", "model.keras"), **values)
