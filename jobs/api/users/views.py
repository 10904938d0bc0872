"""Users by REST: their limits and use, for admins; and everybody's own account."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.core.values.tiers import Tier
from jobs import nudges
from jobs.api.jobs.submission_fields import EnumField, FlagField, NumberField, WholeField
from jobs.api.openapi import if_match_param
from jobs.api.permissions import AdminPermission
from jobs.api.requests import DIGEST_ETAG, BodySerializer, body, checked, person, version_expected
from jobs.selectors.access import is_admin
from jobs.selectors.limits import limits_read
from jobs.selectors.users import UserFilter, stored_bytes_of, user_with_use, users_with_use
from jobs.services.cluster.user_limits import user_change, user_version


class UserSerializer(serializers.Serializer):
    """A user, the limits in force, and the use of them."""

    name = serializers.CharField()
    is_active = serializers.BooleanField()
    is_admin = serializers.BooleanField()
    last_login = serializers.DateTimeField(allow_null=True)
    priority_ceiling = serializers.IntegerField(help_text="Highest priority of the user's jobs.")
    tier_ceiling = serializers.CharField(help_text="Highest tier of the user's jobs.")
    share_factor = serializers.FloatField(help_text="Factor of the user's claim on a share.")
    live_jobs_limit = serializers.IntegerField(help_text="Most jobs that have not ended.")
    live_jobs = serializers.IntegerField(help_text="Jobs not ended.")
    storage_limit_bytes = serializers.IntegerField(help_text="Of code and files; 0: no limit.")
    stored_bytes = serializers.IntegerField(help_text="Size of the code and files of all jobs.")
    chosen = serializers.ListField(
        child=serializers.CharField(),
        help_text="Names of the limits that an admin chose; the others are the site's.",
    )

    def to_representation(self, user: Any) -> dict[str, Any]:
        """Return a row of `users_with_use` with the limits in force."""
        limits = limits_read(getattr(user, "limits", None), is_admin=is_admin(user))
        return super().to_representation(
            {
                **dataclasses.asdict(limits),
                "name": user.get_username(),
                "is_active": user.is_active,
                "is_admin": is_admin(user),
                "last_login": user.last_login,
                "live_jobs": user.num_live_jobs,
                "stored_bytes": stored_bytes_of(user),
            }
        )


class UserChangeSerializer(BodySerializer):
    """Changes of a user's limits; null stands for the site's own limit."""

    priority_ceiling = WholeField(1, 1000, required=False, allow_null=True)
    tier_ceiling = EnumField(Tier, required=False, allow_null=True)
    share_factor = NumberField(0.1, 10.0, required=False)
    live_jobs_limit = WholeField(1, 100_000, required=False, allow_null=True)
    storage_limit_bytes = WholeField(0, 2**60, required=False, allow_null=True)
    is_active = FlagField(required=False)


class UserList(generics.ListAPIView):
    """Users with their limits and use, the newest first (admins)."""

    permission_classes = (AdminPermission,)
    serializer_class = UserSerializer
    filterset_class = UserFilter
    queryset = users_with_use()


class UserDetail(APIView):
    """A user by name (admins)."""

    permission_classes = (AdminPermission,)

    @extend_schema(responses=UserSerializer)
    def get(self, _request: Request, name: str) -> Response:
        """Get a user's limits and use."""
        return _answer(user_with_use(name))

    @extend_schema(
        request=UserChangeSerializer,
        responses=UserSerializer,
        parameters=[if_match_param(DIGEST_ETAG)],
    )
    def patch(self, request: Request, name: str) -> Response:
        """Change a user's limits, or whether the account is active."""
        changes = checked(UserChangeSerializer, body(request))
        seen = version_expected(request, DIGEST_ETAG, "user")
        user_change(name, changes, by=person(request), seen_version=seen)
        nudges.jobs_changed(cluster=True)
        return _answer(user_with_use(name))


class Account(APIView):
    """Everybody's own limits and use."""

    @extend_schema(responses=UserSerializer)
    def get(self, request: Request) -> Response:
        """Get the own limits and use."""
        user = user_with_use(person(request).get_username())
        # A token without the scope `admin` acts as an ordinary user.
        user.is_staff = is_admin(request.user)
        return _answer(user)


def _answer(user: User) -> Response:
    headers = {"ETag": f'"{user_version(user)}"'}
    return Response(UserSerializer(user).data, headers=headers)
