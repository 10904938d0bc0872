"""The pages of jobs that predict."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.test import Client
from django.utils import timezone

from controlplane.core.values.lifecycle import JobStatus
from frontend.live.progress import ShownProgress, job_progress
from jobs.models import Artifact, Job
from tests.frontend.world import World, make_job
from tests.support.rows import PREDICTION, artifact_make


def model_give(job: Job) -> Artifact:
    """Let a finished job have left a model."""
    artifact, _ = Artifact.objects.update_or_create(
        job=job,
        name="model.keras",
        defaults={"sha256": "a" * 64, "size_bytes": 5, "generation": 1, "at": timezone.now()},
    )
    artifact.file.save("model.keras", ContentFile(b"model"))
    return artifact


def sent_from(page: Any, **changes: Any) -> dict[str, Any]:
    """Give what a browser sends of a form as it is shown."""
    shown = page.context["form"].initial | {"do": "submit"} | changes
    return {k: "on" if v is True else v for k, v in shown.items() if v not in (None, False)}


def test_a_finished_job_is_two_clicks_from_a_prediction(world: World, ada: Client) -> None:
    source = world.jobs["finished"]
    model_give(source)
    page = ada.get(f"/jobs/{source.pk}/").content.decode()
    (address,) = re.findall(r'href="(/jobs/new/\?from=\d+&amp;task=predict)"', page)
    form = ada.get(address.replace("&amp;", "&"))
    assert form.context["form"].initial["task"] == "predict"
    assert f"<h1>Run predictions with the code of job #{source.pk}</h1>" in form.content.decode()
    assert form.context["form"].initial["source_job"] == source.pk
    # The fields of training are sent along, hidden, and count for nothing.
    response = ada.post("/jobs/new/", sent_from(form, name="guesses", stop_limit="77"))
    assert response.status_code == 302, response.context["form"].errors
    job = Job.objects.get(name="guesses")
    assert (job.task, job.source_job, job.stop_limit, job.shuffle) == ("predict", source, 1, False)
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert f'with the model of <a href="/jobs/{source.pk}/">' in page
    assert "one pass over its data" in page
    again = ada.get(f"/jobs/new/?from={job.pk}").context["form"].initial
    assert (again["task"], again["source_job"]) == ("predict", source.pk)
    source.artifacts.filter(name="model.keras").update(name="model.weights.h5")
    page = ada.get(f"/jobs/{source.pk}/").content.decode()
    assert "Download weights <small>model.weights.h5" in page
    assert "task=predict" not in page


@pytest.mark.parametrize("do", ["submit", "check"])
def test_a_source_that_will_not_do_is_said_at_its_field(do: str, world: World, ada: Client) -> None:
    form = ada.get(f"/jobs/new/?from={world.jobs['finished'].pk}&task=predict")
    answer = ada.post(
        "/jobs/new/",
        sent_from(form, source_job="999999", do=do),
        headers={"Accept": "application/json"},
    ).json()
    assert answer["errors"] == {"source_job": ["You have no job 999999."]}


def test_a_training_job_ignores_the_hidden_source(world: World, ada: Client) -> None:
    form = ada.get(f"/jobs/new/?from={world.jobs['finished'].pk}")
    response = ada.post("/jobs/new/", sent_from(form, name="again", source_job="999999"))
    assert response.status_code == 302
    assert Job.objects.get(name="again").source_job is None


def test_its_page_has_no_loss_and_offers_its_predictions(world: World, ada: Client) -> None:
    job = make_job(world.ada, "guesses", JobStatus.FINISHED)
    Job.objects.filter(id=job.pk).update(
        **PREDICTION, generation=1, step=4, facts={"num_examples": 100, "steps_per_epoch": 4}
    )
    artifact_make(job, "predictions.npz", file=ContentFile(b"whole", "predictions.npz"))
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert 'data-figure="loss"' not in page
    assert "<dt>Loss</dt>" not in page
    assert "100 of 100 examples" in page
    assert "Run predictions" not in page
    file = ada.get(f"/jobs/{job.pk}/files/predictions.npz/")
    assert b"".join(file.streaming_content) == b"whole"  # type: ignore[attr-defined]


def test_progress_counts_examples() -> None:
    job = Job(**PREDICTION, global_batch_size=20, step=3, status="running", examples_per_s=10.0)
    assert job_progress(job, 6, 105) == ShownProgress("60 of 105 examples", 0.5)
    assert job_progress(job, 6) == ShownProgress("batch 3 of 6", 0.5)
    job.step = 6
    assert job_progress(job, 6, 105).text == "105 of 105 examples"
