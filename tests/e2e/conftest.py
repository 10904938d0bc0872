"""The whole product, started once for all files of stories that want it alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from benchmarks.failures.links import open_links
from tests.e2e.stack import Stack, running_stack
from tests.support.servers import RunningServer

#: What a page shows in a moment takes longer on a machine that is busy.
expect.set_options(timeout=60_000)

#: Losses that are caused on purpose must not quarantine a node.
_VARIABLES = {"VIRTUALFLOW_QUARANTINE_DEATHS": "0"}
_ENDED = "finished,failed,invalid,cancelled"
_CLEAR_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a file wants of its stack; files with equal wishes share one."""

    name: str
    variables: tuple[tuple[str, str], ...]
    agent_options: tuple[str, ...]
    has_links: bool


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let every test with a stack have the one of its file's wish.

    A file may set STACK_VARIABLES for the site, AGENT_OPTIONS for the agents, and HAS_LINKS, so
    that a file `cut-<node>` in the stack's folder cuts an agent off from the site. pytest brings
    tests with equal parameters together, so there is one stack at a time.
    """
    if "stack" not in metafunc.fixturenames:
        return
    module = metafunc.module
    variables = {**_VARIABLES, **getattr(module, "STACK_VARIABLES", {})}
    options = tuple(getattr(module, "AGENT_OPTIONS", ()))
    has_links = getattr(module, "HAS_LINKS", False)
    is_own = variables != _VARIABLES or options or has_links
    name = module.__name__.rpartition(".")[2].removeprefix("test_") if is_own else "shared"
    wish = _Wish(name, tuple(sorted(variables.items())), options, has_links)
    metafunc.parametrize("stack", [wish], indirect=True, scope="package", ids=[name])


@pytest.fixture(scope="package")
def stack(
    request: pytest.FixtureRequest,
    postgresql_server: RunningServer,
    redis_server: RunningServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """Run every process of the product on a database of its own."""
    wish: _Wish = request.param
    folder = tmp_path_factory.mktemp(wish.name)
    with ExitStack() as opened:
        lines = {}
        if wish.has_links:
            lines["address_for"] = opened.enter_context(open_links(folder)).address_for
        yield opened.enter_context(
            running_stack(
                folder,
                postgresql_server,
                redis_server,
                wish.name,
                options_for=lambda _: wish.agent_options,
                **lines,
                **dict(wish.variables),
            )
        )


@pytest.fixture(autouse=True)
def _leaves_nothing_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the jobs that a failed test leaves on a shared stack, for the next one to have room."""
    yield
    if "stack" not in request.fixturenames:
        return
    stack: Stack = request.getfixturevalue("stack")
    left = [job for job in stack.get("jobs/")["results"] if job["status"] not in _ENDED.split(",")]
    for job in left:
        # It may have ended by now.
        stack.rest.post(f"jobs/{job['id']}/cancel/", json={"reason": "its test is over"})
    if left:
        stack.wait_for("no trainers", lambda: not stack.trainer_pids(), _CLEAR_DEADLINE_S)
