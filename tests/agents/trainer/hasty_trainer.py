"""A real trainer that computes no digests, so one that leaves ends as soon as it has given all."""

from __future__ import annotations

import os
import sys
from typing import Any

from agents.trainer.__main__ import main
from agents.trainer.resize.digests import Digests

HASTY_PROGRAM = (sys.executable, "-m", "tests.agents.trainer.hasty_trainer")


def _report_nothing(*_: Any) -> None:
    """Stand for `Digests.report`."""


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    Digests.report = _report_nothing  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
