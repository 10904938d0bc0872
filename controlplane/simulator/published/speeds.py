"""Relative speeds of kinds of accelerators, from Gavel's measurements.

The profiles of Pollux were measured on T4. Gavel measured steps per second of similar jobs on V100,
P100 and K80 (OSDI 2020), but not on T4. A T4 is equated with Gavel's P100; each application takes
the ratios of the most similar job of Gavel's, alone on one accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from controlplane.simulator.workloads.reading import json_read, number_of, row_of

#: The kind of Gavel's that is equated with the accelerators of the profiles.
LEVEL = "p100"

#: Application of Pollux -> the most similar job that Gavel measured.
SIMILAR: Mapping[str, str] = MappingProxyType(
    {
        "bert": "('Transformer (batch size 16)', 1)",
        "cifar10": "('ResNet-18 (batch size 128)', 1)",
        "deepspeech2": "('LM (batch size 20)', 1)",
        "imagenet": "('ResNet-50 (batch size 64)', 1)",
        "ncf": "('Recommendation (batch size 2048)', 1)",
        "yolov3": "('ResNet-50 (batch size 16)', 1)",
    }
)


def gavel_speeds(path: Path) -> dict[str, dict[str, float]]:
    """Read application -> kind -> speed relative to the accelerators of the profiles.

    Raises:
        ValueError: the file is not a table of Gavel's.
    """
    table = json_read(path, "--kind-speeds")
    with row_of("--kind-speeds", f"{path} is no table of Gavel's"):
        kinds = [kind for kind in table if not kind.endswith("_unconsolidated")]
        rates = {
            job: {kind: number_of(table[kind][job], "null") for kind in [LEVEL, *kinds]}
            for job in SIMILAR.values()
        }
        for job, by_kind in rates.items():
            if min(by_kind.values()) <= 0.0:
                raise ValueError(f"steps a second of {job} must be positive on each kind")
    return {
        application: {kind: rates[job][kind] / rates[job][LEVEL] for kind in kinds}
        for application, job in SIMILAR.items()
    }
