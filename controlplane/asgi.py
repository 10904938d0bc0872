"""ASGI entry point: event streams and the agents' long-polls."""

import os
from typing import Any, cast

import django
from django.core.handlers.asgi import ASGIHandler

from controlplane.turns import core_keep

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# Other requests than streams run in a thread of their own here; a connection kept by an ended
# thread would leak.
os.environ.setdefault("VIRTUALFLOW_DATABASE_AGE_S", "0")

core_keep()
django.setup(set_prefix=False)

from controlplane.request_bodies import bounded_asgi  # noqa: E402 (needs the applications loaded)
from jobs.api.addresses import query_parameters  # noqa: E402

STREAM_PATH = "/stream/"


class Handler(ASGIHandler):
    """Django's handler, in which an open stream keeps no thread.

    Django ties the synchronous parts of a request to a thread of its own, which idles until the
    response ends. Those of streams take turns in one thread for all, and end before the first
    event.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == STREAM_PATH:
            await self.handle(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


application = bounded_asgi(cast(Any, Handler()))
# Before the first request: threads that generate the document at once fail.
query_parameters()
