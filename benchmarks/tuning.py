"""Cost of a branch of the training state: time and memory of a fork, ten million parameters.

A fork copies nothing. TensorFlow copies each variable when it is written for the first time after
it, so the cost of these copies is in the first update after a fork, and is shown beside it. Times
are processor time. `fork_bytes` is the growth of the process's resident set by a branch, over the
state's bytes, a mean over `BRANCHES` that are kept: TensorFlow's allocator takes memory in pieces
of several variables. Freed memory stays with this allocator, which has it for the next branches:
`reused_bytes` is the part of the growth that as many branches do not need again.

    python -m benchmarks.tuning [--repeats 5]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import psutil
import tensorflow as tf

from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState
from agents.trainer.step.functions import StepFunctions
from benchmarks.figures import figures_print

#: Ten layers of 1000 x 1000: ten million parameters, 120 MB of state with Adam's two slots.
WIDTH, LAYERS = 1000, 10
FREED = 7
BRANCHES = range(10, 15)


def main() -> int:
    """Fork, train, switch and free a few times; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, other load at the start: {os.getloadavg()[0]:.1f}")
    functions = _functions()
    state = functions.state
    vector = tf.constant(np.full(functions.train_width, 1e-3), functions.dtype)

    def update() -> None:
        functions.turns[0].apply(vector).numpy()

    update()
    grown, again = (_growth(state, update) for _ in range(2))
    plain_ms = statistics.median(_ms(update) for _ in range(options.repeats))
    rows = [_cycle(state, update) for _ in range(options.repeats)]
    fork_ms, first_ms, switch_ms, free_ms = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    print(f"state {state.num_bytes / 1e6:.0f} MB, update {plain_ms:.1f} ms")
    print(f"fork {fork_ms:.2f} ms, first update after it {first_ms:.1f} ms")
    print(f"switch {switch_ms:.2f} ms, free {free_ms:.2f} ms")
    print(f"growth by a branch {grown:.3f}, again {again:.3f} of the state's bytes")
    figures = {
        "fork_ms": round(fork_ms, 3),
        "fork_bytes": round(grown, 3),
        "reused_bytes": round(1.0 - again / grown, 3),
        "first_update_ms": round(first_ms, 1),
        "update_ms": round(plain_ms, 1),
        "switch_ms": round(switch_ms, 3),
    }
    figures_print("tuning", figures)
    return 0


def _functions() -> StepFunctions:
    layers = [keras.layers.Dense(WIDTH) for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile("adam", "mse")
    sample = (np.ones((2, WIDTH), "float32"), np.ones((2, WIDTH), "float32"))
    model_build(model, sample)
    return StepFunctions(model, ModelState(model), sample, has_validation=False)


def _growth(state: ModelState, update: Callable[[], None]) -> float:
    """Fork and update a few times, then free all; returns the growth by a branch, in states."""
    before = _resident()
    for number in BRANCHES:
        state.branches.fork(number)
        update()
        update()
    grown = _resident() - before
    for number in BRANCHES:
        state.branches.free(number)
    update()
    return grown / (len(BRANCHES) * state.num_bytes)


def _cycle(state: ModelState, update: Callable[[], None]) -> tuple[float, ...]:
    """Fork, update, switch back and free; the times of each."""
    fork_ms = _ms(lambda: state.branches.fork(FREED))
    first_ms = _ms(update)
    update()
    switch_ms = _ms(lambda: state.branches.switch(FREED))
    free_ms = _ms(lambda: state.branches.free(FREED))
    update()
    return fork_ms, first_ms, switch_ms, free_ms


def _ms(call: Callable[[], object]) -> float:
    started_at = time.process_time()
    call()
    return 1e3 * (time.process_time() - started_at)


def _resident() -> int:
    """Return the resident bytes, without memory that the allocator holds free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    sys.exit(main())
