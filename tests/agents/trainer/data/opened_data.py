"""Data that is opened as a job's training data, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.sources import ExampleSource, source_open

HERE = Path(__file__).parent


def opened(data: Any) -> ExampleSource:
    return source_open(data, "data.train", HERE)


def refusal(data: Any) -> JobCodeError:
    with pytest.raises(JobCodeError) as caught:
        opened(data)
    return caught.value


def whole(source: ExampleSource) -> tuple[Any, ...]:
    return source.fetch(np.arange(len(source), dtype=np.int64))
