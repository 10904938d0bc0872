"""Named filters of the list of jobs by REST."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.requests import body, person, text_field
from jobs.models import SavedFilter
from jobs.services.cluster.saved_filters import QUERY_LIMIT, filter_delete, filter_save


class SavedFilterSerializer(serializers.ModelSerializer):
    """A filter by its name; `query` is that of `jobs/`."""

    class Meta:
        model = SavedFilter
        fields = ("id", "name", "query", "changed_at")
        read_only_fields = ("changed_at",)
        validators = ()


class SavedFilterList(APIView):
    """The user's own filters."""

    @extend_schema(operation_id="saved_filters_list", responses=SavedFilterSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the kept filters of jobs."""
        rows = SavedFilter.objects.filter(owner=person(request))
        return Response(SavedFilterSerializer(rows, many=True).data)

    @extend_schema(request=SavedFilterSerializer, responses=SavedFilterSerializer)
    def post(self, request: Request) -> Response:
        """Keep a filter, in place of one of the same name."""
        values = body(request, "name", "query")
        name, query = text_field(values, "name"), text_field(values, "query", QUERY_LIMIT + 1)
        row = filter_save(person(request), name, query, timezone.now())
        return Response(SavedFilterSerializer(row).data)


class SavedFilterDetail(APIView):
    """One of the user's own filters."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, filter_id: int) -> Response:
        """Delete a filter."""
        filter_delete(person(request), filter_id)
        return Response(status=204)
