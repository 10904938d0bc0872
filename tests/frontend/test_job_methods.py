"""Selection of examples and tuning on the page of a job."""

from __future__ import annotations

from django.test import Client
from django.utils import timezone

from jobs.models import Job, StepReport
from tests.frontend.page_text import page_text
from tests.frontend.world import World, make_job
from tests.support.rows import trial_make


def test_a_tuning_shows_its_trials_and_why_they_were_kept(world: World, ada: Client) -> None:
    space = {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}}
    job = make_job(world.ada, "tuned", tuning={"space": space}, step=80)
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "Tuning 0 trials in 0 steps, 0 % of the job's steps so far No trials yet" in text
    assert "learning_rate (at most 20 trials per search and 30 % of the steps; searches" in text
    for number, end in enumerate(("kept", "diverged"), start=1):
        trial_make(
            job,
            number,
            values={"learning_rate": 0.1 * number},
            steps=20,
            start_loss=2.0,
            losses=[1.5, 1.25],
            verdict="converging",
            speed=0.0375,
            end=end,
            search_end="trials" if end == "kept" else "",
            step=40,
        )
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "2 trials in 40 steps, 50 % of the job's steps so far; the latest search has en" in text
    assert (
        "1 the job's start search 1 learning_rate 0.1 20 2.0000 → 1.2500 0.0375 converging yes "
        "kept: the job goes on from it" in text
    )
    assert "no its loss diverged" in text


def test_parallel_trials_are_shown_with_their_jobs(world: World, ada: Client) -> None:
    space = {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}}
    tuning = {"space": space, "parallel": True, "max_trials": 6, "max_parallel": 2}
    job = make_job(world.ada, "tuned", tuning=tuning, step=80)
    fork = {"values": {"learning_rate": 0.25}}
    child = make_job(
        world.ada, "tuned, trial 2", trial_of=job, forked_from=job, fork=fork, tuning=tuning,
        tier="idle", step=72,
    )  # fmt: skip
    for number, one, values in ((1, None, {}), (2, child, fork["values"])):
        trial_make(job, number, values=values, start_loss=2.0, child=one, is_running=True, step=60)
    answer = ada.get(f"/jobs/{job.pk}/")
    text = page_text(answer)
    assert "2 trials in 0 steps, beside the job on idle accelerators" in text
    assert "(at most 6 trials, 2 at a time on idle accelerators)" in text
    assert "1 step 60 round 1 unchanged 0 2.0000" in text
    assert "2 step 60 round 1 learning_rate 0.25 12 2.0000" in text
    link = f'<a href="/jobs/{child.pk}/" aria-label="Trial 2, job {child.pk}">'
    assert link in answer.content.decode()
    shown = page_text(ada.get(f"/jobs/{child.pk}/"))
    assert "learning_rate (a trial: learning_rate 0.25)" in shown
    assert f"Trial of job #{job.pk}" in shown
    assert "tuned, trial 2" not in page_text(ada.get("/jobs/"))
    assert "tuned, trial 2" in page_text(ada.get(f"/jobs/?trial_of={job.pk}"))


def test_a_selection_shows_what_was_analysed_and_trained(world: World, ada: Client) -> None:
    job = make_job(
        world.ada, "selects", selection={"method": "selective_backprop", "beta": 2.0, "end": 3}
    )
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "0 trained of 0, 0 analysed Speed-up over plain epochs" in text
    assert "not predicted" in text
    assert "Nothing chosen yet" in text
    measured = {"selection": {"loss_s": 1.0, "step_s": 3.0}}
    Job.objects.update(facts=measured, most_chosen=[[41, 9], [7, 8]])
    job.example_previews.create(place=41, label="cat", image=b"png")
    for epoch, candidates in enumerate((0, 2000, 2000, 0)):
        StepReport.objects.create(
            job=job,
            generation=1,
            first_step=10 * epoch,
            last_step=10 * epoch + 9,
            epoch=epoch,
            examples=640,
            candidates=candidates,
            analysed=candidates // 2,
            pass_s=0.2 if candidates else 0.0,
            seconds=1.0,
            num_accelerators=1,
            at=timezone.now(),
        )
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "Examples selected 32 % 1.28 k trained of 4 k, 2 k analysed" in text
    # 4000 candidates at 1.6 s for 1280 trained examples, in 2 s; 1 / (1/3 + 1/3).
    # The newest: 0.4 s for 2000 analysed, 1.6 s for 1280 trained; 1 / (0.16 + 1/3).
    assert (
        "Speed-up over plain epochs 2.50 1.50 predicted with one accelerator, 2.03 by the newest"
        in text
    )
    assert "Place Example Label Times 41 cat 9 7 \u2013 \u2013 8" in text
    image = f'<img class="example" src="/api/v1/jobs/{job.pk}/examples/41/image/"'
    assert image in ada.get(f"/jobs/{job.pk}/").content.decode()
    assert "Selection selective_backprop (beta 2.0, from epoch 1 to 3)" in text
    assert "Examples selected" not in page_text(ada.get(f"/jobs/{world.jobs['running'].pk}/"))
