"""A real trainer that is lost at one exact place of its code.

`python -m tests.agents.trainer.dying_trainer ENDINGS --run-dir DIR ...`: ENDINGS is a JSON list of
the fields of `Ending`; those for the slot of this run directory are put in place before the trainer
starts. It then runs as always until the moment comes.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.trainer.__main__ import main
from agents.trainer.contract.failures import PEER_LOST, TrainerError
from agents.trainer.contract.run_dir import orders_read


@dataclass(frozen=True)
class Ending:
    """Where and how a trainer is lost.

    Attributes:
        place: "module:name" or "module:Class.name" of a function.
        generation: calls count from the first one with orders of this generation or a later one.
        call: number of the call, from 1.
        activity: count only calls whose second argument is a batch for this activity.
        survives: do not die before the call, but fail after it as if a peer had been lost.
    """

    slot: int
    place: str
    generation: int = 1
    call: int = 1
    activity: str | None = None
    survives: bool = False


def dying_program(endings: Sequence[Ending]) -> tuple[str, ...]:
    """Give the command that starts such a trainer, for any slot of a job."""
    text = json.dumps([asdict(ending) for ending in endings])
    return sys.executable, "-m", "tests.agents.trainer.dying_trainer", text


def ending_install(ending: Ending, run_dir: Path) -> None:
    """Replace the function of an ending by one that counts its calls."""
    module_name, _, names = ending.place.partition(":")
    owner: Any = importlib.import_module(module_name)
    *classes, name = names.split(".")
    for class_name in classes:
        owner = getattr(owner, class_name)
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if orders_read(run_dir).membership.generation < ending.generation:
            return original(*arguments, **options)
        if ending.activity in (None, _activity(arguments)):
            calls += 1
        if calls == ending.call and not ending.survives:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == ending.call:
            calls += 1
            raise TrainerError(PEER_LOST, "as if a peer had been lost")
        return result

    setattr(owner, name, counted)


def _activity(arguments: tuple[Any, ...]) -> str | None:
    place = getattr(arguments[1], "place", None) if len(arguments) > 1 else None
    return None if place is None else str(place[2])


if __name__ == "__main__":
    faulthandler.enable()
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    text, *rest = sys.argv[1:]
    folder = Path(rest[rest.index("--run-dir") + 1])
    for fields in json.loads(text):
        if fields["slot"] == int(folder.name.rpartition("-")[2]):
            ending_install(Ending(**fields), folder)
    sys.exit(main(rest))
