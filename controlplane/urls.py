"""Where every request goes."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("api/v1/agent/", include("jobs.api.agent_urls")),
]
