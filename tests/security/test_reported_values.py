"""Reports and facts of one job, whatever is in them, stop neither the cycle nor other jobs."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import math
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoDbBlocker

from controlplane.core.policies import POLICIES
from controlplane.core.protocol.node_messages import LogChunk, ValidationReport
from controlplane.core.protocol.reported_values import facts_read, report_read
from controlplane.core.protocol.wire import ReportKind, TrainerReport
from controlplane.core.values.lifecycle import JobStatus, ValidationStatus
from jobs.api.jobs.submission_request import submission_read
from jobs.models import ClusterSetting, Event, Job, StepReport, Validation
from jobs.selectors.dry_run import submission_outlook
from jobs.selectors.estimates.job import fits_seen
from jobs.selectors.logs import log_tail
from jobs.services.lifecycle import events
from jobs.services.reports.batches import batch_take
from jobs.services.reports.model_fitting import models_fit
from tests.jobs.losses import fresh
from tests.jobs.world import World
from tests.security.hostile_reports import FACTS, SOUND, STEPS, offered, two_jobs
from tests.security.hostile_values import HOSTILE
from tests.support.builders import job_make, logged_in, submission_values, user_make
from tests.support.cases import some
from tests.support.rows import artifact_make
from tests.support.shared_rows import rows_shared


def report(kind: ReportKind, **data: Any) -> TrainerReport:
    return TrainerReport(job_id=1, slot=0, generation=1, sequence=0, at=0.0, kind=kind, data=data)


Jobs = tuple[World, Job, Job]


@pytest.fixture(scope="class")
def shared_jobs(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Jobs]:
    """Let two jobs train; no test reads their files."""
    files = override_settings(MEDIA_ROOT=str(tmp_path_factory.mktemp("files")))
    with rows_shared(django_db_blocker):
        with files:
            jobs = two_jobs()
        yield jobs


@pytest.fixture
def jobs(shared_jobs: Jobs, db: None) -> Jobs:
    """Give a test a copy of the world and of its jobs."""
    fits_seen.clear()
    return copy.deepcopy(shared_jobs)


#: Kinds whose reports have the most data; the others are tried in `make nightly`.
WITH_MUCH_DATA = {
    ReportKind.READY,
    ReportKind.STEPS,
    ReportKind.EPOCH,
    ReportKind.SELECTION_ENDED,
    ReportKind.TRIAL,
    ReportKind.FINISHED,
}


class TestReports:
    @pytest.mark.parametrize("kind", some(ReportKind, {*ReportKind} - WITH_MUCH_DATA))
    def test_no_report_keeps_out_those_of_another_job(self, jobs: Jobs, kind: ReportKind) -> None:
        world, hostile, victim = jobs
        played, trainer = world.leader_of(hostile)
        offered(played, trainer, kind)
        _, honest = world.leader_of(victim)
        played.say(honest, ReportKind.STEPS, **STEPS)
        batch_take(played.node, played.batch(), world.now)
        assert fresh(victim).step == 20
        models_fit(world.now)
        for policy in POLICIES if kind in (ReportKind.STEPS, ReportKind.READY) else ("fifo",):
            ClusterSetting.objects.update(policy=policy)
            world.cycle()
            assert fresh(victim).status == "running"

    @pytest.mark.parametrize("field", ["job_id", "slot", "generation", "sequence", "at"])
    def test_no_address_of_a_report_keeps_out_others(self, jobs: Jobs, field: str) -> None:
        world, hostile, victim = jobs
        played, trainer = world.leader_of(hostile)
        _, honest = world.leader_of(victim)
        for value in (-1, 2**31 - 1, 2**31, 2**62 - 1, 2**63 - 1, 2**63, 2**70, 10**300):
            said = played.say(trainer, ReportKind.STEPS, **STEPS)
            object.__setattr__(said, field, float(value) if field == "at" else value)
            chunk = LogChunk(job_id=hostile.pk, slot=trainer.slot, offset=0, text="a")
            if field in ("job_id", "slot"):
                object.__setattr__(chunk, field, value)
            elif field == "sequence":
                object.__setattr__(chunk, "offset", value)
            batch = dataclasses.replace(played.batch(), logs=(chunk,))
            batch_take(played.node, batch, world.now)
        played.say(honest, ReportKind.STEPS, **STEPS)
        logs = [
            LogChunk(job_id=job.pk, slot=one.slot, offset=2**62 - 1, text="last")
            for job, one in ((hostile, trainer), (victim, honest))
        ]
        batch_take(played.node, dataclasses.replace(played.batch(), logs=tuple(logs)), world.now)
        assert fresh(victim).step == 20
        assert "last" in log_tail(victim, None).text

    @pytest.mark.parametrize("value", [1e100, -1e160, 1e300, -1.7e308])
    @pytest.mark.database
    def test_numbers_that_grow_without_bound_break_no_mean(
        self, jobs: Jobs, value: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such are the losses of a diverging job that computes with 64 bits."""
        world, job, _ = jobs
        played, trainer = world.leader_of(job)
        for number, factor in enumerate((1e-5, 1.0, -1.0)):
            steps = {"first_step": 11 + 10 * number, "last_step": 20 + 10 * number}
            grown = dict.fromkeys(("loss", "last_loss", "learning_rate"), factor * value)
            played.say(trainer, ReportKind.STEPS, **{**STEPS, **steps, **grown})
        batch_take(played.node, played.batch(), world.now)
        assert models_fit(world.now) == 2
        assert "cannot be fitted" not in caplog.text
        Job.objects.filter(pk=job.pk).update(step=10**6)  # few bins, with several reports each
        client = logged_in(job.owner)
        pages = [f"/jobs/{job.pk}/figures/", f"/jobs/compare/figures/?job={job.pk}"]
        answers = [f"jobs/{job.pk}/metrics/", f"jobs/compare/?job={job.pk}&series=1"]
        for path in (*pages, *(f"/api/v1/{one}" for one in answers)):
            assert client.get(path).status_code == 200, path

    def test_a_time_is_corrected_where_the_clock_is_behind(self, jobs: Jobs) -> None:
        world, job, _ = jobs
        played, trainer = world.leader_of(job)
        now_s, stored = world.now.timestamp() + 60.0, []
        now = datetime.datetime.fromtimestamp(now_s, tz=datetime.UTC)
        # Seconds before now: by the clock at sending, and at the report.
        times = ((7200.0, 7203.0), (40.0, 43.0), (-7200.0, -7199.0), (0.0, 1e9), (1e308, 0.0))
        for number, (sent, told) in enumerate(times):
            steps = {"first_step": 11 + 10 * number, "last_step": 20 + 10 * number}
            said = played.say(trainer, ReportKind.STEPS, **{**STEPS, **steps})
            object.__setattr__(said, "at", now_s - told)
            batch = dataclasses.replace(played.batch(), sent_at=now_s - sent)
            batch_take(played.node, batch, now)
            row = StepReport.objects.get(job=job, last_step=steps["last_step"])
            stored.append((now - row.at).total_seconds())
        submitted = (now - job.submitted_at).total_seconds()
        assert stored == pytest.approx([3.0, 43.0, 0.0, submitted, 0.0])

    def test_events_that_trainers_report_at_will_are_few(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "REPORTED_LIMIT", 2)
        world, job, _ = jobs
        played, trainer = world.leader_of(job)
        artifact_make(job)
        for number in range(4):
            checkpoint = {"step": 10, "file": "a", "sha256": "b", "bytes": 1, "is_last": False}
            played.say(trainer, ReportKind.CHECKPOINTED, upload_errors={"a": "c"}, **checkpoint)
            played.say(trainer, ReportKind.CHECKPOINTED, **checkpoint | {"step": 11 + number})
            part = {"first": 0, "end": 1, "file": "a", "bytes": 1}
            played.say(trainer, ReportKind.PART, upload_errors={"a": "c"}, **part)
            played.say(trainer, ReportKind.DIGEST, role="after", step=10, sha256=f"{number:064}")
        batch_take(played.node, played.batch(), world.now)
        for kind in ("checkpoint_lost", "part_lost", "digest_mismatch"):
            texts = [one.message for one in Event.objects.filter(job=job, kind=kind).order_by("id")]
            assert [text.endswith("not listed") for text in texts] == [False, True]
        assert job.events.filter(kind="checkpointed").count() == 1

    def test_the_owner_is_told_once_of_refused_reports(self, jobs: Jobs) -> None:
        world, job, _ = jobs
        played, trainer = world.leader_of(job)
        for step in (2**63, 2**70):
            played.say(trainer, ReportKind.STEPS, **{**STEPS, "last_step": step})
        batch_take(played.node, played.batch(), world.now)
        event = job.events.get(kind="report_refused")
        assert "last_step is not from 0 to below 9223372036854775808" in event.message


@pytest.mark.django_db
def test_no_fact_of_a_validation_stops_a_policy_or_a_dry_run() -> None:
    world = World(1, 2)
    offered_facts = [{**FACTS, name: value} for name in [*FACTS, "unknown"] for value in HOSTILE]
    for name in FACTS["memory"]:
        offered_facts += [{**FACTS, "memory": {**FACTS["memory"], name: v}} for v in HOSTILE]
    different = {repr(facts_read(facts)): facts for facts in offered_facts}
    submitted = {"stop_kind": "epochs", "batch_size_min": 32, "batch_size_max": 64}
    owner = user_make()
    jobs = [job_make(owner, status=JobStatus.VALIDATING, **submitted) for _ in different]
    node = world.nodes[0].node
    Validation.objects.update(
        status=ValidationStatus.RUNNING, node=node, attempt=1, deadline_at=world.now
    )
    results = tuple(
        ValidationReport(validation_id=job.validation.pk, attempt=1, ok=True, facts=facts)
        for job, facts in zip(jobs, different.values(), strict=True)
    )
    batch_take(node, dataclasses.replace(world.nodes[0].batch(), validations=results), world.now)
    assert {*Job.objects.values_list("status", flat=True)} == {"pending"}
    for policy in POLICIES:
        ClusterSetting.objects.update(policy=policy)
        world.cycle()
        submission_outlook(submission_read(submission_values()), world.now, user_make())
    assert not Event.objects.filter(kind="unreadable").exists()


@pytest.mark.parametrize("kind", [*ReportKind])
def test_sound_reports_keep_what_the_site_reads(kind: ReportKind) -> None:
    read = report_read(report(kind, **SOUND[kind])).data
    assert read == {name: value for name, value in SOUND[kind].items() if name in read}


def test_sound_facts_are_kept() -> None:
    assert facts_read(FACTS) == FACTS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def is_bounded(value: Any) -> bool:
    if isinstance(value, dict):
        return all(len(name) <= 100 and is_bounded(item) for name, item in value.items())
    if isinstance(value, list):
        return len(value) <= 4096 and all(map(is_bounded, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or len(value.encode()) <= 4 * 60_000


@given(kind=st.sampled_from(ReportKind), data=st.data())
def test_what_is_read_is_bounded(kind: ReportKind, data: st.DataObject) -> None:
    values = {name: data.draw(JSON | st.just(value)) for name, value in SOUND[kind].items()}
    try:
        read = report_read(report(kind, **values)).data
    except ValueError:
        return
    assert read.keys() <= values.keys()
    assert is_bounded(read)


@given(st.fixed_dictionaries({name: JSON | st.just(value) for name, value in FACTS.items()}))
def test_facts_that_are_read_are_bounded(facts: dict[str, Any]) -> None:
    assert is_bounded(facts_read(facts))
