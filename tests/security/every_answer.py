"""Every GET route of the site, pages and REST, as one person reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.contrib.auth.models import User

from jobs.api.jobs.serializers import JobSerializer
from tests.jobs.test_authorisation import routes
from tests.support.builders import logged_in

#: Route -> queries that show more of it.
QUERIES = {
    "": ("?tables=1&window=604800",),
    "timeline/": ("?tables=1&window=604800",),
    "timeline/figures/": ("?window=604800",),
    "jobs/<int:job_id>/": ("?tables=1",),
    "jobs/compare/": ("?job={job_id}&job={other_id}", "?job={job_id}&tables=1"),
    "jobs/compare/figures/": ("?job={job_id}",),
    "jobs/new/": ("?from={job_id}", "?fork={job_id}"),
    "nodes/<int:node_id>/": ("?tables=1&window=604800", "?change=drain"),
    "nodes/maintenance/": ("?nodes=1",),
    "queue/": ("?policy=fifo",),
    "api/v1/jobs/": ("?fields=" + ",".join(JobSerializer.Meta.fields),),
    "api/v1/jobs/<int:job_id>/": ("?fields=policy_reason,status_reason,version",),
    "api/v1/jobs/<int:job_id>/logs/": ("?download=1",),
    "api/v1/jobs/compare/": ("?job={job_id}",),
    "api/v1/nodes/<int:node_id>/utilisation/": ("?from=2026-03-02T00:00:00Z",),
    "api/v1/cluster/": ("?last_s=2592000",),
}
#: Routes that are no pages of this site's own, or that end the session.
LEFT_OUT = ("admin/", "logout/", "stream/", "api/v1/schema/", "api/v1/docs/")


def answers_of(
    person: User, only: str = "", *, without: tuple[str, ...] = (), **numbers: int
) -> Mapping[str, str]:
    """Return path -> text of each GET route that answers a person with 200.

    Args:
        only: pattern in the routes that are read.
        without: what routes begin with that are not read.
        numbers: values of the routes' parameters; what has no value is left out.
    """
    client = logged_in(person)
    found: dict[str, str] = {}
    for route, _ in routes():
        if route.startswith((*LEFT_OUT, *without)) or not re.search(only, route):
            continue
        path = route.replace("templates/<str:name>", "templates/tabular")
        for name, number in numbers.items():
            path = path.replace(f"<int:{name}>", str(number))
        path = path.replace("<str:name>", "model.keras")
        if "<" in path:
            continue
        for query in ("", *(text.format(**numbers) for text in QUERIES.get(route, ()))):
            answer = client.get(f"/{path}{query}", headers={"Accept": "*/*"})
            assert answer.status_code < 500, f"/{path}{query}"
            if answer.status_code == 200:
                body = b"".join(answer.streaming_content) if answer.streaming else answer.content
                found[f"/{path}{query}"] = body.decode(errors="replace")
    return found
