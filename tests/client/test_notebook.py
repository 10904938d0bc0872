"""The example notebook, run cell by cell against a live site."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE

from jobs.models import Job
from tests.client.conftest import Site, nodes_now, played_to_the_end, wait_until
from tests.client.test_jobs import file_make
from tests.test_docs import ROOT

NOTEBOOK = ROOT / "client/examples/first_job.ipynb"


def test_it_is_stored_without_output() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(codes) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)


def test_its_cells_run_in_order(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, site.address)
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.ada))
    monkeypatch.chdir(tmp_path)
    world = nodes_now()

    def play() -> None:
        wait_until(Job.objects.exists)
        job = Job.objects.get()
        file_make(job, "model.keras", b"weights")
        played_to_the_end(world, job)

    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    printed = io.StringIO()
    with site.meanwhile(play), contextlib.redirect_stdout(printed):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
    assert names["job"]["status"] == "finished"
    assert names["job"]["settings"] == {"filters": 12}
    assert Path("model.keras").read_bytes() == b"weights"
    lines = printed.getvalue().splitlines()
    assert lines[0].startswith(f"{site.address} ada")
    assert any(line.startswith("num_virtual_nodes: A batch of 60") for line in lines)
    assert "{'loss': 0.25}" in lines
