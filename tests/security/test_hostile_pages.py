"""Pages and REST answers of everybody are rendered after one job has reported hostile values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.reported_values import facts_read
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus, ValidationStatus
from jobs.models import Validation
from jobs.services.reports.batches import batch_take
from jobs.services.reports.model_fitting import models_fit
from tests.jobs.losses import fresh
from tests.security.hostile_reports import FACTS, offered, two_jobs
from tests.security.hostile_values import HOSTILE
from tests.support.builders import job_make, logged_in, user_make
from tests.support.cases import some

pytestmark = pytest.mark.django_db


def pages_are_rendered(numbers: list[int]) -> None:
    client = logged_in(user_make(is_staff=True))
    paths = ["/", "/figures/", "/jobs/", "/queue/", "/nodes/", "/api/v1/cluster/", "/api/v1/jobs/"]
    resources = ("metrics", "events", "generations", "allocations")
    for number in numbers:
        paths += [f"/jobs/{number}/", f"/jobs/{number}/figures/", f"/api/v1/jobs/{number}/"]
        paths += [f"/api/v1/jobs/{number}/{name}/" for name in resources]
    for path in paths:
        answer = client.get(path, headers={"Accept": "*/*"})
        assert answer.status_code == 200, path
        if answer["Content-Type"].startswith("application/json"):
            answer.json(parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "kind",
    some(
        [ReportKind.STEPS, ReportKind.EPOCH, ReportKind.FINISHED],
        nightly=(ReportKind.EPOCH, ReportKind.FINISHED),
    ),
)
def test_hostile_reports(kind: ReportKind) -> None:
    world, hostile, victim = two_jobs()
    played, trainer = world.leader_of(hostile)
    offered(played, trainer, kind)
    batch_take(played.node, played.batch(), world.now)
    models_fit(world.now)
    pages_are_rendered([hostile.pk, victim.pk])


def test_hostile_facts() -> None:
    world, _, victim = two_jobs()
    node = world.nodes[0].node
    offered_sets: list[dict[str, Any]] = [dict.fromkeys(FACTS, value) for value in HOSTILE]
    offered_sets += [
        {**FACTS, "memory": dict.fromkeys(FACTS["memory"], value)} for value in HOSTILE
    ]
    sets = {repr(facts_read(facts)): facts for facts in offered_sets}.values()
    jobs = [job_make(status=JobStatus.VALIDATING, stop_kind="epochs") for _ in sets]
    Validation.objects.update(
        status=ValidationStatus.RUNNING, node=node, attempt=1, deadline_at=world.now
    )
    results = tuple(
        ValidationReport(validation_id=job.validation.pk, attempt=1, ok=True, facts=facts)
        for job, facts in zip(jobs, sets, strict=True)
    )
    batch_take(node, dataclasses.replace(world.nodes[0].batch(), validations=results), world.now)
    assert {fresh(job).status for job in jobs} == {"pending"}
    pages_are_rendered([victim.pk, *(job.pk for job in jobs)])
