"""WSGI entry point: pages and the REST API."""

import gc
import os

from django.core.wsgi import get_wsgi_application

from controlplane.turns import core_keep, in_turns

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

core_keep()
handler = get_wsgi_application()

from controlplane.request_bodies import bounded_wsgi  # noqa: E402 (needs the applications loaded)
from jobs.api.addresses import query_parameters  # noqa: E402

application = bounded_wsgi(in_turns(handler))
# Before the first request: threads that generate the document at once fail.
query_parameters()
# Garbage collections of all that is loaded now would stop the requests for about 100 ms each.
gc.collect()
gc.freeze()
