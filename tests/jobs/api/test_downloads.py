"""Files leave in pieces, from a WSGI and from an ASGI server."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from tests.support.builders import CODE, api_token_make, job_make


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("server", ["wsgi", "asgi"])
def test_the_bytes_and_their_digest(ada: User, server: str) -> None:
    job = job_make(ada)
    url = f"/api/v1/jobs/{job.pk}/code/"
    header = f"Bearer {api_token_make(ada)}"

    async def fetch() -> tuple[Any, bytes]:
        response = await AsyncClient().get(url, headers={"Authorization": header})
        assert response.is_async
        pieces = [piece async for piece in response.streaming_content]
        return response, b"".join(pieces)

    if server == "asgi":
        response, content = async_to_sync(fetch)()
    else:
        response = Client(headers={"Authorization": header}).get(url)
        content = b"".join(response.streaming_content)
    assert content == CODE
    assert response.headers["X-Sha256"] == hashlib.sha256(CODE).hexdigest()
    assert response.headers["Content-Length"] == str(len(CODE))
    assert response.headers["Content-Disposition"] == 'attachment; filename="job.py"'
