"""ASGI entry point: event streams and the requests of agents."""

import asyncio
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponseBase

from controlplane.turns import NUM_TURNS, PATIENCE_S, Turns, core_keep

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

core_keep()
django.setup(set_prefix=False)

from controlplane.request_bodies import bounded_asgi  # noqa: E402 (needs the applications loaded)
from jobs.api.addresses import query_parameters  # noqa: E402
from jobs.api.agent.waiting import WANTED_PATH, answer_once_changed  # noqa: E402

STREAM_PATH = "/stream/"
#: Threads for requests that neither store a file nor wait.
_QUICK_THREADS = 8


class StreamHandler(ASGIHandler):
    """Django's handler, in which an open stream keeps no thread.

    Django ties the synchronous parts of a request to a thread of its own, which idles until the
    response ends. Those of streams take turns in one thread for all, and end before the first
    event.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.handle(scope, receive, send)


class ThreadHandler(StreamHandler):
    """Django's handler, in which a request has one of a few threads, in turns as under WSGI.

    Django would change the thread for each middleware, and start one, with a connection to the
    database, for each request. An agent that waits for orders has no thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loops = weakref.WeakSet[asyncio.AbstractEventLoop]()
        self._turns = Turns(NUM_TURNS)

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: ARG002
        """Load the middleware as for WSGI."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops.add(loop)
            slow = settings.UPLOADS_LIMIT + settings.WAITS_LIMIT
            loop.set_default_executor(ThreadPoolExecutor(slow + _QUICK_THREADS, "request"))
        await super().__call__(scope, receive, send)

    async def run_get_response(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request in a thread, that of an agent that waits once there are orders."""
        if request.path_info == WANTED_PATH:
            return await answer_once_changed(super().run_get_response, request)
        return await super().run_get_response(request)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self._answer, thread_sensitive=False)(request)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        close_old_connections()
        try:
            with self._turns.taken(PATIENCE_S):
                return self.get_response(request)
        finally:
            close_old_connections()


stream_handler, thread_handler = StreamHandler(), ThreadHandler()


async def handler(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request: an event stream, or any other one."""
    is_stream = scope.get("path") == STREAM_PATH
    await (stream_handler if is_stream else thread_handler)(scope, receive, send)


application = bounded_asgi(handler)
# Before the first request: threads that generate the document at once fail.
query_parameters()
