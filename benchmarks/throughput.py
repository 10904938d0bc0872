"""Training speed: the engine against Keras and TensorFlow's own distribution, side by side.

One process: Keras 3 `fit` (numpy arrays, compiled as Keras chooses on this device,
`steps_per_execution` 1) against the engine with 1, 4 and 16 virtual nodes, exact, and with 16 in
fast mode, where they run together. The engine starts its
trainers with a memory allocator that keeps what is freed; how `fit` does with the same stands
beside it (`fit-kept`), and counts in no figure. Two and three processes:
MultiWorkerMirroredStrategy with `tf_keras` `fit` and with a hand-written loop, the faster of which
counts, against a real job of the engine, fast and exact, with four virtual nodes. All arms train
the same network on the same data with the same global batch; every process has one thread.

All arms of a number of processes are alive at once; one runs, the others wait for it or are
stopped by a signal. Each repeat runs all of them in turn, in another order (arms alone: eight
times, for less long), and ratios are medians over all turns.

    python -m benchmarks.throughput [--models cnn,residual,transformer] [--repeats 2]
        [--processes 1,2,3]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agents.trainer.contract.environment import heap_environment
from benchmarks.figures import figures_print
from benchmarks.specs import spec_make
from benchmarks.throughput_arms import job as job_module
from benchmarks.throughput_arms.job import NETWORKS
from benchmarks.throughput_arms.serve import NUM_THREADS
from controlplane.core.protocol.wire import ReductionMode, ReportKind
from tests.support.steered_jobs import SteeredJob

#: Keras, Keras with the engine's settings of the allocator, numbers of virtual nodes.
ALONE = ("fit", "fit-kept", "1", "4", "16", "16-fast")
JOB_VIRTUAL_NODES = 4
#: Seconds that one arm runs in one turn.
ALONE_S = 0.4
TOGETHER_S = 2.0
#: Turns of arms alone per repeat: pairs lie close together in time, and other work on the machine
#: spoils some of them rather than all.
TURNS_ALONE = 8
TRIAL_STEPS = 3
ANSWER_LIMIT_S = 120.0
SETTLE_S = 0.3
#: Repeats with three processes, which are in no figure, at most.
REPEATS_OF_THREE = 1

#: Gives examples per second of one repeat.
Measure = Callable[[], float]
Rates = dict[str, list[float]]


class ArmProcess:
    """One or more processes of `benchmarks.throughput_arms` that get the same commands."""

    def __init__(self, module: str, environments: Sequence[dict[str, str]]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed at exit
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.throughput_arms.{module}"],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
            for environment in environments
        ]

    def __enter__(self) -> ArmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._errors.close()

    def ask(self, network: str, arm: str, steps: int) -> float:
        """Run some steps in every process; gives seconds per step, of the slowest."""
        command = json.dumps({"network": network, "arm": arm, "steps": steps}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(command)
            process.stdin.flush()
        return max(self._answer(process)["wall_s"] for process in self._processes)

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, float]:
        watchdog = threading.Timer(ANSWER_LIMIT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._errors.seek(0)
            said = self._errors.read()[-3000:].decode(errors="replace")
            raise SystemExit(f"an arm failed or did not answer in time\n{said}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def measure(self, network: str, arm: str, seconds: float) -> Measure:
        """Prepare an arm; what it gives runs it for about `seconds`."""
        step_s = self.ask(network, arm, TRIAL_STEPS)
        steps = max(4, round(seconds / step_s))
        return lambda: NETWORKS[network][2] / self.ask(network, arm, steps)


class StoppedJob:
    """A job of the engine that runs only while it is measured."""

    def __init__(self, job: SteeredJob) -> None:
        self._job = job

    def signal(self, number: signal.Signals) -> None:
        """Stop or continue all of its trainers."""
        for trainer in self._job.trainers.values():
            trainer.process.send_signal(number)

    def grow(self, num_workers: int) -> None:
        """Run with another trainer from now on, without a restart."""
        self.signal(signal.SIGCONT)
        self._job.resize(num_workers)
        self._job.wait_step(self._job.step() + TRIAL_STEPS)
        self.signal(signal.SIGSTOP)

    def rate(self) -> float:
        """Let it run; gives examples per second between its first and last `steps` report."""
        self.signal(signal.SIGCONT)
        started_at = time.time() + SETTLE_S
        time.sleep(SETTLE_S + TOGETHER_S)
        self.signal(signal.SIGSTOP)
        for trainer in self._job.trainers.values():
            trainer.read()
        reports = sorted(
            (report.at, report.data["examples"])
            for trainer in self._job.trainers.values()
            for report in trainer.reports
            if report.kind is ReportKind.STEPS and report.at > started_at
        )
        if len(reports) < 2:
            raise SystemExit("a job reported too few steps: its steps are too long")
        num_examples: int = sum(examples for _, examples in reports[1:])
        return num_examples / (reports[-1][0] - reports[0][0])


def main() -> int:
    """Run everything, print the tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--processes", default="1,2,3", help="numbers of processes to measure, of 1,2,3"
    )
    options = parser.parse_args()
    models = options.models.split(",")
    unknown = sorted(set(models) - set(NETWORKS))
    if unknown:
        parser.error(f"--models: {unknown} are not among {sorted(NETWORKS)}")
    sizes = [int(size) for size in options.processes.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stopped jobs must not be left
    figures: dict[str, float] = {}
    if 1 in sizes:
        rows = measure_alone(models, options.repeats)
        print_table("one process", ALONE, rows, "fit")
        few = min(lowest(rows, arm, "fit") for arm in ("1", "4"))
        figures["one_process_ratio"] = few
        figures["one_process_16_ratio"] = lowest(rows, "16", "fit")
        figures["one_process_16_fast_ratio"] = lowest(rows, "16-fast", "fit")
    together = [size for size in (2, 3) if size in sizes]
    measured = measure_together(models, options.repeats, together)
    for size, rows in measured.items():
        print_table(f"{size} processes", ("fit", "loop", "fast", "exact"), rows, "fit", "loop")
    if 2 in sizes:
        figures["two_process_fast_ratio"] = lowest(measured[2], "fast", "fit", "loop")
        figures["two_process_exact_ratio"] = lowest(measured[2], "exact", "fit", "loop")
    figures_print("throughput", figures)
    return 0


def measure_alone(models: Sequence[str], repeats: int) -> dict[str, Rates]:
    """Measure one process each of Keras and of the engine, network by network."""
    results = {}
    kept = heap_environment(NUM_THREADS)
    with (
        ArmProcess("fit", [{}]) as keras,
        ArmProcess("fit", [kept]) as keras_kept,
        ArmProcess("engine", [kept]) as engine,
    ):
        processes = {"fit": keras, "fit-kept": keras_kept}
        for model in models:
            measures = {
                arm: processes.get(arm, engine).measure(model, arm.removesuffix("-kept"), ALONE_S)
                for arm in ALONE
            }
            results[model] = interleave(measures, repeats * TURNS_ALONE)
    return results


def measure_together(
    models: Sequence[str], repeats: int, sizes: Sequence[int]
) -> dict[int, dict[str, Rates]]:
    """Measure several processes each of the engine and of TensorFlow's strategy."""
    results: dict[int, dict[str, Rates]] = {size: {} for size in sizes}
    with ExitStack() as stack:
        clusters = {
            size: stack.enter_context(ArmProcess("workers", worker_environments(size)))
            for size in sizes
        }
        for model in models if sizes else ():
            with stopped_jobs(model, sizes[0]) as jobs:
                for size in sizes:
                    if size != sizes[0]:
                        for job in jobs.values():
                            job.grow(size)
                    measures = {
                        arm: clusters[size].measure(model, arm, TOGETHER_S)
                        for arm in ("fit", "loop")
                    } | {name: job.rate for name, job in jobs.items()}
                    times = repeats if size == 2 else min(repeats, REPEATS_OF_THREE)
                    results[size][model] = interleave(measures, times)
    return results


@contextmanager
def stopped_jobs(model: str, num_workers: int) -> Iterator[dict[str, StoppedJob]]:
    """Start a fast and an exact job of the engine, and stop each after its first steps."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throughput-")))
        jobs = {
            mode.value: stack.enter_context(_job(model, mode, folder)) for mode in ReductionMode
        }
        first = {name: job.plan(num_workers, None) for name, job in jobs.items()}
        for name, job in jobs.items():
            job.prepare(first[name])
        for name, job in jobs.items():
            job.wait_ready(first[name])
        stopped = {name: StoppedJob(job) for name, job in jobs.items()}
        for runner in stopped.values():
            stack.callback(runner.signal, signal.SIGCONT)
        for name, job in jobs.items():
            job.go(first[name])
            job.wait_switched(first[name])
            job.wait_step(TRIAL_STEPS)
            stopped[name].signal(signal.SIGSTOP)
        yield stopped


def _job(model: str, mode: ReductionMode, folder: Path) -> SteeredJob:
    code = Path(job_module.__file__)
    batch_size = NETWORKS[model][2]
    spec = spec_make({"network": model}, batch_size, JOB_VIRTUAL_NODES, reduction=mode)
    return SteeredJob(spec, code, folder / mode.value, num_slots=3, threads=NUM_THREADS)


def worker_environments(size: int) -> list[dict[str, str]]:
    """Give each worker of a new cluster its TF_CONFIG."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]
    addresses = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
    for holder in holders:
        holder.close()
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            )
        }
        for rank in range(size)
    ]


def interleave(measures: dict[str, Measure], repeats: int) -> Rates:
    """Measure all arms in turn, each repeat beginning with another one."""
    rates: Rates = {arm: [] for arm in measures}
    arms = list(measures)
    for repeat in range(repeats):
        shift = repeat % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            rates[arm].append(measures[arm]())
    return rates


def ratio(rates: Rates, arm: str, *baselines: str) -> float:
    """Compare with the faster baseline: the median of the paired ratios."""
    baseline = max(baselines, key=lambda name: statistics.median(rates[name]))
    pairs = zip(rates[arm], rates[baseline], strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def lowest(rows: dict[str, Rates], arm: str, *baselines: str) -> float:
    """Take the worst of the models."""
    return round(min(ratio(rates, arm, *baselines) for rates in rows.values()), 3)


def print_table(title: str, arms: Sequence[str], rows: dict[str, Rates], *baselines: str) -> None:
    """Print median examples per second, with the ratio to the (faster) baseline."""
    print(f"\n{title}, examples/s" + " (ratio to the faster baseline)" * (len(baselines) > 1))
    print(f"{'':12}" + "".join(f"{arm:>18}" for arm in arms))
    for model, rates in rows.items():
        cells = []
        for arm in arms:
            cell = f"{statistics.median(rates[arm]):.0f}"
            if arm not in baselines:
                cell += f" ({ratio(rates, arm, *baselines):.2f}x)"
            cells.append(f"{cell:>18}")
        print(f"{model:12}" + "".join(cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
