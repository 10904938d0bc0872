"""URL routes of all requests."""

from __future__ import annotations

from django.urls import include, path

from jobs import admin
from jobs.api import health
from jobs.api.metrics import PrometheusMetrics

handler400 = "jobs.api.addresses.bad_request"
handler404 = "jobs.api.addresses.not_found"
handler500 = "jobs.api.addresses.server_error"
urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", PrometheusMetrics.as_view(), name="metrics"),
    path("api/v1/agent/", include("jobs.api.agent.urls")),
    path("api/v1/", include(("jobs.api.urls", "api"))),
    path("admin/", admin.site.urls),
    path("", include("frontend.urls")),
]
