"""A real trainer that follows its next orders after one exact step, and not before.

`python -m tests.agents.trainer.scheduled_trainer STEPS --run-dir DIR ...`: STEPS is a JSON object,
generation -> the last step that is done in it. When that step comes the trainer waits until there
are later orders. With it a test says where switches come, which otherwise is a matter of time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from agents.trainer.__main__ import main
from agents.trainer.contract.run_dir import OrderWatcher
from agents.trainer.engine.trainer import Trainer
from agents.trainer.model.progress import Activity
from agents.trainer.resize.membership_change import MembershipChange
from controlplane.core.protocol.wire import TrainerOrders


def scheduled_program(last_steps: Mapping[int, int]) -> tuple[str, ...]:
    """Give the command that starts such a trainer."""
    text = json.dumps({str(generation): step for generation, step in last_steps.items()})
    return sys.executable, "-m", "tests.agents.trainer.scheduled_trainer", text


def schedule_install(last_steps: Mapping[int, int]) -> None:
    """Let every trainer of this process look for its next orders only in the last steps."""
    train = Trainer._train
    look = OrderWatcher.next_after
    current: list[Trainer] = []

    def train_noted(trainer: Trainer) -> TrainerOrders | None:
        current[:] = [trainer]
        return train(trainer)

    def look_in_time(watcher: OrderWatcher, generation: int) -> TrainerOrders | None:
        last = last_steps.get(generation)
        progress = current[0].progress if current else None
        if last is None or progress is None:
            return look(watcher, generation)
        if progress.activity is not Activity.TRAIN or progress.step + 1 != last:
            return None
        return watcher.wait_for(lambda _: look(watcher, generation) is not None)

    is_prepared = MembershipChange.is_prepared

    def prepared_at_once(handover: MembershipChange, *arguments: Any) -> bool:
        """Rehearse before the step instead of beside it and those that follow."""
        if not is_prepared(handover, *arguments):
            handover.end_beside()
        return is_prepared(handover, *arguments)

    MembershipChange.is_prepared = prepared_at_once  # type: ignore[method-assign]
    Trainer._train = train_noted  # type: ignore[method-assign]
    OrderWatcher.next_after = look_in_time  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    text, *rest = sys.argv[1:]
    schedule_install({int(generation): step for generation, step in json.loads(text).items()})
    sys.exit(main(rest))
