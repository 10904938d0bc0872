"""The jobs of the selection benchmark: networks of the templates on data of several kinds.

Settings:
    data: `digits`, as they are; `redundant`, each digit in `COPIES` shifted and noisy copies;
        `text`, the characters of the standard library.
    flipped: share of the training labels that is replaced by another class.
    decay_steps: steps over which a cosine brings the learning rate down to zero; None: constant.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

COPIES = 8
#: Largest shift of a copy in pixels, and the deviation of its noise in the range of a grey value.
SHIFT, NOISE = 1, 0.1
#: A larger share than the template's, so that the error moves in steps of 0.14 %.
HELD_BACK = 0.4
NUM_CHARACTERS = 60_000
RATES = {"digits": 1e-3, "redundant": 1e-3, "text": 3e-3}
Arrays = tuple[np.ndarray, np.ndarray]


def build(settings: dict[str, Any]) -> tuple[keras.Model, Arrays, Arrays]:
    """Return (compiled model, training data, validation data)."""
    from jobs.job_templates import char_transformer, digits_cnn  # for trainers: both are slow

    name: str = settings["data"]
    rate: Any = RATES[name]
    if settings.get("decay_steps"):
        rate = keras.optimizers.schedules.CosineDecay(rate, settings["decay_steps"])
    if name == "text":
        model, train, validation = char_transformer.build({"num_characters": NUM_CHARACTERS})  # type: ignore[no-untyped-call]
        model.compile(
            optimizer=keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model, _stacked(train), _stacked(validation)
    share = {"validation_share": HELD_BACK, "learning_rate": rate}
    model, (images, labels), validation = digits_cnn.build(share)  # type: ignore[no-untyped-call]
    if name == "redundant":
        images, labels = copies(images, labels)
    return model, (images, with_flips(labels, settings.get("flipped", 0.0))), validation


def copies(images: np.ndarray, labels: np.ndarray) -> Arrays:
    """Return `COPIES` variants of each image: shifted by up to a pixel, with noise."""
    draws = np.random.default_rng(1)
    shifts = draws.integers(-SHIFT, SHIFT + 1, (COPIES, len(images), 2))
    moved = [
        np.roll(image, tuple(shift), axis=(0, 1))
        for each in shifts
        for image, shift in zip(images, each, strict=True)
    ]
    noisy = np.stack(moved) + draws.normal(0.0, NOISE, (len(moved), *images.shape[1:]))
    return np.clip(noisy, 0.0, 1.0).astype("float32"), np.tile(labels, COPIES)


def with_flips(labels: np.ndarray, share: float) -> np.ndarray:
    """Return the labels with a share of them replaced by another class."""
    draws = np.random.default_rng(2)
    flipped = draws.random(len(labels)) < share
    others = (labels + draws.integers(1, 10, len(labels))) % 10
    return np.where(flipped, others, labels)


def _stacked(windows: Any) -> Arrays:
    examples = [windows[place] for place in range(len(windows))]
    inputs, targets = (np.stack(column) for column in zip(*examples, strict=True))
    return inputs, targets
