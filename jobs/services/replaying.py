"""Answers one question "what if": replays the recorded past twice, as it was and changed."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from jobs.models import Replay

Progress = Callable[[float], None]


class ReplayStoppedError(Exception):
    """A replay came to no end, for a reason that people are told."""

    def __init__(self, text: str, at: datetime.datetime) -> None:
        super().__init__(text)
        self.at = at


def replay_answer(replay: Replay, _progress: Progress) -> dict[str, Any]:
    """Replay the past of `replay`; see the fields of the result below.

    Raises:
        ReplayStoppedError: there is nothing to replay, it takes too long, or it was cancelled.
    """
    raise ReplayStoppedError("There is no simulator yet.", replay.end_at)
