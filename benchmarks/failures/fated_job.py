"""A job whose trainers are lost at the place and the slot that a file names.

Its code runs inside the trainer. So it can end the process (SIGKILL) or stop it (SIGSTOP) at an
exact place of the trainer's own code, and it can cut the process off from its peers: packets that
arrive for it are dropped by the kernel then. See `fates` for the other side.

Nothing of that changes what is computed. The model has dropout and batch statistics, so randomness
and non-trainable state have to survive too, and its state is so large that joiners get it beside
the training.
"""

import ctypes
import functools
import importlib
import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np

#: place -> module and name of the function at whose call it is, and which calls count (None: all).
PLACES = {
    "computing": ("step.stepper", "local_rows", lambda call: call[1].place[2] == "train"),
    "evaluating": ("step.stepper", "local_rows", lambda call: call[1].place[2] == "validate"),
    "reducing": ("collectives.tree_reduction", "Exchange.__call__", lambda call: call[5].phase < 2),
    "rehearsing": ("step.stepper", "Stepper.rehearse", None),
    "joining": ("resize.membership_change", "meeting_receive", None),
    "joined": (
        "resize.membership_change",
        "MembershipChange.digest_beside",
        lambda call: call[1] == "after",
    ),
    "switching": ("resize.membership_change", "MembershipChange.switch", None),
    "recovering": ("resize.membership_change", "gather_progress", None),
    "checkpointing": ("model.checkpointing", "state_save", None),
    "saving": ("engine.tasks", "results_save", None),
}
SLOW_STEP_S = 2.0
LOOK_EVERY_S = 0.02
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


@keras.saving.register_keras_serializable()
class Ballast(keras.layers.Layer):
    """Holds 4 MiB and a little that nothing changes, and costs the steps nothing."""

    def build(self, input_shape):
        del input_shape
        self.weight = self.add_weight(shape=(2**20 + 1,), initializer="ones", trainable=False)

    def call(self, inputs):
        return inputs


def build(settings):
    """Return (compiled model, training data, validation data)."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            Ballast(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    random = np.random.default_rng(11)
    inputs = random.normal(size=(256, 8)).astype("float32")
    targets = np.sin(inputs.sum(axis=1, keepdims=True)).astype("float32")
    run_dir = Path(os.environ.get("VIRTUALFLOW_RUN_DIR", ""))
    if run_dir.parent.name == "trainers" and "agents.trainer.engine.trainer" in sys.modules:
        Fate(Path(settings["fates"]), int(run_dir.name.partition("-")[2]), settings).install()
    if "fails_after" in settings:
        return model, Failing(inputs, targets, settings["fails_after"]), None
    return model, (inputs, targets), (inputs[:64], targets[:64])


class Failing:
    """Data whose own code fails after so many examples."""

    def __init__(self, inputs, targets, fails_after):
        self.inputs, self.targets, self.num_left = inputs, targets, fails_after

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.num_left -= 1
        if self.num_left < 0:
            raise LookupError("the examples are used up")
        return self.inputs[index], self.targets[index]


class Fate:
    """The losses planned for the trainer in one slot."""

    def __init__(self, folder, slot, settings):
        self.folder, self.slot = folder, slot
        self.pace_s, self.slow_from = settings["pace_s"], settings["slow_from"]
        self.is_cut = self.may_run = False
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
        self.instructions = drop_all
        self.drop_all = struct.pack("@HP", 1, ctypes.addressof(drop_all))

    def install(self):
        """Look at every place from now on, and whether to be cut off."""
        for place, (module_name, names, counts) in PLACES.items():
            owner = importlib.import_module(f"agents.trainer.{module_name}")
            *classes, name = names.split(".")
            for class_name in classes:
                owner = getattr(owner, class_name)
            setattr(owner, name, self.watched(place, getattr(owner, name), counts))
        sys.addaudithook(self.on_event)
        threading.Thread(target=self.watch_cut, name="fate", daemon=True).start()

    def watched(self, place, original, counts):
        @functools.wraps(original)
        def call(*arguments, **options):
            if counts is None or counts(arguments):
                if place == "computing":
                    self.keep_pace(arguments[1].place[0])
                self.meet(place)
            return original(*arguments, **options)

        return call

    def keep_pace(self, step):
        """Take a while for a step until the go file is there."""
        pace_s = self.pace_s if step < self.slow_from else SLOW_STEP_S
        until = time.monotonic() + pace_s
        while not self.may_run and (left_s := until - time.monotonic()) > 0:
            self.may_run = (self.folder / "go").exists()
            time.sleep(min(left_s, LOOK_EVERY_S))

    def meet(self, place):
        """Be lost here if that is this trainer's fate; write down when, just before."""
        for whose in (self.slot, "joiner"):
            path = self.folder / f"{place}@{whose}"
            if not path.exists():
                continue
            try:
                fate = json.loads(path.read_text())
                if self.slot in fate["spared"]:
                    continue
                met = self.folder / f"met-{place}@{self.slot}"
                path.rename(met)
            except OSError:
                continue  # another one was first
            partial = met.with_suffix(".partial")
            partial.write_text(str(time.time()))
            partial.replace(met.with_suffix(".at"))
            os.kill(os.getpid(), fate["signal"])

    # ---- no packets arrive -----------------------------------------------------------------------

    def watch_cut(self):
        path = self.folder / f"cut@{self.slot}"
        while True:
            was_cut, self.is_cut = self.is_cut, path.exists()
            if self.is_cut or was_cut:
                self.filter_all()
            if self.is_cut and was_cut:  # also what was accepted beside the first round
                (self.folder / f"is-cut@{self.slot}").touch()
            time.sleep(LOOK_EVERY_S)

    def filter_all(self):
        for entry in Path("/proc/self/fd").iterdir():
            try:
                if str(entry.readlink()).startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                        self.filter(copy)
            except OSError:
                pass  # closed meanwhile

    def filter(self, which):
        if which.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if self.is_cut:
            which.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, self.drop_all)
        else:
            which.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def on_event(self, name, arguments):
        """Let no connection of our own through either."""
        if name == "socket.connect" and self.is_cut:
            self.filter(arguments[0])
