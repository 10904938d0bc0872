"""Projects, their members, and prices by REST."""

from __future__ import annotations

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from jobs import nudges
from jobs.api.openapi import if_match_param
from jobs.api.permissions import AdminToWritePermission
from jobs.api.projects.serializers import (
    MemberSerializer,
    NewProjectSerializer,
    PricesSerializer,
    ProjectChangeSerializer,
    ProjectSerializer,
    RoleSerializer,
)
from jobs.api.requests import DIGEST_ETAG, body, checked, person, version_expected
from jobs.models import ProjectMembership
from jobs.selectors.access import members_change_check, project_visible_to
from jobs.selectors.projects import ProjectState, project_state, project_states
from jobs.selectors.usage import accelerator_prices
from jobs.services.cluster.projects import (
    member_remove,
    member_set,
    prices_set,
    prices_version,
    project_change,
    project_delete,
    project_make,
    project_version,
)


class ProjectDetailSerializer(ProjectSerializer):
    """A project with its members."""

    members = serializers.SerializerMethodField()

    @extend_schema_field(MemberSerializer(many=True))
    def get_members(self, state: ProjectState) -> object:
        rows = ProjectMembership.objects.filter(project=state.project).select_related("user")
        return MemberSerializer(rows, many=True).data


class ProjectList(APIView):
    """Projects of the user; of all users for admins, who make them."""

    permission_classes = (AdminToWritePermission,)

    @extend_schema(operation_id="projects_list", responses=ProjectSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List projects with what they hold now."""
        return Response(ProjectSerializer(project_states(person(request)), many=True).data)

    @extend_schema(request=NewProjectSerializer, responses={201: ProjectDetailSerializer})
    def post(self, request: Request) -> Response:
        """Make a project (admins)."""
        values = checked(NewProjectSerializer, body(request))
        project = project_make(values.pop("name"), values, timezone.now(), by=person(request))
        location = reverse("api:project-detail", [project.pk], request=request)
        return _answer(request, project.pk, status=201, headers={"Location": location})


class ProjectDetail(APIView):
    """A project with its members."""

    permission_classes = (AdminToWritePermission,)

    @extend_schema(operation_id="projects_retrieve", responses=ProjectDetailSerializer)
    def get(self, request: Request, project_id: int) -> Response:
        """Get a project."""
        return _answer(request, project_id)

    @extend_schema(
        request=ProjectChangeSerializer,
        responses=ProjectDetailSerializer,
        parameters=[if_match_param(DIGEST_ETAG)],
    )
    def patch(self, request: Request, project_id: int) -> Response:
        """Change shares and limits of a project (admins); the next decision keeps them."""
        values = checked(ProjectChangeSerializer, body(request))
        seen = version_expected(request, DIGEST_ETAG, "project")
        project_change(project_id, values, by=person(request), seen_version=seen)
        nudges.jobs_changed(cluster=True)
        return _answer(request, project_id)

    @extend_schema(responses={204: None}, parameters=[if_match_param(DIGEST_ETAG)])
    def delete(self, request: Request, project_id: int) -> Response:
        """Delete a project without live jobs (admins); ended jobs keep its name."""
        seen = version_expected(request, DIGEST_ETAG, "project")
        project_delete(project_id, timezone.now(), by=person(request), seen_version=seen)
        nudges.jobs_changed(cluster=True)
        return Response(status=204)


class ProjectMember(APIView):
    """A member of a project, by name; admins of the project and of the site change members."""

    @extend_schema(request=RoleSerializer, responses={200: MemberSerializer, 201: MemberSerializer})
    def put(self, request: Request, project_id: int, name: str) -> Response:
        """Give a person a role in the project."""
        project = project_visible_to(person(request), project_id)
        members_change_check(person(request), project)
        role = checked(RoleSerializer, body(request))["role"]
        row, is_new = member_set(project, name, role, timezone.now(), by=person(request))
        return Response(MemberSerializer(row).data, status=201 if is_new else 200)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, project_id: int, name: str) -> Response:
        """End a membership; the person's jobs stay in the project."""
        project = project_visible_to(person(request), project_id)
        members_change_check(person(request), project)
        member_remove(project, name, by=person(request))
        return Response(status=204)


class Prices(APIView):
    """Prices of accelerators, which usage is multiplied with."""

    permission_classes = (AdminToWritePermission,)

    @extend_schema(operation_id="prices_retrieve", responses=PricesSerializer)
    def get(self, _request: Request) -> Response:
        """Get the price of an accelerator-hour by kind."""
        return _prices()

    @extend_schema(
        request=PricesSerializer,
        responses=PricesSerializer,
        parameters=[if_match_param(DIGEST_ETAG)],
    )
    def put(self, request: Request) -> Response:
        """Replace all prices (admins)."""
        per_hour = checked(PricesSerializer, body(request))["per_hour"]
        seen = version_expected(request, DIGEST_ETAG, "prices")
        prices_set(per_hour, by=person(request), seen_version=seen)
        return _prices()


def _prices() -> Response:
    rows = accelerator_prices()
    tag = {"ETag": f'"{prices_version(rows)}"'}
    return Response({"currency": settings.CURRENCY, "per_hour": rows}, headers=tag)


def _answer(
    request: Request, project_id: int, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    state = project_state(request.user, project_id)
    tag = {"ETag": f'"{project_version(state.project)}"'}
    data = ProjectDetailSerializer(state).data
    return Response(data, status=status, headers={**tag, **(headers or {})})
