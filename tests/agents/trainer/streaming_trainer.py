"""A real trainer whose joiners listen, however small the state is, for at least so many steps.

`python -m tests.agents.trainer.streaming_trainer PLAN --run-dir DIR ...`: PLAN is a JSON object:
`hear`, the steps that a listener keeps before it receives the state, and `endings` as of
`dying_trainer`. With `hear` null it receives it at once and listens to the job's end all the same.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.trainer.__main__ import main
from agents.trainer.resize import membership_change
from agents.trainer.resize.catch_up import IncomingState, StepLog
from agents.trainer.step.outcomes import ReceivedStep
from tests.agents.trainer.dying_trainer import Ending, ending_install

HEARING_LIMIT_S = 60.0


def streaming_program(hear: int | None, endings: Sequence[Ending] = ()) -> tuple[str, ...]:
    """Give the command that starts such a trainer, for any slot of a job."""
    text = json.dumps({"hear": hear, "endings": [asdict(ending) for ending in endings]})
    return sys.executable, "-m", "tests.agents.trainer.streaming_trainer", text


def streaming_install(hear: int | None) -> None:
    """Stream every state; hold it back until a listener has heard enough."""
    has_heard = threading.Event()
    add, receive = StepLog.add, membership_change.state_receive

    def add_counted(kept: StepLog, heard: ReceivedStep) -> None:
        add(kept, heard)
        if hear is not None and len(kept) >= hear:
            has_heard.set()

    def receive_late(*arguments: Any, **options: Any) -> Any:
        if "lanes" in options:  # a streamed state
            assert has_heard.wait(HEARING_LIMIT_S), "nothing is heard"
        return receive(*arguments, **options)

    membership_change.STREAM_FROM_BYTES = 0
    if hear is None:
        IncomingState.is_here = property(lambda _: False)  # type: ignore[assignment,method-assign]
        return
    StepLog.add = add_counted  # type: ignore[method-assign]
    membership_change.state_receive = receive_late  # type: ignore[attr-defined]


if __name__ == "__main__":
    faulthandler.enable()
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    text, *rest = sys.argv[1:]
    plan = json.loads(text)
    folder = Path(rest[rest.index("--run-dir") + 1])
    streaming_install(plan["hear"])
    for fields in plan["endings"]:
        if fields["slot"] == int(folder.name.rpartition("-")[2]):
            ending_install(Ending(**fields), folder)
    sys.exit(main(rest))
