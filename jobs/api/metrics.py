"""Metrics for Prometheus: for its token, and for admins."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from drf_spectacular.utils import extend_schema
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.api.authentication import TokenAuthentication
from jobs.api.negotiation import OneFormat
from jobs.api.permissions import AdminPermission
from jobs.selectors.metrics import SiteCollector

#: `request.auth` of a scrape with the token of the settings.
SCRAPE = "scrape"


class ScrapeAuthentication(BaseAuthentication):
    """`Authorization: Bearer <VIRTUALFLOW_METRICS_TOKEN>`."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, str] | None:
        """Accept the token of the settings; leave others to `TokenAuthentication`."""
        token = settings.METRICS_TOKEN
        header = request.headers.get("Authorization", "")
        if token and constant_time_compare(header, f"Bearer {token}"):
            return AnonymousUser(), SCRAPE
        return None

    def authenticate_header(self, _request: Request) -> str:
        """Return the WWW-Authenticate header, so that DRF responds with 401."""
        return 'Bearer realm="metrics"'


class ScrapePermission(AdminPermission):
    """Admit scrapes and admins."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.auth == SCRAPE or super().has_permission(request, view)


class PrometheusMetrics(APIView):
    """All metrics in Prometheus's text format."""

    authentication_classes = (ScrapeAuthentication, TokenAuthentication, SessionAuthentication)
    permission_classes = (ScrapePermission,)
    content_negotiation_class = OneFormat

    @extend_schema(exclude=True)
    def get(self, _request: Request) -> HttpResponse:
        """Get the metrics."""
        registry = CollectorRegistry()
        registry.register(SiteCollector(timezone.now()))
        return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)
