"""How much faster one kind of accelerator is than another, from Gavel's measurements.

The profiles of Pollux were taken on T4. Gavel measured steps a second of similar jobs on V100, P100
and K80 (OSDI 2020), but not on T4. A T4 is put level with Gavel's P100; each application takes the
ratios of the job of Gavel's that is most like it, alone on one accelerator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

#: The kind of Gavel's that the measured accelerators are put level with.
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
        ValueError: the file is not one of Gavel's.
    """
    try:
        table = json.loads(path.read_text())
        kinds = [kind for kind in table if not kind.endswith("_unconsolidated")]
        level = table[LEVEL]
        return {
            application: {
                kind: float(table[kind][job]["null"]) / float(level[job]["null"]) for kind in kinds
            }
            for application, job in SIMILAR.items()
        }
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"kind-speeds: cannot read {path}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"kind-speeds: {path} is no table of Gavel's: {error!r}") from error
