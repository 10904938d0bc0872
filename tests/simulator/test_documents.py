"""Figures of docs/simulator.md are those of the code and of the tests."""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.simulator import FLAT_30, MEASURED
from controlplane.simulator.published.recipe import NUM_JOBS, SHARES
from tests.simulator.test_rounds import PUBLISHED

TEXT = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def test_the_table_of_costs() -> None:
    for name, costs in (("measured", MEASURED), ("flat:30", FLAT_30)):
        row = re.search(rf"^\| `{name}` \|(.*)$", TEXT, re.MULTILINE)
        assert row is not None
        cells = [float(cell.removesuffix(" s")) for cell in row[1].split(" | ")[:4]]
        assert cells == [costs.start_s, costs.pause_s, costs.growth_s, costs.release_s]


def test_the_published_figures() -> None:
    """The tests reproduce them to the last digit."""
    assert f"Tiresias {PUBLISHED['tiresias']:.2f} s" in TEXT
    assert f"{PUBLISHED['optimus']:.2f} s, as published" in TEXT


def test_the_recipe() -> None:
    assert f"{NUM_JOBS} jobs in 8 hours" in TEXT
    for category, share in {**SHARES, "extra large": SHARES["xlarge"]}.items():
        assert category == "xlarge" or f"{100 * share:.0f} % {category} (" in TEXT
