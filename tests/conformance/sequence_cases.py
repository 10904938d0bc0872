"""Cases of layers over sequences: recurrent ones, attention, masks."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from tests.conformance.cases import Case
from tests.conformance.models import (
    SEQUENCE,
    data_for,
    finished,
    layer_case,
    masked_case,
    masked_sequences,
    merge_case,
    numbers,
)

FILMS = {"ConvLSTM1D": (4, 6, 2), "ConvLSTM2D": (3, 5, 5, 2), "ConvLSTM3D": (3, 4, 4, 4, 1)}


class OwnCell(layers.Layer):
    """Cell of a job: the mean of what it is given and of its state."""

    state_size = 3

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, inputs: Any, states: Any) -> Any:
        state = 0.5 * states[0] + 0.5 * keras.ops.tanh(inputs @ self.kernel)
        return state, [state]


def stateful_case(subject: str, make: Any, shape: tuple[int, ...] = SEQUENCE) -> Case:
    """Make a case with a layer that keeps a state for each row of the batch."""

    def build() -> keras.Model:
        inputs = keras.Input(shape, batch_size=10)
        return finished(inputs, make()(inputs))

    return Case(subject, "stateful", build, data_for(numbers(*shape)), refused="stateful_layer")


def recurrent_cases() -> list[Case]:
    """List cases of recurrent layers and their cells."""
    cases = []
    for kind in ("SimpleRNN", "GRU", "LSTM"):
        make, cell = getattr(layers, kind), getattr(layers, f"{kind}Cell")
        cases += [
            layer_case(kind, "", lambda make=make: make(3), SEQUENCE),
            layer_case(kind, "dropouts",
                       lambda make=make: make(3, dropout=0.3, recurrent_dropout=0.3), SEQUENCE),
            stateful_case(kind, lambda make=make: make(3, stateful=True)),
            masked_case(kind, "masked", lambda make=make: make(3)),
            layer_case(kind, "sequences, backwards, unrolled",
                       lambda make=make: make(3, return_sequences=True, go_backwards=True,
                                              unroll=True), SEQUENCE),
            layer_case(f"{kind}Cell", "in RNN",
                       lambda cell=cell: layers.RNN(cell(3, dropout=0.2)), SEQUENCE),
        ]  # fmt: skip
    for kind, shape in FILMS.items():
        make = getattr(layers, kind)
        cases.append(layer_case(kind, "", lambda make=make: make(2, 2), shape))
        cases.append(stateful_case(kind, lambda make=make: make(2, 2, stateful=True), shape))
    cells = lambda: [layers.GRUCell(3), layers.LSTMCell(2)]  # noqa: E731
    return [
        *cases,
        layer_case("GRU", "reset before", lambda: layers.GRU(3, reset_after=False), SEQUENCE),
        layer_case("RNN", "own cell", lambda: layers.RNN(OwnCell()), SEQUENCE),
        stateful_case("RNN", lambda: layers.RNN(OwnCell(), stateful=True)),
        layer_case("StackedRNNCells", "", lambda: layers.RNN(layers.StackedRNNCells(cells())),
                   SEQUENCE),
        layer_case("Bidirectional", "", lambda: layers.Bidirectional(layers.LSTM(3)), SEQUENCE),
        layer_case("Bidirectional", "sum, sequences",
                   lambda: layers.Bidirectional(layers.GRU(3, return_sequences=True),
                                                merge_mode="sum"), SEQUENCE),
        masked_case("Bidirectional", "masked", lambda: layers.Bidirectional(layers.GRU(3))),
        layer_case("TimeDistributed", "", lambda: layers.TimeDistributed(layers.Dense(3)),
                   SEQUENCE),
        layer_case("TimeDistributed", "dropout",
                   lambda: layers.TimeDistributed(layers.Dropout(0.3)), SEQUENCE),
        masked_case("Masking", "", lambda: layers.LSTM(4)),
        Case("Masking", "mask reaches the loss", masked_output,
             (masked_sequences(), numbers(*SEQUENCE)),
             places=masked_sequences().any(axis=2).sum(axis=1)),
    ]  # fmt: skip


def masked_output() -> keras.Model:
    inputs = keras.Input(SEQUENCE)
    model = keras.Model(inputs, layers.Dense(3)(layers.Masking()(inputs)))
    model.compile(optimizer="sgd", loss="mse")
    return model


def attention_model(make: Any, mask: bool = False, **call: Any) -> keras.Model:
    """Make a model in which a sequence attends to itself."""
    inputs = keras.Input(SEQUENCE)
    features = layers.Masking()(inputs) if mask else inputs
    features = layers.Dense(4)(features)
    attended = make()(features, features, **call)
    return finished(inputs, layers.GlobalAveragePooling1D()(attended))


def attention_cases() -> list[Case]:
    """List cases of attention, with masks and dropout."""
    heads, groups = layers.MultiHeadAttention, layers.GroupQueryAttention
    kinds = {
        ("MultiHeadAttention", ""): (lambda: heads(2, 3), {}),
        ("MultiHeadAttention", "causal, dropout"): (
            lambda: heads(2, 3, dropout=0.3), {"use_causal_mask": True}),
        ("MultiHeadAttention", "masked"): (lambda: heads(2, 3), {"mask": True}),
        ("MultiHeadAttention", "flash off"): (
            lambda: heads(2, 3, value_dim=2, use_bias=False, output_shape=3), {}),
        ("GroupedQueryAttention", ""): (lambda: groups(3, 4, 2), {}),
        ("GroupedQueryAttention", "causal, dropout"): (
            lambda: groups(3, 4, 2, dropout=0.3), {"use_causal_mask": True}),
        ("GroupedQueryAttention", "masked"): (lambda: groups(3, 4, 2), {"mask": True}),
    }  # fmt: skip
    arrays, padded = data_for(numbers(*SEQUENCE)), data_for(masked_sequences())
    cases = [
        Case(
            subject, option, lambda make=make, call=call: attention_model(make, **call),
            padded if "mask" in call else arrays,
        )
        for (subject, option), (make, call) in kinds.items()
    ]  # fmt: skip
    for kind in ("Attention", "AdditiveAttention"):
        make = getattr(layers, kind)
        cases.append(merge_case(kind, "", make, SEQUENCE))
        cases.append(merge_case(kind, "dropout", lambda make=make: make(dropout=0.3), SEQUENCE))
    cases.append(
        merge_case("Attention", "scaled, by concatenation",
                   lambda: layers.Attention(use_scale=True, score_mode="concat"), SEQUENCE)
    )  # fmt: skip
    return cases


def all_cases() -> list[Case]:
    return [*recurrent_cases(), *attention_cases()]
