"""A job that writes reports itself, of a kind that the test chooses: all that a site would take."""

import json
import threading
import time
from pathlib import Path

import keras
import numpy as np

#: Above every number that the trainer itself gives, below those of the agent.
FIRST_SEQUENCE = 1_000_000
#: Far more than an agent sends, and little enough for the disk of a test.
BYTES_A_SECOND = 4 * 2**20


def build(settings):
    """Return (compiled model, training data, no validation data)."""
    own = reports_file()
    if own is not None:
        threading.Thread(target=flood, args=(own, settings), daemon=True).start()
    model = keras.Sequential([keras.Input(shape=(4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model, (np.ones((64, 4), "float32"), np.ones((64, 1), "float32")), None


def reports_file():
    """Find the file of reports among the files that are open; a validation has none."""
    for link in Path("/proc/self/fd").iterdir():
        if link.exists() and link.resolve().name == "reports.jsonl":
            return link.resolve()
    return None


def flood(path, settings):
    """Append lines like the trainer's first one; each "#" in the data becomes the line's number."""
    pattern = json.loads(path.read_text().splitlines()[0])
    pattern.update(sequence=-1, kind=settings["kind"], data=settings["data"])
    line = json.dumps(pattern).replace('"#"', "%(number)d").replace("-1", "%(sequence)d", 1)
    with path.open("a") as file:
        for number in range(10**9):
            file.write(line % {"number": number, "sequence": FIRST_SEQUENCE + number} + "\n")
            time.sleep(len(line) / BYTES_A_SECOND)
