"""A model is trained, and another job predicts with it while trainers come and go."""

from __future__ import annotations

import io
import os
import signal
from typing import Any

import numpy as np
import pytest

from tests.e2e.stack import Stack

# `make test` tries the bits and the order in tests/agents/trainer/predict, and the parts that a
# site joins in tests/jobs/submission/test_predictions.py.
pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600), pytest.mark.nightly]

NUM_EXAMPLES = 2_005
START_DEADLINE_S = 150.0
FINISH_DEADLINE_S = 150.0

CODE = f'''
import time
from pathlib import Path

import keras
import numpy as np


class Paced:
    """Examples that take their time for as long as nobody says go."""

    def __init__(self, x, settings):
        self.x = x
        self.go_file = Path(settings["go_file"])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if not self.go_file.exists():
            time.sleep(0.02)
        return self.x[index], self.x[index, :1] > 0


def build(settings):
    x = np.random.default_rng(4).normal(size=({NUM_EXAMPLES}, 5)).astype("float32")
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, Paced(x, settings), None
'''


def submit(stack: Stack, name: str, **fields: Any) -> int:
    body = {
        "name": name,
        "code": CODE,
        "settings": {"go_file": str(stack.directory / f"go-{name}")},
        "global_batch_size": 16,
        "num_virtual_nodes": 4,
        "seed": 3,
        **fields,
    }
    return int(stack.post("jobs/", body, expect=201)["id"])


def go(stack: Stack, name: str) -> None:
    (stack.directory / f"go-{name}").touch()


def file_of(stack: Stack, job_id: int, name: str) -> bytes:
    """Wait until a job has left a file, and fetch it."""

    def is_there() -> bool:
        state = stack.get(f"jobs/{job_id}/")
        assert state["status"] not in ("failed", "invalid"), state
        return any(file["name"] == name for file in state["files"])

    stack.wait_for(f"{name} of job {job_id}", is_there, FINISH_DEADLINE_S)
    response = stack.rest.get(f"jobs/{job_id}/files/{name}/")
    response.raise_for_status()
    return response.content


def members(stack: Stack, job_id: int) -> list[int]:
    """Give the slots of the membership that does steps now, the leader first."""
    rows = stack.get(f"jobs/{job_id}/generations/")["results"]
    active = next((row for row in rows if row["phase"] == "active"), None)
    return [] if active is None else [member["slot"] for member in active["members"]]


def test_a_prediction_survives_its_leader_and_keeps_bits_and_order(stack: Stack) -> None:
    go(stack, "train")
    source = submit(stack, "train", stop={"kind": "steps", "limit": 30}, max_accelerators=1)
    model_file = stack.directory / "model.keras"
    model_file.write_bytes(file_of(stack, source, "model.keras"))
    # The file is there a moment before the job counts as finished.
    stack.wait_for(
        "the end of the training",
        lambda: stack.get(f"jobs/{source}/")["status"] == "finished",
        FINISH_DEADLINE_S,
    )

    hit = submit(stack, "hit", task="predict", source_job=source, max_accelerators=2)
    stack.wait_for("2 members", lambda: len(members(stack, hit)) == 2, START_DEADLINE_S)
    before = stack.get(f"jobs/{hit}/")["step"]
    stack.wait_for("a step", lambda: stack.get(f"jobs/{hit}/")["step"] > before, 60.0)
    leader = members(stack, hit)[0]
    os.kill(stack.trainers_of(hit)[leader], signal.SIGKILL)

    def is_without_leader() -> bool:
        slots = members(stack, hit)
        return bool(slots) and leader not in slots

    stack.wait_for("a membership without it", is_without_leader, 60.0, revives=True)
    go(stack, "hit")
    disturbed = file_of(stack, hit, "predictions.npz")

    go(stack, "calm")
    calm = submit(stack, "calm", task="predict", source_job=source, max_accelerators=1)
    assert disturbed == file_of(stack, calm, "predictions.npz")
    state = stack.get(f"jobs/{calm}/")
    assert (state["status"], state["loss"]) == ("finished", None)
    assert {file["name"] for file in state["files"]} >= {"predictions.npz", "metrics.json"}
    assert not any(file["name"].startswith("predictions-") for file in state["files"])

    keras = pytest.importorskip("keras")
    model = keras.saving.load_model(model_file, compile=False)
    x = np.random.default_rng(4).normal(size=(NUM_EXAMPLES, 5)).astype("float32")
    with np.load(io.BytesIO(disturbed), allow_pickle=False) as found:
        expected = model.predict(x, batch_size=100, verbose=0)
        np.testing.assert_allclose(found["predictions"], expected, rtol=1e-4, atol=1e-5)
