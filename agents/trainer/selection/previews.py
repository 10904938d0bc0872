"""Previews of examples: a small picture, if an example is an image, and its label."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError
from controlplane.core.protocol.selection import LABEL_LENGTH, PICTURE_SIDE

#: Seconds for which the leader reads examples at the end of an epoch; others are waiting for it.
READ_LIMIT_S = 0.1
#: Least height and width of an array that is taken for an image.
LEAST_SIDE = 4


class PreviewReports:
    """Makes the previews of the examples of successive reports, each as long as it is new.

    An example is new if it was not in the report before.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()

    def new(
        self, places: Sequence[int], fetch: Callable[[np.ndarray], tuple[Any, ...]]
    ) -> list[dict[str, Any]]:
        """Return previews of new examples; those for which the time is over come with a later one.

        Args:
            places: places in the data of the examples of a report.
            fetch: reads examples, as `ExampleSource.fetch`. An example that cannot be read has no
                preview.
        """
        until = time.monotonic() + READ_LIMIT_S
        known, previews = self._known.intersection(places), []
        for place in places:
            if place in known:
                continue
            if time.monotonic() > until:
                break
            known.add(place)
            with suppress(JobCodeError):
                previews.append(preview_of(place, fetch(np.array([place], np.int64))))
        self._known = known
        return previews


def preview_of(place: int, example: tuple[Any, ...]) -> dict[str, Any]:
    """Return the preview of a batch of one example, `(x[, y[, sample_weight]])`."""
    pictures = (_picture(np.asarray(leaf[0])) for leaf in keras.tree.flatten(example[0]))
    return {
        "place": place,
        "label": _label(example[1])[:LABEL_LENGTH] if len(example) > 1 else "",
        "picture": next((picture for picture in pictures if picture is not None), None),
    }


def _picture(array: np.ndarray) -> dict[str, Any] | None:
    """Return an image in 8 bits, at most `PICTURE_SIDE` wide and high; None for other arrays.

    Images are numbers of shape [height, width, 1, 3 or 4], or [side, side]. Values are stretched
    to the whole range, as data are scaled in many ways.
    """
    is_grey = array.ndim == 2 and array.shape[0] == array.shape[1]
    is_image = is_grey or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not is_image or array.dtype.kind not in "uif" or min(array.shape[:2]) < LEAST_SIDE:
        return None
    shrink = max(1.0, max(array.shape[:2]) / PICTURE_SIDE)
    rows, columns = (
        (np.arange(max(1, int(side / shrink))) * shrink).astype(int) for side in array.shape[:2]
    )
    few = array.reshape(*array.shape[:2], -1)[rows][:, columns, :3].astype("float64")
    few = np.nan_to_num(few, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = few.min(), few.max()
    scaled = (few - low) * (255.0 / (high - low) if high > low else 0.0)
    height, width, channels = few.shape
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "pixels": base64.b64encode(np.rint(scaled).astype(np.uint8).tobytes()).decode(),
    }


def _label(labels: Any) -> str:
    """Return the label of a batch of one example as text; "" if it is no class, number or text."""
    if isinstance(labels, Mapping):
        texts = ((name, _label(value)) for name, value in labels.items())
        return ", ".join(f"{name} {text}" for name, text in texts if text)
    if keras.tree.is_nested(labels):
        return ", ".join(filter(None, map(_label, labels)))
    value = np.asarray(np.asarray(labels)[0]).squeeze()
    if value.ndim == 1 and value.dtype.kind in "biuf":
        is_one_hot = np.count_nonzero(value) == 1 and value.max() == 1
        return str(int(np.argmax(value))) if is_one_hot else ""
    if value.ndim:
        return ""
    if value.dtype.kind in "biuf":
        return f"{float(value):g}"
    found = value.item()
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
