"""`python -m agents.trainer`: one trainer for an agent, a validation, or a whole local run."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from agents.trainer.contract.environment import QUIET_ENVIRONMENT
from agents.trainer.contract.fork_server import fork_server_run
from agents.trainer.contract.full_disk import output_files_open
from agents.trainer.contract.ports import port_hold
from agents.trainer.contract.run_dir import OrderWatcher
from agents.trainer.engine.startup_noise import startup_noise_dropped
from agents.trainer.local.cli import launcher_arguments, launcher_run

_ENGINE = "agents.trainer.engine.trainer"
_VALIDATION = "agents.trainer.validate.run"

#: If installed, Keras imports this package for wrappers that no trainer needs, which takes a fifth
#: of the processor time of a start, and 60 MiB. Job code may still import it.
_LEFT_OUT = "sklearn"


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the chosen mode; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agents.trainer",
        description="Train a Keras job over virtual nodes on any number of accelerators.",
    )
    parser.add_argument("--run-dir", type=Path, help="be one trainer: follow DIR/orders.json")
    parser.add_argument(
        "--fork-server", type=Path, help="import everything, then fork trainers on request"
    )
    parser.add_argument("--validate", type=Path, help="build the job in DIR once and report on it")
    parser.add_argument(
        "--parent", type=int, help="with --run-dir: end when this parent process ends"
    )
    parser.add_argument(
        "--held-port",
        type=int,
        nargs=2,
        metavar=("TCP", "UDP"),
        help="with --run-dir: open files that hold the trainer's port",
    )
    launcher_arguments(parser)
    options = parser.parse_args(arguments)
    if any((options.run_dir, options.validate, options.fork_server)):
        # TensorFlow reads these variables on import, so it is imported only after this point.
        for name, value in {**QUIET_ENVIRONMENT, "KERAS_BACKEND": "tensorflow"}.items():
            os.environ.setdefault(name, value)
    if options.fork_server is not None:
        request = fork_server_run(options.fork_server, _import_all)
        # The generator of NumPy is the only one that forked processes would share.
        importlib.import_module("numpy").random.seed()
        options = parser.parse_args([request.option, request.run_dir])
    if options.validate is not None or options.run_dir is not None:
        output_files_open()
    if options.validate is not None:
        validation = _with_tensorflow(_VALIDATION)
        _leave(int(validation.validation_run(options.validate) or 0))
    if options.run_dir is not None:
        # The watcher touches the pulse file from the start; importing TensorFlow takes seconds.
        watcher = OrderWatcher(options.run_dir, options.parent)
        held = port_hold(watcher.orders, options.held_port)
        engine = _with_tensorflow(_ENGINE)
        _leave(int(engine.trainer_run(options.run_dir, watcher=watcher, held=held)))
    if options.job is None:
        parser.error("give a JOB.py to train, or --run-dir, or --validate")
    return launcher_run(options)


def _leave(status: int) -> NoReturn:
    """End the process at once.

    `sys.exit` would wait for threads that the job has started, and crash with those still inside
    TensorFlow.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _import_all() -> None:
    """Import what a trainer or a validation needs."""
    for module in (_ENGINE, _VALIDATION):
        _with_tensorflow(module)


def _with_tensorflow(module: str) -> ModuleType:
    """Import a module that imports TensorFlow and Keras, without Keras's import of `_LEFT_OUT`.

    Garbage collection is disabled meanwhile, and the imported objects are frozen: half a million
    objects are permanent, and traversing them repeatedly takes a third of the import time.
    """
    is_left_out = _LEFT_OUT not in sys.modules
    if is_left_out:
        sys.modules[_LEFT_OUT] = None  # type: ignore[assignment]  # an ImportError from now on
    gc.disable()
    try:
        with startup_noise_dropped():
            return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
        if is_left_out:
            del sys.modules[_LEFT_OUT]


if __name__ == "__main__":
    sys.exit(main())
