"""Addresses of the site, and `/plain/N/`: a job by a generic view and a model serializer."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.generics import RetrieveAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.serializers import ModelSerializer

from jobs.api.jobs.serializers import JobSummarySerializer
from jobs.models import Job

_COLUMNS = {field.name for field in Job._meta.concrete_fields}  # noqa: SLF001  public


class PlainJobSerializer(ModelSerializer):
    """The columns of a job that the site's list shows."""

    class Meta:
        model = Job
        fields = tuple(name for name in JobSummarySerializer.Meta.fields if name in _COLUMNS)


class PlainJob(RetrieveAPIView):
    """One job; the site's authentication, without its limits, visibility and versions."""

    queryset = Job.objects.all()
    serializer_class = PlainJobSerializer
    permission_classes = (IsAuthenticated,)
    throttle_classes = ()


urlpatterns = [
    path("plain/<int:pk>/", PlainJob.as_view()),
    path("", include("controlplane.urls")),
]
