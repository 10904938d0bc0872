"""Fingerprint of a job's data, and warnings about it, from a few sampled examples."""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np

from agents.trainer.data.arrays import refuse_changing
from agents.trainer.data.nests import PART_NAMES, array_bytes
from agents.trainer.data.sources import ExampleSource

#: Number of sampled examples, spread evenly over the data.
SAMPLED_EXAMPLES = 8


def data_fingerprint(*sources: ExampleSource | None) -> str:
    """Return a SHA-256 (hex) over length, shapes, types and some examples of each source.

    The fingerprint of a job is the same on every trainer, unless its data depends on the process:
    on the order of a set or of a folder's files, on the time, on unseeded random numbers.
    """
    digest = hashlib.sha256()
    for source in sources:
        if source is None:
            digest.update(b"none;")
            continue
        digest.update(f"{len(source)};".encode())
        for path, leaf in keras.tree.flatten_with_path(_sampled(source)):
            digest.update(f"{path}{leaf.dtype}{leaf.shape};".encode())
            digest.update(array_bytes(leaf))
    return digest.hexdigest()


def changing_refuse(source: ExampleSource, field: str) -> None:
    """Read the sampled examples twice: one of two may look alike by chance, as if flipped or not.

    Raises:
        JobCodeError: they differ.
    """
    refuse_changing(_sampled(source), _sampled(source), field)


def data_warnings(source: ExampleSource, field: str) -> list[str]:
    """Return warnings about non-finite values in the sampled examples."""
    warnings = []
    for path, leaf in keras.tree.flatten_with_path(_sampled(source)):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            name = PART_NAMES[path[0]] + "".join(f"[{key!r}]" for key in path[1:])
            warnings.append(f"{field}.{name} holds values that are not finite (NaN or infinity)")
    return warnings


def _sampled(source: ExampleSource) -> tuple[Any, ...]:
    count = min(SAMPLED_EXAMPLES, len(source))
    return source.fetch(np.linspace(0, len(source) - 1, count).astype(np.int64))
