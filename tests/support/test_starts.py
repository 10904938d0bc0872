from __future__ import annotations

from tests.support.starts import LIMITS, excesses


def test_only_what_exceeds_its_limit_is_named() -> None:
    assert excesses({}) == []
    assert excesses(LIMITS) == []
    (text,) = excesses({**LIMITS, "demos": LIMITS["demos"] + 1})
    assert text.startswith(f"{LIMITS['demos'] + 1} demos were started, {LIMITS['demos']} may be")
