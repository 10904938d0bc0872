"""Peak memory of a trainer at a fixed slice: 4 against 64 virtual nodes, and against plain Keras.

Every arm is a process of its own that trains the same model on the same data with the same number
of threads; its peak is the kernel's own count of resident memory (`VmHWM`). A process with
TensorFlow imported, the data loaded and the model built is big before it does a step,
so whole peaks would flatter: the figures are ratios of peaks *above that level*. A trainer leaves
scikit-learn out, which Keras imports where it is installed, so each has a level of its own: that of
a process with Keras alone, with and without scikit-learn. Both ratios are in the table.

Resident memory creeps up over the first hundred slices, with any number of virtual nodes, until the
allocator has pieces of every size. So 4 and 64 virtual nodes train equally many slices: 4 do 16
times the steps.

Then a batch that plain Keras cannot hold under a memory limit: it fails there, the trainer trains
it under the same limit with more virtual nodes, and the weights are those of two trainers without
a limit, bit for bit.

    python -m benchmarks.memory [--repeats 2] [--skip-limit]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.trainer.local.local_cluster import LocalJobError
from benchmarks.figures import figures_print
from benchmarks.specs import spec_make, steps_stop
from tests.support.steered_jobs import SteeredJob

JOB = """
import keras
import numpy as np


def build(settings):
    make = {"residual": residual, "transformer": transformer}[settings["model"]]
    return make(np.random.default_rng(0), settings["num_examples"])


def residual(generator, num_examples):
    x = generator.integers(0, 256, size=(num_examples, 32, 32, 3), dtype="uint8")
    y = generator.integers(0, 10, size=num_examples).astype("int32")
    images = keras.Input((32, 32, 3), dtype="uint8")
    features = keras.layers.Rescaling(1 / 255)(images)
    features = convolution(features, 16, 1)
    for filters, strides in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        shortcut = features
        if strides != 1:
            shortcut = convolution(features, filters, strides, 1)
        features = keras.layers.ReLU()(convolution(features, filters, strides))
        features = convolution(features, filters, 1)
        features = keras.layers.ReLU()(keras.layers.Add()([features, shortcut]))
    features = keras.layers.GlobalAveragePooling2D()(features)
    model = keras.Model(images, keras.layers.Dense(10)(features))
    return compiled(model, keras.optimizers.SGD(0.01, momentum=0.9)), (x, y), None


def convolution(features, filters, strides, kernel_size=3):
    features = keras.layers.Conv2D(
        filters, kernel_size, strides, padding="same", use_bias=False
    )(features)
    return keras.layers.BatchNormalization()(features)


def transformer(generator, num_examples, context=256, width=48, num_heads=4):
    x = generator.integers(0, 128, size=(num_examples, context)).astype("int32")
    tokens = keras.Input((context,), dtype="int32")
    features = keras.layers.Embedding(128, width)(tokens)
    for _ in range(2):
        attended = keras.layers.LayerNormalization()(features)
        attended = keras.layers.MultiHeadAttention(num_heads, width // num_heads)(
            attended, attended, use_causal_mask=True
        )
        features = features + keras.layers.Dropout(0.1)(attended)
        thought = keras.layers.LayerNormalization()(features)
        thought = keras.layers.Dense(4 * width, activation="gelu")(thought)
        features = features + keras.layers.Dropout(0.1)(keras.layers.Dense(width)(thought))
    model = keras.Model(tokens, keras.layers.Dense(128)(features))
    return compiled(model, keras.optimizers.Adam(1e-3)), (x, np.roll(x, -1, 1)), None


def compiled(model, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model
"""

#: Examples of a slice for the growth, by model. A smaller slice makes the same growth weigh more.
SLICES = {"residual": 96, "transformer": 12}
#: And of the slice that is held against Keras: its activations take hundreds of MB.
LARGE_SLICES = {"residual": 256, "transformer": 24}
FEW, MANY = 4, 64
STEPS = 2
THREADS = 2
#: The batch that is too large for Keras: so many slices, and the limit in bytes.
LIMITED_SLICES = 4
LIMITED_MODEL = "residual"
TIMEOUT_S = 200.0
CGROUP_ROOT = Path("/sys/fs/cgroup/memory")
MIB = 1024**2


@dataclass
class Peaks:
    """Bytes that one repeat measured for one model.

    Attributes:
        level: the Keras process before its first step.
        trainer_level: the same without scikit-learn.
        keras: its peak when it trains with large slices as batches.
        trainer: peak of a trainer with a few virtual nodes of large slices.
        by_number: peak of a trainer by number of virtual nodes, each with a smaller slice.
    """

    level: int
    trainer_level: int
    keras: int
    trainer: int
    by_number: dict[int, int]


def main() -> int:
    """Run all repeats, print the table and the figures; 1 when something is not as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--models", nargs="+", choices=sorted(SLICES), default=sorted(SLICES))
    parser.add_argument("--skip-limit", action="store_true", help="only the peaks")
    parser.add_argument("--arm", choices=("keras", "trainer", "level"), help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm is not None:
        arms = {"keras": keras_arm, "trainer": trainer_arm, "level": level_arm}
        print(json.dumps(arms[options.arm](options.settings)))
        return 0
    repeats: dict[str, list[Peaks]] = {}
    for repeat in range(options.repeats):
        for model in options.models:
            peaks = peaks_measure(model)
            repeats.setdefault(model, []).append(peaks)
            print(f"repeat {repeat + 1}, {describe(model, peaks)}", flush=True)
    figures = summarise(repeats)
    print_table(repeats)
    limited = {} if options.skip_limit else limit_compare()
    figures_print("memory", figures | limited)
    return 0 if all(limited.values()) else 1


# ---- arms: each in a process of its own ----------------------------------------------------------


def arm_of(arm: str, **settings: Any) -> dict[str, Any]:
    """Run an arm that nothing keeps from its end."""
    answer = arm_run(arm, **settings)
    assert answer is not None, "an arm without a limit gives an answer"
    return answer


def arm_run(arm: str, limit_bytes: int | None = None, **settings: Any) -> dict[str, Any] | None:
    """Run an arm in a fresh process; gives its answer, None when it did not get to the end."""
    command = [sys.executable, "-m", "benchmarks.memory", "--arm", arm]
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    with memory_limit(limit_bytes) as enter:
        done = subprocess.run(
            [*command, "--settings", json.dumps(settings)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=None if limit_bytes is None else subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            preexec_fn=enter,
            check=False,
        )
    if done.returncode != 0:
        if limit_bytes is None:
            raise LocalJobError(f"{arm} {settings} ended with status {done.returncode}")
        return None
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def keras_arm(settings: dict[str, Any]) -> dict[str, Any]:
    """Train with `fit`: a few steps of `batch` examples; gives level and peak in bytes."""
    model, (x, y), level = job_built(settings)
    num_examples = STEPS * settings["batch"]
    model.fit(x[:num_examples], y[:num_examples], batch_size=settings["batch"], verbose=0)
    return {"level": level, "peak": memory_now()["VmHWM"]}


def level_arm(settings: dict[str, Any]) -> dict[str, Any]:
    """Build without scikit-learn, as a trainer does; gives the level in bytes."""
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # an ImportError from now on
    return {"level": job_built(settings)[2]}


def job_built(settings: dict[str, Any]) -> tuple[Any, Any, int]:
    """Import Keras and build; gives model, training data, and what the process holds in bytes."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    names: dict[str, Any] = {}
    exec(compile(JOB, "job.py", "exec"), names)
    keras.utils.set_random_seed(0)
    model, data, _ = names["build"](settings)
    model.optimizer.build(model.trainable_variables)
    return model, data, memory_now()["VmRSS"]


def trainer_arm(settings: dict[str, Any]) -> dict[str, Any]:
    """Train with real trainers; gives the first one's peak in bytes and the final digest."""
    num_virtual_nodes, num_workers = settings.pop("virtual_nodes"), settings.pop("workers")
    stop = steps_stop(settings.pop("steps", STEPS))
    spec = spec_make(settings, settings["batch"], num_virtual_nodes, stop=stop)
    with tempfile.TemporaryDirectory(prefix="virtualflow-memory-") as folder:
        code = Path(folder) / "job.py"
        code.write_text(JOB)
        with SteeredJob(spec, code, Path(folder) / "trainers", num_workers, THREADS) as job:
            job.resize(num_workers)
            peak = 0

            def is_done() -> bool:
                nonlocal peak
                with contextlib.suppress(OSError, KeyError):
                    peak = max(peak, memory_now(job.trainers[0].process.pid)["VmHWM"])
                return job.finished() is not None

            job.wait(is_done, "the job to finish", TIMEOUT_S)
            result = job.finished()
            assert result is not None
            return {"peak": peak, "digest": result["digest"]}


def memory_now(pid: int | None = None) -> dict[str, int]:
    """Read the kernel's account of a process's memory (of this one by default), in bytes.

    Raises:
        OSError: the process is gone.
    """
    text = Path(f"/proc/{pid or 'self'}/status").read_text()
    fields = (line.split() for line in text.splitlines())
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if f[-1] == "kB"}


def peaks_measure(model: str) -> Peaks:
    """Measure all arms of one model once; all hold the same data."""
    size, large = SLICES[model], LARGE_SLICES[model]
    settings = {"model": model, "num_examples": max(MANY * size, FEW * large)}
    plain = arm_of("keras", batch=large, **settings)
    level = arm_of("level", **settings)["level"]
    trainer = arm_of("trainer", batch=FEW * large, virtual_nodes=FEW, workers=1, **settings)
    slices = STEPS * MANY
    by_number = {
        number: arm_of(
            "trainer",
            batch=number * size,
            virtual_nodes=number,
            workers=1,
            steps=slices // number,
            **settings,
        )["peak"]
        for number in (FEW, MANY)
    }
    return Peaks(plain["level"], level, plain["peak"], trainer["peak"], by_number)


# ---- a batch that does not fit -------------------------------------------------------------------


@contextlib.contextmanager
def memory_limit(limit_bytes: int | None) -> Iterator[Any]:
    """Give a function that puts the process which calls it, and its children, under a limit.

    A control group where they may be made (all memory that the kernel counts), otherwise
    RLIMIT_DATA (private memory that was asked for).
    """
    if limit_bytes is None:
        yield None
        return
    group = CGROUP_ROOT / f"virtualflow-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        limits = (limit_bytes, limit_bytes)
        yield lambda: resource.setrlimit(resource.RLIMIT_DATA, limits)
        return
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        deadline = time.monotonic() + 10.0
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


def limit_compare() -> dict[str, int]:
    """Train a large batch plainly and over virtual nodes under a limit, and without one.

    The limit is the level of a built process plus half of what Keras needs above it.

    Returns:
        What has to be so, 1 where it is.
    """
    size = LARGE_SLICES[LIMITED_MODEL]
    batch = LIMITED_SLICES * size
    settings = {"model": LIMITED_MODEL, "num_examples": batch, "batch": batch}
    plain = arm_of("keras", **settings)
    limit = plain["level"] + (plain["peak"] - plain["level"]) // 2
    failed = arm_run("keras", limit, **settings)
    over_few = {"virtual_nodes": 2 * LIMITED_SLICES, **settings}
    limited = arm_run("trainer", limit, workers=1, **over_few)
    free = arm_of("trainer", workers=2, **over_few)
    is_equal = limited is not None and limited["digest"] == free["digest"]
    print(f"a batch of {batch} ({LIMITED_MODEL}) under a limit of {limit / MIB:,.0f} MiB:")
    print(f"  Keras without limit peaks at {plain['peak'] / MIB:,.0f} MiB")
    print(f"  Keras under the limit: {'killed or out of memory' if failed is None else 'fits'}")
    text = "fails" if limited is None else f"trains, peak {limited['peak'] / MIB:,.0f} MiB"
    print(f"  {2 * LIMITED_SLICES} virtual nodes under the limit: {text}")
    print(f"  weights like those of 2 trainers without a limit: {'yes' if is_equal else 'NO'}\n")
    return {
        "keras_fails_under_limit": int(failed is None),
        "trains_under_limit": int(limited is not None),
        "limited_digests_equal": int(is_equal),
    }


# ---- figures -------------------------------------------------------------------------------------


def ratios(repeats: Sequence[Peaks]) -> dict[str, float]:
    """Give medians over a model's repeats of the ratios within each."""
    pairs = {
        "growth": [
            (p.by_number[MANY] - p.trainer_level, p.by_number[FEW] - p.trainer_level)
            for p in repeats
        ],
        "growth_whole": [(p.by_number[MANY], p.by_number[FEW]) for p in repeats],
        "over_keras": [(p.trainer - p.trainer_level, p.keras - p.level) for p in repeats],
        "over_keras_whole": [(p.trainer, p.keras) for p in repeats],
    }
    return {name: statistics.median(a / b for a, b in found) for name, found in pairs.items()}


def summarise(repeats: dict[str, list[Peaks]]) -> dict[str, Any]:
    """Give the worst figure over the models, each the stricter one: above the level."""
    by_model = {model: ratios(rows) for model, rows in repeats.items()}
    figures: dict[str, Any] = {
        "growth_with_virtual_nodes": round(max(r["growth"] for r in by_model.values()), 3),
        "over_keras": round(max(r["over_keras"] for r in by_model.values()), 3),
        "growth_whole_process": round(max(r["growth_whole"] for r in by_model.values()), 3),
        "over_keras_whole_process": round(max(r["over_keras_whole"] for r in by_model.values()), 3),
    }
    for model, found in by_model.items():
        figures[f"{model}_growth"] = round(found["growth"], 3)
        figures[f"{model}_over_keras"] = round(found["over_keras"], 3)
    return figures


def describe(model: str, peaks: Peaks) -> str:
    """Render one repeat in a line."""
    by_number = ", ".join(f"{n} virtual nodes {p / MIB:,.0f}" for n, p in peaks.by_number.items())
    return (
        f"{model}: built {peaks.level / MIB:,.0f}, without scikit-learn "
        f"{peaks.trainer_level / MIB:,.0f}; slice {LARGE_SLICES[model]}: "
        f"Keras {peaks.keras / MIB:,.0f}, trainer {peaks.trainer / MIB:,.0f}; "
        f"slice {SLICES[model]}: {by_number} MiB"
    )


def print_table(repeats: dict[str, list[Peaks]]) -> None:
    """Print peaks above the level and whole, and their ratios, as medians."""
    print(f"\n{'MiB, median':40}{'above level':>12}{'whole':>9}{'ratio':>9}{'whole':>8}")
    for model, rows in repeats.items():
        level = statistics.median(p.level for p in rows)
        own = statistics.median(p.trainer_level for p in rows)
        print(f"{model}, built: {level / MIB:,.0f}, without scikit-learn {own / MIB:,.0f}")
        small, large = SLICES[model], LARGE_SLICES[model]
        print_pair(
            (f"Keras fit, batch {large}", level, [p.keras for p in rows]),
            (f"{FEW} virtual nodes, slice {large}", own, [p.trainer for p in rows]),
        )
        print_pair(
            (f"{FEW} virtual nodes, slice {small}", own, [p.by_number[FEW] for p in rows]),
            (f"{MANY} virtual nodes, slice {small}", own, [p.by_number[MANY] for p in rows]),
        )
    print()


def print_pair(*arms: tuple[str, float, list[int]]) -> None:
    """Print two arms with their levels, both as ratios to the first."""
    _, base_level, base_values = arms[0]
    base = statistics.median(base_values)
    for name, level, values in arms:
        peak = statistics.median(values)
        print(
            f"  {name:38}{(peak - level) / MIB:>12,.0f}{peak / MIB:>9,.0f}"
            f"{(peak - level) / (base - base_level):>9.3f}{peak / base:>8.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
