"""The last line of every benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping


def figures_print(benchmark: str, figures: Mapping[str, object]) -> None:
    """Print `{"benchmark": ..., "figures": {...}}` as one line of JSON."""
    print(json.dumps({"benchmark": benchmark, "figures": figures}), flush=True)
