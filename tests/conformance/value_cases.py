"""Cases of regularizers, constraints, initializers and dtype policies."""

from __future__ import annotations

from typing import Any

import keras
from keras import constraints, initializers, layers, regularizers

from tests.conformance.cases import Case
from tests.conformance.models import (
    VECTOR,
    Make,
    data_for,
    finished,
    layer_case,
    numbers,
    optimizer_plain,
)

#: Sums in half precision round differently when their terms come in another order.
HALF = {"tolerance": 6e-2, "note": "compared within the rounding of 16-bit numbers"}


class OwnRegularizer(regularizers.Regularizer):
    def __call__(self, x: Any) -> Any:
        return 0.01 * keras.ops.sum(keras.ops.abs(x) ** 3)


class OwnConstraint(constraints.Constraint):
    def __call__(self, w: Any) -> Any:
        return keras.ops.clip(w, -0.4, 0.4)


class OwnInitializer(initializers.Initializer):
    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return 0.1 * keras.random.normal(shape, dtype=dtype, seed=3)


def weight_cases() -> list[Case]:
    """List regularizers, constraints and initializers, each at the weights of a dense layer."""
    penalties: dict[tuple[str, str], Make] = {
        ("Regularizer", "own"): OwnRegularizer,
        ("L1", ""): regularizers.L1, ("L2", ""): regularizers.L2,
        ("L1L2", ""): lambda: regularizers.L1L2(0.01, 0.02),
        ("OrthogonalRegularizer", ""): regularizers.OrthogonalRegularizer,
        ("OrthogonalRegularizer", "columns"): lambda: regularizers.OrthogonalRegularizer(
            mode="columns"),
    }  # fmt: skip
    bounds: dict[tuple[str, str], Make] = {
        ("Constraint", "own"): OwnConstraint,
        ("MaxNorm", ""): lambda: constraints.MaxNorm(0.5),
        ("MinMaxNorm", ""): lambda: constraints.MinMaxNorm(0.2, 0.5, rate=0.7),
        ("NonNeg", ""): constraints.NonNeg, ("UnitNorm", ""): constraints.UnitNorm,
        ("UnitNorm", "axis 1"): lambda: constraints.UnitNorm(axis=1),
    }  # fmt: skip
    plain = ("GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "LecunNormal",
             "LecunUniform", "RandomNormal", "RandomUniform", "TruncatedNormal",
             "VarianceScaling", "Orthogonal", "Ones", "Zeros", "Identity")  # fmt: skip
    starts: dict[tuple[str, str], Make] = {
        ("Initializer", "own"): OwnInitializer,
        ("Constant", ""): lambda: initializers.Constant(0.1),
        **{(kind, ""): getattr(initializers, kind) for kind in plain},
    }
    return [
        *(
            layer_case(subject, option, lambda make=make, place=place: layers.Dense(
                4, activation="tanh", **{place: make()}))
            for kinds, place in ((penalties, "kernel_regularizer"), (bounds, "kernel_constraint"),
                                 (starts, "kernel_initializer"))
            for (subject, option), make in kinds.items()
        ),
        layer_case("STFT", "", lambda: SpectrumLayer()),
    ]  # fmt: skip


class SpectrumLayer(layers.Layer):
    """Layer of a job whose weights start as a Fourier transform."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(shape[-1], 1, 4), initializer=initializers.STFT("real"), name="kernel"
        )

    def call(self, inputs: Any) -> Any:
        return inputs @ self.kernel[:, 0, :]


def policy_model(policy: Any) -> keras.Model:
    """Make two layers of a policy; the head stays in single precision, as Keras advises."""
    keras.config.set_floatx("float32")
    inputs = keras.Input(VECTOR)
    hidden = layers.Dense(5, activation="tanh", dtype=policy)(inputs)
    hidden = layers.Dense(4, dtype=policy)(hidden)
    return finished(inputs, hidden, optimizer=optimizer_plain())


def double_model() -> keras.Model:
    keras.config.set_floatx("float64")
    inputs = keras.Input(VECTOR)
    outputs = layers.Dense(2)(layers.Dense(5, activation="tanh")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=optimizer_plain(), loss="mse", metrics=["mae"])
    return model


def map_model() -> keras.Model:
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    policies["stem"] = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    inputs = keras.Input(VECTOR)
    hidden = layers.Dense(5, name="stem", dtype=policies)(inputs)
    return finished(inputs, hidden)


def quantized_model(mode: str) -> keras.Model:
    inputs = keras.Input(VECTOR)
    hidden = layers.Dense(8, name="stem")(inputs)
    model = finished(inputs, layers.Dense(4)(hidden))
    model.get_layer("stem").quantize(mode)
    return model


def policy_cases() -> list[Case]:
    """List dtype policies: plain, mixed and quantised ones."""
    arrays = data_for(numbers(*VECTOR))

    def of(subject: str, option: str, build: Make, **more: Any) -> Case:
        return Case(subject, option, build, arrays, **more)

    halves = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
    policies = keras.dtype_policies
    return [
        *(of("DTypePolicy", kind, lambda kind=kind: policy_model(kind), **HALF)
          for kind in halves),
        of("DTypePolicy", "float32", lambda: policy_model("float32")),
        of("DTypePolicy", "float64", double_model),
        of("FloatDTypePolicy", "", lambda: policy_model(
            policies.FloatDTypePolicy("mixed_bfloat16")), **HALF),
        of("DTypePolicyMap", "", map_model, **HALF),
        of("QuantizedDTypePolicy", "int8", lambda: quantized_model("int8")),
        of("Int4DTypePolicy", "int4", lambda: quantized_model("int4")),
        of("QuantizedFloat8DTypePolicy", "float8", lambda: quantized_model("float8"),
           note="scales follow the largest numbers of each slice, averaged over slices"),
        of("GPTQDTypePolicy", "", lambda: policy_model(
            policies.GPTQDTypePolicy("gptq/4/-1", "float32")), refused="calibrated_policy"),
        of("AWQDTypePolicy", "", lambda: policy_model(
            policies.AWQDTypePolicy("awq/4/-1", "float32")), refused="calibrated_policy"),
    ]  # fmt: skip


def all_cases() -> list[Case]:
    return [*weight_cases(), *policy_cases()]
