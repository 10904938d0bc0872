"""Models put together of one choice for each factor, and rows that cover every pair of choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, product
from typing import Any

import keras
from keras import layers, optimizers

from tests.conformance.cases import TOLERANCE, Case
from tests.conformance.harness import Schedule
from tests.conformance.models import SEQUENCE, integers, numbers, positive

Choice = Callable[..., Any]
#: Gradients of nothing but rounding stay small under it; the default magnifies them to full steps.
EPSILON = 1e-3

NORMALIZATIONS: Mapping[str, Choice] = {
    "no normalisation": layers.Identity,
    "batch": layers.BatchNormalization,
    "layer": layers.LayerNormalization,
    "group": lambda: layers.GroupNormalization(2),
    "rms": layers.RMSNormalization,
    "unit": layers.UnitNormalization,
}
DROPOUTS: Mapping[str, Choice] = {
    "no dropout": layers.Identity,
    "dropout": lambda: layers.Dropout(0.3),
    "spatial": lambda: layers.SpatialDropout1D(0.3),
    "noise shape": lambda: layers.Dropout(0.3, noise_shape=(None, 1, 4)),
    "gaussian": lambda: layers.GaussianDropout(0.2),
    "noise": lambda: layers.GaussianNoise(0.2),
}
OPTIMIZERS: Mapping[str, Choice] = {
    "sgd": lambda **options: optimizers.SGD(0.02, **options),
    "nesterov": lambda **options: optimizers.SGD(0.02, 0.9, nesterov=True, **options),
    "adam": lambda **options: optimizers.Adam(0.01, epsilon=EPSILON, **options),
    "amsgrad": lambda **options: optimizers.AdamW(
        0.01, epsilon=EPSILON, **{"amsgrad": True, **options}
    ),
    "rmsprop": lambda **options: optimizers.RMSprop(
        0.01, epsilon=EPSILON, **{"centered": True, **options}
    ),
    "nadam": lambda **options: optimizers.Nadam(0.01, epsilon=EPSILON, **options),
}
OPTIONS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.1},
    "global clipnorm": {"global_clipnorm": 0.1},
    "average": {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 4},
    "accumulation": {"gradient_accumulation_steps": 2},
    "decay": {"weight_decay": 0.02},
}
#: Policy -> what its rounding may make of a sum in another order.
POLICIES: Mapping[str, float] = {
    "float32": TOLERANCE,
    "mixed_bfloat16": 5e-2,
    "mixed_float16": 1e-2,
}
OUTPUTS = ("one output", "a tuple", "a dict", "weighted")
FACTORS: tuple[tuple[str, ...], ...] = (
    tuple(NORMALIZATIONS),
    tuple(DROPOUTS),
    tuple(OPTIMIZERS),
    tuple(OPTIONS),
    tuple(POLICIES),
    OUTPUTS,
)
Row = tuple[str, ...]
#: Equal slices of whole batches: Keras gives the losses of single outputs one vote per call.
EVEN = Schedule(batch_size=12, epochs=5)


def pairs_of(row: Row) -> set[tuple[int, int, str, str]]:
    """List the pairs of choices in a row, each with the factors they belong to."""
    return {(a, b, row[a], row[b]) for a, b in combinations(range(len(row)), 2)}


def covering_rows() -> list[Row]:
    """Choose rows, greedily, until each pair of choices of two factors stands in one of them."""
    open_pairs = set().union(*(pairs_of(row) for row in product(*FACTORS)))
    rows: list[Row] = []
    while open_pairs:
        first = min(open_pairs)
        chosen: dict[int, str] = {first[0]: first[2], first[1]: first[3]}
        for factor in range(len(FACTORS)):
            if factor not in chosen:
                chosen[factor] = max(
                    FACTORS[factor], key=lambda choice: _new(chosen, factor, choice, open_pairs)
                )
        rows.append(tuple(chosen[factor] for factor in range(len(FACTORS))))
        open_pairs -= pairs_of(rows[-1])
    return rows


def _new(chosen: Mapping[int, str], factor: int, choice: str, open_pairs: set[Any]) -> int:
    """Count the pairs that a choice would add to a row."""
    pairs = (
        (other, factor, kept, choice) if other < factor else (factor, other, choice, kept)
        for other, kept in chosen.items()
    )
    return sum(pair in open_pairs for pair in pairs)


def row_case(row: Row) -> Case:
    """Make the case of a row."""
    weights: Any = ()
    targets: Any = numbers(2, seed=1)
    if row[-1] != "one output":
        targets = (targets, integers(2, 1).astype("float32"))
    if row[-1] == "a dict":
        targets = dict(zip(("low", "high"), targets, strict=True))
    if row[-1] == "weighted":
        weights = ((positive(), positive()),)
    return Case(
        "combination", ", ".join(row), lambda: row_model(row),
        (numbers(*SEQUENCE), targets, *weights), tolerance=POLICIES[row[4]], schedule=EVEN,
    )  # fmt: skip


def row_model(row: Row) -> keras.Model:
    """Make the model of a row; the heads are in single precision, as Keras advises."""
    normalization, dropout, optimizer, option, policy, outputs = row
    keras.config.set_dtype_policy(policy)
    inputs = keras.Input(SEQUENCE)
    features = layers.Dense(4, use_bias=False)(inputs)
    features = layers.Activation("tanh")(NORMALIZATIONS[normalization]()(features))
    features = layers.GRU(3)(DROPOUTS[dropout]()(features))
    low = layers.Dense(2, name="low", dtype="float32")(features)
    high = layers.Dense(1, name="high", activation="sigmoid", dtype="float32")(features)
    given: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer](**OPTIONS[option])}
    if outputs == "one output":
        model = keras.Model(inputs, low)
        model.compile(loss="mse", metrics=["mae"], **given)
        return model
    is_dict = outputs == "a dict"
    model = keras.Model(inputs, {"low": low, "high": high} if is_dict else (low, high))
    losses: Any = ("mse", "binary_crossentropy")
    if is_dict:
        losses = dict(zip(("low", "high"), losses, strict=True))
    model.compile(loss=losses, **given)
    return model
