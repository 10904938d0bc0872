"""Workloads drawn by the published recipe."""

from __future__ import annotations

from collections import Counter

import pytest

from controlplane.simulator import profiles_read
from controlplane.simulator.published.recipe import (
    RATES,
    SHARES,
    tuned_configurations,
    workload_draw,
)
from controlplane.simulator.published.synthetic import MODELS, synthetic_applications
from tests.simulator.worlds import TRACES


def test_arrivals_and_categories_are_as_published() -> None:
    """Of 4,000 jobs in 8 hours a fifth comes in the fourth; shares within two points."""
    applications = synthetic_applications()
    jobs = workload_draw(applications, 4000, seed=1, models=MODELS).jobs
    hours = Counter(int(job.submitted_at // 3600) for job in jobs)
    assert max(hours) == 7
    assert max(hours, key=lambda hour: hours[hour]) == 3
    assert hours[3] / hours[0] == pytest.approx(3.0, rel=0.2)
    for hour, rate in enumerate(RATES):
        assert hours[hour] / 4000 == pytest.approx(rate / sum(RATES), abs=0.02)
    for category, share in SHARES.items():
        number = sum(job.application in MODELS[category] for job in jobs)
        assert number / 4000 == pytest.approx(share, abs=0.02)


def test_draws_differ_by_seed_alone() -> None:
    applications = synthetic_applications()
    first, again, other = (
        workload_draw(applications, 40, seed=seed, models=MODELS).jobs for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_owners_ask_for_what_speeds_up_by_50_to_80_percent() -> None:
    for application in synthetic_applications().values():
        for count, batch in tuned_configurations(application, 48):
            assert batch in application.validations
            assert count <= 48
        assert max(count for count, _ in tuned_configurations(application, 2)) <= 2


@pytest.mark.skipif(not TRACES.exists(), reason="the traces of others are not here")
def test_configurations_are_those_of_the_published_workloads() -> None:
    """Every application asks for what it asks for in workload-6, and for nothing else."""
    apps = profiles_read(TRACES / "pollux")
    assert {name: tuned_configurations(app, 48) for name, app in apps.items()} == {
        "bert": [(6, 384), (8, 384), (12, 384), (16, 384)],
        "cifar10": [(6, 2048), (8, 2048), (12, 4096), (16, 4096)],
        "deepspeech2": [(6, 320), (8, 320), (12, 640)],
        "imagenet": [(24, 3200), (32, 6400), (48, 6400)],
        "ncf": [(1, 32768)],
        "yolov3": [(4, 64)],
    }


def test_impossible_draws_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--jobs: .* must be positive"):
        workload_draw(synthetic_applications(), 0, models=MODELS)
    with pytest.raises(ValueError, match=r"--profiles: cifar10, .* is missing; add a folder"):
        workload_draw(synthetic_applications(), 5)
