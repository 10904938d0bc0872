"""ASGI entry point: event streams and the agents' long-polls."""

import os
from typing import Any, cast

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# Every request runs in a thread of its own here; a connection kept by an ended thread would leak.
os.environ.setdefault("VIRTUALFLOW_DATABASE_AGE_S", "0")

handler = get_asgi_application()

from controlplane.request_bodies import bounded_asgi  # noqa: E402 (needs the applications loaded)
from jobs.api.addresses import query_parameters  # noqa: E402

application = bounded_asgi(cast(Any, handler))
# Before the first request: threads that generate the document at once fail.
query_parameters()
