"""WSGI entry point: pages and the REST API."""

import gc
import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

handler = get_wsgi_application()

from controlplane.request_bodies import bounded_wsgi  # noqa: E402 (needs the applications loaded)
from controlplane.turns import in_turns  # noqa: E402
from jobs.api.addresses import query_parameters  # noqa: E402

application = bounded_wsgi(in_turns(handler))
# Before the first request: threads that generate the document at once fail.
query_parameters()
# What is loaded now stays. Looking through it for garbage would stop all requests for 100 ms.
gc.collect()
gc.freeze()
