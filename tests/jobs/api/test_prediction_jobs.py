"""Submitting jobs that predict."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from rest_framework.test import APIClient

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job
from jobs.selectors.desired_state.state import training_spec
from jobs.services.lifecycle.retention import files_delete
from jobs.services.submission import job_actions
from jobs.services.submission.validations import validation_start
from tests.support.builders import at, job_make, node_make, submission_values, user_make
from tests.support.rows import artifact_make

URL = "/api/v1/jobs/"


def values(**changes: Any) -> dict[str, Any]:
    """Give a submission of a job that predicts."""
    given = submission_values(task="predict", **changes)
    if "stop" not in changes:
        del given["stop"]
    return given


def trained(owner: User, status: JobStatus = JobStatus.FINISHED) -> Job:
    """Make a job that has left a model."""
    job = job_make(owner, status=status)
    model = ContentFile(b"model", "model.keras")
    artifact_make(job, "model.keras", file=model, sha256="a" * 64, size_bytes=5)
    return job


def test_it_is_one_pass_in_the_order_of_the_data(ada: User, ada_client: APIClient) -> None:
    source = trained(ada)
    response = ada_client.post(URL, values(source_job=source.pk))
    assert response.status_code == 201, response.data
    assert response.data["task"] == "predict"
    assert response.data["source_job"] == source.pk
    job = Job.objects.get(id=response.data["id"])
    assert (job.stop_kind, job.stop_limit, job.shuffle) == ("epochs", 1, False)
    spec = training_spec(job)
    assert (spec.task, spec.model_sha256) == ("predict", "a" * 64)


def test_a_model_that_is_deleted_while_it_is_submitted(
    ada: User, ada_client: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = trained(ada)

    def meanwhile(*_arguments: object) -> None:
        files_delete(source.pk, at(1), actor="user:ada")

    monkeypatch.setattr(job_actions, "room_check", meanwhile)
    answer = ada_client.post(URL, values(source_job=source.pk))
    assert (answer.status_code, [*answer.json()["errors"]]) == (400, ["source_job"])
    assert Job.objects.count() == 1


def test_its_own_code_may_bring_the_model(ada_client: APIClient) -> None:
    response = ada_client.post(URL, values())
    assert response.status_code == 201, response.data
    assert response.data["source_job"] is None
    assert training_spec(Job.objects.get()).model_sha256 is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stop": {"kind": "epochs", "limit": 3}}, "stop_limit"),
        ({"stop": {"kind": "metric", "metric": "loss"}}, "stop_metric"),
        ({"shuffle": True}, "shuffle"),
        ({"allow_mixed_kinds": True}, "allow_mixed_kinds"),
        ({"batch_size_max": 128}, "batch_size_max"),
        ({"task": "guess"}, "task"),
        ({"source_job": "x"}, "source_job"),
        ({"source_job": 10**12}, "source_job"),
    ],
)
def test_what_does_not_go_with_a_prediction(
    ada_client: APIClient, change: dict[str, Any], field: str
) -> None:
    response = ada_client.post(URL, {**values(), **change})
    assert response.status_code == 400
    assert field in response.json()["errors"], response.data
    assert not Job.objects.exists()


def test_a_job_that_trains_takes_no_other_ones_model(ada: User, ada_client: APIClient) -> None:
    response = ada_client.post(URL, submission_values(source_job=trained(ada).pk))
    assert response.status_code == 400
    assert set(response.json()["errors"]) == {"source_job"}


@pytest.mark.parametrize("dry_run", ["", "?dry_run=true"])
def test_a_source_has_to_be_ones_own_and_finished_with_a_model(
    ada: User, ada_client: APIClient, dry_run: str
) -> None:
    others = trained(user_make("bob"))
    unfinished = trained(ada, JobStatus.RUNNING)
    without = job_make(ada, status=JobStatus.FINISHED)
    weights = trained(ada)
    weights.artifacts.update(name="model.weights.h5")
    told = {
        others: "You have no job",
        unfinished: "is running and has left no model",
        without: "is finished and has left no model",
        weights: "has left the weights of its model alone",
    }
    for job, text in told.items():
        response = ada_client.post(URL + dry_run, values(source_job=job.pk))
        assert response.status_code == 400, job
        ((name, (error,)),) = response.json()["errors"].items()
        assert name == "source_job"
        assert text in error


def test_a_clone_predicts_with_the_same_model(ada: User, ada_client: APIClient) -> None:
    source = trained(ada)
    first = ada_client.post(URL, values(source_job=source.pk)).data["id"]
    again = ada_client.post(f"{URL}{first}/clone/", {})
    assert again.status_code == 201, again.data
    assert (again.data["task"], again.data["source_job"]) == ("predict", source.pk)
    turned = ada_client.post(
        f"{URL}{source.pk}/clone/", {"task": "predict", "source_job": source.pk}
    )
    assert turned.status_code == 201, turned.data
    assert turned.data["stop"]["limit"] == 1


def test_only_its_nodes_fetch_the_model(ada: User, ada_client: APIClient) -> None:
    source = trained(ada)
    job = Job.objects.get(id=ada_client.post(URL, values(source_job=source.pk)).data["id"])
    for is_own in (True, False):
        _, text = node_make(f"node{int(is_own)}")
        headers = {"Authorization": f"Agent {text}"}
        if is_own:
            assert validation_start(job.validation, at(0))
        url = f"/api/v1/agent/validations/{job.validation.pk}/source/"
        response = APIClient().get(url, headers=headers)
        assert response.status_code == (200 if is_own else 404)
        if is_own:
            assert b"".join(response.streaming_content) == b"model"  # type: ignore[attr-defined]
            assert response.headers["X-Sha256"] == "a" * 64
