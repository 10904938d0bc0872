"""Numbers, progress and facts as people read them."""

from __future__ import annotations

import pytest

from frontend.live.progress import ShownProgress, job_progress
from frontend.templatetags import pages
from frontend.text.dry_run_text import _outlook_words
from frontend.text.job_facts import Fact, shown_facts
from jobs.models import Job
from jobs.selectors.dry_run import Outlook, OutlookKind

DASH = "\N{EN DASH}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, DASH), (0, "0"), (7.25, "7.25"), (1234, "1.23 k"), (1_500_000, "1.5 M"), (2e9, "2 G")],
)
def test_compact_numbers(value: float | None, expected: str) -> None:
    assert pages.compact(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, DASH), (0, "0 bytes"), (999, "999 bytes"), (1536, "1.5 kB"),
     (1024**3, "1.1 GB")],
)  # fmt: skip
def test_sizes(value: float | None, expected: str) -> None:
    assert pages.file_size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, DASH), (0.0123, "12 ms"), (1.26, "1.3 s"), (59.9, "59.9 s"), (75, "1 min 15 s"),
     (0.0, "0 s"), (300, "5 min"), (3600, "1 h"), (100_000, "27 h 46 min")],
)  # fmt: skip
def test_durations(value: float | None, expected: str) -> None:
    assert pages.seconds_text(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, DASH), (0, "0.0000"), (0.98765, "0.9877"), (0.00012, "1.200e-04"),
     (-3.5, "-3.5000"), (1e6, "1.000e+06"), ("inf", "inf")],
)  # fmt: skip
def test_losses(value: object, expected: str) -> None:
    assert pages.decimals(value) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((), ""), ((4,), "4"), ((0, 1, 2, 5), f"0{DASH}2, 5"), ((1, 3, 4), f"1, 3{DASH}4")],
)
def test_ranges(numbers: tuple[int, ...], expected: str) -> None:
    assert pages.ranges(numbers) == expected


def test_examples_of_a_part() -> None:
    assert pages.per(128, 8) == "16"
    assert pages.per(10, 4) == f"2{DASH}3"


def _job(**values: object) -> Job:
    return Job(**({"stop_kind": "epochs", "stop_limit": 10, "global_batch_size": 100} | values))


@pytest.mark.parametrize(
    ("num_stopped", "text"),
    [
        (0, "r 2 other jobs would shrink to make room and keep training."),
        (1, "r 1 other job would shrink to make room and keep training. 1 other job would be "
            "stopped until there is room again."),
    ],
)  # fmt: skip
def test_what_a_submission_takes_from_others_is_told(num_stopped: int, text: str) -> None:
    outlook = Outlook(OutlookKind.NOW, {"cpu": 2}, 2, "r", num_stopped)
    assert _outlook_words(outlook)[2] == text


def test_progress_by_steps() -> None:
    job = _job(stop_kind="steps", stop_limit=2000, step=500, status="running", examples_per_s=50.0)
    progress = job_progress(job, None)
    # 1,500 steps of 100 examples at 50 examples a second.
    assert progress == ShownProgress("step 500 of 2,000", 0.25)
    assert progress.percent == 25


def test_progress_by_epochs_goes_through_their_steps() -> None:
    assert job_progress(_job(step=45), 10) == ShownProgress("epoch 4 of 10", 0.45)


def test_progress_by_epochs_of_unknown_length() -> None:
    assert job_progress(_job(epoch=4), None) == ShownProgress("epoch 4 of 10", 0.4)
    adaptive = _job(step=45, epoch=2, batch_size_min=8, batch_size_max=64)
    assert job_progress(adaptive, 10) == ShownProgress("epoch 2 of 10", 0.2)
    forked = _job(step=450, epoch=2, fork={"step": 440, "keeps_order": False})
    assert job_progress(forked, 10) == ShownProgress("epoch 2 of 10", 0.2)


def test_a_metric_stop_may_come_earlier() -> None:
    job = _job(stop_kind="metric", step=45, status="pending", examples_per_s=50.0)
    assert job_progress(job, 10) == ShownProgress("epoch 4 of at most 10", 0.45)


def test_nearly_done_is_not_done() -> None:
    assert job_progress(_job(stop_kind="steps", stop_limit=1000, step=999), None).percent == 99
    assert job_progress(_job(stop_kind="steps", stop_limit=10, step=12), None).percent == 100


def test_facts_have_names_and_units() -> None:
    assert shown_facts(
        {
            "num_parameters": 151308,
            "state_bytes": 1536,
            "build_s": 1.001,
            "metrics": ["loss", "accuracy"],
            "data_fingerprint": "5" * 64,
            "is_deterministic": True,
            "warnings": ["slow"],
            "summary": "Model",
            "nothing": None,
            "num_unused": 0,
        }
    ) == [
        Fact("Parameters", "151,308"),
        Fact("Size of the state", "1.5 kB"),
        Fact("Build time", "1.0 s"),
        Fact("Metrics", "loss, accuracy"),
        Fact("Data fingerprint", "5" * 12 + "…", "5" * 64),
        Fact("Is deterministic", "yes"),
        Fact("Num unused", "0"),
    ]
