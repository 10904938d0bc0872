"""Reported step times against a clock, by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.plausibility import (
    Implausible,
    ReportClock,
    StepClaim,
    claim_check,
)


def claim(num_steps: int, seconds: float) -> StepClaim:
    return StepClaim(num_steps, seconds, compute_s=(), accelerators=1)


def played(*reports: tuple[float, int, float], away_s: float = 0.0) -> list[str]:
    """Give reports of (time of arrival, steps, seconds); list what is found, "" for nothing."""
    clock, codes = ReportClock(generation=1, heard_s=0.0), []
    for at_s, num_steps, seconds in reports:
        clock, found = claim_check(clock, claim(num_steps, seconds), at_s, {1}, away_s=away_s)
        codes.append(found.code if found else "")
    return codes


def test_a_report_claims_at_most_the_time_that_passed() -> None:
    # 10 s, 5 % of them and 2 s of delay
    assert played((10.0, 1, 12.5)) == [""]
    assert played((10.0, 1, 12.6)) == ["too_slow"]


def test_a_minute_of_unclaimed_time_can_be_claimed_later() -> None:
    # Of 1000 s, 100 are claimed; 60 of the rest are kept, and 10 pass until the second report:
    # 70 s, 3.5 s and 2 s.
    assert played((1000.0, 100, 100.0), (1010.0, 1, 75.4)) == ["", ""]
    assert played((1000.0, 100, 100.0), (1010.0, 1, 75.6)) == ["", "too_slow"]


def test_one_step_may_take_an_hour() -> None:
    assert played((3600.0, 1, 3600.0), (7200.0, 1, 3600.0)) == ["", ""]


def test_a_false_claim_takes_no_time_from_true_ones() -> None:
    assert played((1.0, 1, 1000.0), (2.0, 1, 1.0)) == ["too_slow", ""]


def test_steps_take_a_tenth_of_the_time_per_step() -> None:
    # After the first report 10 steps within 10 s: a second per step.
    assert played((0.0, 1, 0.0), (10.0, 10, 1.0)) == ["", ""]
    assert played((0.0, 1, 0.0), (10.0, 10, 0.99)) == ["", "too_fast"]


def test_a_few_false_reports_among_true_ones_are_found() -> None:
    true = [(float(second), 10, 1.0) for second in range(1, 100)]
    assert set(played(*true)) == {""}
    assert played(*true, (100.0, 10, 0.01), (101.0, 10, 1.0))[-2:] == ["too_fast", ""]


def test_old_time_per_step_is_forgotten() -> None:
    slow = [(100.0 * number, 1, 100.0) for number in range(1, 5)]
    fast = [(400.0 + number, 100, 1.0) for number in range(1, 200)]
    codes = played(*slow, *fast)
    # The periods that count may still begin with the slow steps, for two minutes at most.
    assert set(codes[4 + 120 :]) == {""}


def test_time_without_contact_does_not_count() -> None:
    clock = ReportClock(generation=1, heard_s=0.0)
    for at_s in (1.0, 8.0):
        clock, found = claim_check(clock, claim(7, at_s - 1.0), at_s, {1})
        assert found is None
    after, found = claim_check(clock, claim(10, 1.0), 1000.0, {1}, away_s=990.0)
    assert found is None
    for _ in range(90):  # the reports that had to wait arrive together
        after, found = claim_check(after, claim(10, 10.0), 1000.0, {1})
        assert found is None
    assert claim_check(clock, claim(10, 1.0), 1000.0, {1})[1] is not None


@given(
    st.lists(
        st.tuples(st.floats(0.01, 100.0), st.integers(1, 100), st.floats(0.2, 1.0)),
        min_size=1,
        max_size=50,
    )
)
def test_steps_of_equal_length_are_plausible_however_they_are_reported(
    rows: list[tuple[float, int, float]],
) -> None:
    clock, now_s, step_s = ReportClock(generation=1, heard_s=0.0), 0.0, 0.5
    found: Implausible | None = None
    for wait_s, num_steps, share in rows:
        now_s += min(wait_s, 1.0) + num_steps * step_s / share
        clock, found = claim_check(clock, claim(num_steps, num_steps * step_s), now_s, {1})
        assert found is None


@given(
    st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(1, 100)), min_size=5, max_size=50),
    st.floats(1e-6, 1e6),
)
def test_what_is_believed_is_within_the_bounds(
    rows: list[tuple[float, int]], factor: float
) -> None:
    """The accepted seconds never exceed what has passed, the tolerance of each report aside."""
    clock, now_s, claimed_s = ReportClock(generation=1, heard_s=0.0), 0.0, 0.0
    for wait_s, num_steps in rows:
        now_s += wait_s
        clock, found = claim_check(clock, claim(num_steps, wait_s * factor), now_s, {1})
        claimed_s += 0.0 if found else wait_s * factor
    assert claimed_s <= now_s * 1.05**2 + 4.1 * len(rows)
