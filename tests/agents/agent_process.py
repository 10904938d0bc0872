"""`python -m agents` with fake trainers and short waits, for tests that need a process."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys

from agents.__main__ import run
from agents.settings import settings_from
from tests.agents.builders import FAKE_TRAINER

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    settings = dataclasses.replace(
        settings_from(sys.argv[1:], os.environ),
        trainer_command=FAKE_TRAINER,
        backoff_first_s=0.02,
        backoff_cap_s=0.1,
        long_poll_s=5.0,
    )
    sys.exit(run(settings))
