"""The jobs that the documentation shows are accepted as they stand there."""

import re
from pathlib import Path

import pytest

from agents.trainer.validate.run import job_validate
from controlplane.core.protocol.wire import StopCondition, StopKind
from tests.agents.trainer.local_jobs import training_spec

PAGE = Path(__file__).parents[4] / "docs" / "writing-a-job.md"
JOBS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(JOBS)))
def test_a_documented_job_is_valid(number: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOBS[number], encoding="utf-8")
    stop = StopCondition(kind=StopKind.EPOCHS, limit=1)
    spec = training_spec(global_batch_size=64, num_virtual_nodes=8, seed=0, stop=stop)
    report = job_validate(spec, tmp_path)
    assert report.ok, f"{report.code}: {report.message}\n{report.traceback}"
    assert report.facts["warnings"] == []


def test_there_are_jobs_in_the_documentation() -> None:
    assert len(JOBS) == 4


def test_every_code_of_a_refusal_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sources = Path(__file__).parents[4] / "agents" / "trainer"
    found = set()
    for pattern in ("data/*.py", "validate/*.py"):
        for path in sources.glob(pattern):
            found |= codes_in(path)
    assert len(found) > 25
    assert {code for code in found if f"`{code}`" not in page} <= {"no_entry_file"}


def codes_in(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    return set(re.findall(r'(?:JobCodeError|_refusal)\(\s*"(\w+)"', text))
