"""Requests that reach a process right after its start, several at a time."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from jobs.api.addresses import query_parameters
from tests.browser.page_site import running_site

NUM_THREADS = 16
_TOKEN = """
from django.contrib.auth.models import User
from tests.support.builders import api_token_make
print(api_token_make(User.objects.get(username="admin")))
"""


@pytest.mark.parametrize("name", ["wsgi", "asgi"])
def test_the_query_parameters_are_known_before_the_first_request(name: str) -> None:
    query_parameters.cache_clear()
    importlib.reload(importlib.import_module(f"controlplane.{name}"))
    assert query_parameters.cache_info().currsize == 1


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_fresh_server_answers_all_addresses_at_once(tmp_path: Path) -> None:
    paths = [
        path.replace("{job_id}", "1") + query
        for path, method in query_parameters()
        if method == "get" and path.count("{") == path.count("{job_id}")
        for query in ("", "?no_such_parameter=1")
    ]
    assert len(paths) > NUM_THREADS
    with running_site(tmp_path) as site:
        headers = {"Authorization": f"Bearer {site.run(_TOKEN)}"}
        with (
            httpx.Client(
                base_url=site.address, headers=headers, timeout=60, trust_env=False
            ) as client,
            ThreadPoolExecutor(NUM_THREADS) as threads,
        ):
            statuses = [*threads.map(lambda path: (path, client.get(path).status_code), paths)]
    assert not [row for row in statuses if row[1] >= 500], statuses
