"""The overview: counts, figures, and what others' jobs show of themselves."""

from __future__ import annotations

import json

from django.test import Client
from pytest_django import DjangoAssertNumQueries

from jobs.models import Job
from tests.frontend.page_text import page_text
from tests.frontend.world import World


def test_the_overview_counts_and_explains(admin: Client) -> None:
    text = page_text(admin.get("/"))
    assert "Accelerators in use 7 of 10" in text
    assert "Active 3 jobs" in text
    assert "Waiting 2 jobs" in text
    assert "2 virtual nodes: 0\N{EN DASH}1" in text
    waiting = text.index("Needs at least 4 accelerators of kind cpu; 2 are free")
    assert waiting < text.index("digits, patient running Weight 300 of 400 gives 3 of 8")


def test_accelerators_of_a_job_that_starts_do_not_train(world: World, admin: Client) -> None:
    """Trainers join before their first steps are told."""
    Job.objects.filter(pk=world.jobs["running"].pk).update(status="starting")
    text = page_text(admin.get("/"))
    assert [text.count(f"cpu {number} starting") for number in range(3)] == [1, 1, 1]


def test_others_jobs_take_places_on_the_map_but_have_no_names(world: World, ben: Client) -> None:
    response = ben.get("/")
    text = page_text(response)
    assert "Accelerators in use by all jobs 7 of 10" in text
    assert text.count("another person") == 4  # three of "running", one of "script"
    assert "patient" not in text
    assert f"/jobs/{world.jobs['running'].pk}/" not in response.content.decode()
    assert "Waiting jobs that you see 1 job" in text


def test_others_jobs_have_no_names_in_figures_either(world: World, ben: Client) -> None:
    figures = ben.get("/figures/").content.decode()
    assert "patient" not in figures
    labels = [entry["label"] for entry in json.loads(figures)["allocation"]["legend"]]
    assert labels[0] == "other people's jobs"
    assert labels[1].startswith(f"#{world.jobs['urgent'].pk} character transformer")


def test_the_overview_draws_what_was_held(admin: Client) -> None:
    figures = admin.get("/figures/").json()
    bands = {trace["name"].split()[0]: trace["y"] for trace in figures["allocation"]["data"][:-1]}
    assert [y[-1] for y in bands.values()] == [3, 3, 1]
    assert figures["throughput"]["data"][0]["y"]


def test_members_are_told_which_figures_are_their_own(admin: Client, ada: Client) -> None:
    assert page_text(ada.get("/")).count("jobs that you see") == 3
    assert "jobs that you see" not in page_text(admin.get("/"))


def test_the_overview_needs_few_queries(
    admin: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(8):
        admin.get("/")
