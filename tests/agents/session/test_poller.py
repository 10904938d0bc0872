"""The thread that asks for the desired state."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from agents.session.client import RequestRefusedError
from agents.session.poller import WantedPoller
from tests.agents.builders import agent_settings


def test_a_desired_state_that_is_refused_for_long_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats are taken meanwhile: the node looks well, and starts nothing."""

    class Client:
        def wanted(self, *_arguments: object) -> None:
            raise RequestRefusedError("wanted/ answered 404", 404)

    settings = agent_settings("http://127.0.0.1:9", tmp_path)
    poller = WantedPoller(cast(Any, Client()), settings, lambda: None)
    for _ in range(20):
        poller.poll_once()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["answered 404" in record.getMessage() for record in told] == [True]
