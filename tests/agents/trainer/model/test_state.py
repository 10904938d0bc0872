"""The complete state: order, digest, bytes, checkpoint file."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from agents.trainer.contract.failures import TrainerError
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import (
    ModelState,
    as_array,
    checkpoint_read,
    checkpoint_write,
    pack,
    state_digest,
)

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"]


class Store(keras.layers.Layer):
    """One weight of each dtype, with odd shapes, and a number as NumPy cannot convert it."""

    def build(self, input_shape: object) -> None:
        self.kept = [
            self.add_weight(shape=(3, index), dtype=dtype, initializer="ones", trainable=False)
            for index, dtype in enumerate(DTYPES)
        ]
        self.number = self.add_weight(shape=(), dtype="bfloat16", trainable=False)

    def call(self, inputs: object) -> object:
        return inputs


def state_of(units: int = 3) -> ModelState:
    model = keras.Sequential(
        [keras.Input((2,)), Store(), keras.layers.Dropout(0.5), keras.layers.Dense(units)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    model_build(model, (np.ones((2, 2), "float32"), np.ones((2, units), "float32")))
    return ModelState(model)


def scrambled(state: ModelState) -> list[np.ndarray]:
    """Give every variable other bits, nan and infinity among them."""
    generator = np.random.default_rng(1)
    values = []
    for variable in state.variables:
        value = generator.normal(size=variable.shape) * 50
        array = np.asarray(value).astype(variable.value.dtype.as_numpy_dtype)
        if array.size > 1 and variable.value.dtype.is_floating:
            array.reshape(-1)[:2] = (np.nan, np.inf)
        values.append(array)
        variable.value.assign(array)
    return values


def same_bits(state: ModelState, values: list[np.ndarray]) -> bool:
    return all(
        as_array(variable.value).tobytes() == value.tobytes()
        for variable, value in zip(state.variables, values, strict=True)
    )


def test_the_state_has_everything_once() -> None:
    state = state_of()
    names = [spec.name for spec in state.specs]
    assert len(set(names)) == len(names)
    for part in ("kernel", "bias", "iteration", "momentum", "velocity", "learning_rate", "total"):
        assert any(part in name for name in names), part
    assert sum("seed_generator_state" in name for name in names) == 2  # dropout's and the global
    assert state.num_bytes == sum(as_array(v.value).nbytes for v in state.variables)


def test_packed_bytes_come_back_bit_for_bit() -> None:
    source, target = state_of(), state_of()
    values = scrambled(source)
    words = pack(source.capture())
    assert words.dtype == np.int32
    target.put_bytes(words.view(np.uint8))
    assert same_bits(target, values)
    assert target.layout_digest() != state_of(units=4).layout_digest()


def test_a_captured_state_does_not_follow_later_changes() -> None:
    state = state_of()
    values = scrambled(state)
    captured = state.capture()
    before = state_digest(state.specs, captured)
    for variable in state.trainable:
        variable.value.assign_add(np.ones(variable.shape, "float32"))
    assert state_digest(state.specs, captured) == before
    assert state_digest(state.specs, state.capture()) != before
    assert captured[0].numpy().tobytes() == values[0].tobytes()


def test_the_digest_sees_one_bit() -> None:
    state = state_of()
    before = state_digest(state.specs, state.capture())
    kernel = state.trainable[0].value
    bits = kernel.numpy().view(np.uint32)
    bits.reshape(-1)[0] ^= 1
    kernel.assign(bits.view(np.float32))
    assert state_digest(state.specs, state.capture()) != before


def test_a_checkpoint_restores_every_bit(tmp_path: Path) -> None:
    source, target = state_of(), state_of()
    values = scrambled(source)
    path = tmp_path / "checkpoint.npz"
    digest = checkpoint_write(path, source, source.capture(), {"step": 3})
    assert digest == state_digest(source.specs, source.capture())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint.npz"]
    assert checkpoint_read(path, target) == {"step": 3}
    assert same_bits(target, values)
    with np.load(path, allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].tobytes())
    assert meta["digest"] == digest
    assert len(meta["variables"]) == len(source.specs)


def test_a_checkpoint_restores_parked_branches_and_frees_others(tmp_path: Path) -> None:
    source, target = state_of(), state_of()
    plain = state_digest(source.specs, source.capture())
    source.branches.fork(0)
    parked = [value.numpy() for value in source.capture()]
    values = scrambled(source)
    path = tmp_path / "checkpoint.npz"
    digest = checkpoint_write(path, source, source.capture_whole(), {}, parked=[0])
    assert digest not in (plain, state_digest(source.specs, source.capture()))
    target.branches.fork(7)
    checkpoint_read(path, target)
    assert same_bits(target, values)
    assert list(target.branches.parked) == [0]
    assert state_digest(source.specs, target.capture_whole()) == digest
    target.branches.switch(0)
    assert same_bits(target, parked)


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    state = state_of()
    path = tmp_path / "checkpoint.npz"
    checkpoint_write(path, state, state.capture(), {})
    with pytest.raises(TrainerError, match="the job code changed"):
        checkpoint_read(path, state_of(units=4))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TrainerError, match="cannot be read"):
        checkpoint_read(path, state)
    with pytest.raises(TrainerError, match="cannot be read"):
        checkpoint_read(tmp_path / "missing.npz", state)


@pytest.mark.parametrize(("saved", "here"), [("a", "a"), ("", "a"), ("a", "")])
def test_a_checkpoint_goes_on_with_its_data_alone(saved: str, here: str, tmp_path: Path) -> None:
    source, target = state_of(), state_of()
    source.data_fingerprint, target.data_fingerprint = saved, here
    path = tmp_path / "checkpoint.npz"
    checkpoint_write(path, source, source.capture(), {"step": 3})
    assert checkpoint_read(path, target) == {"step": 3}
    target.data_fingerprint = "b"
    if not saved:  # of tests alone
        return
    with pytest.raises(TrainerError, match="unseeded random numbers") as caught:
        checkpoint_read(path, target)
    assert caught.value.code == "user_code"
