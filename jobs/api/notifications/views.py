"""Notification channels by REST: everybody's own, addresses and keys to write alone."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.jobs.submission_fields import FlagField
from jobs.api.pagination import NewestFirst
from jobs.api.requests import BodySerializer, body, checked, no_body, person
from jobs.models import ChannelKind, NotificationChannel, NotificationDelivery
from jobs.selectors.access import deliveries_visible_to
from jobs.services.lifecycle.notifications import CLUSTER_EVENTS, JOB_EVENTS
from jobs.services.notifications.channels import (
    ADDRESS_LIMIT,
    DEFAULT_EVENTS,
    NAME_LIMIT,
    channel_change,
    channel_confirm,
    channel_create,
    channel_delete,
    channel_of,
    channel_test,
)

_KINDS = [kind.value for kind in ChannelKind]


@extend_schema_field(
    {
        "type": "array",
        "items": {"type": "string", "enum": [*JOB_EVENTS, *CLUSTER_EVENTS]},
        "minItems": 1,
        "maxItems": len(JOB_EVENTS) + len(CLUSTER_EVENTS),
    }
)
class EventsField(serializers.ListField):
    """Kinds of events."""

    def __init__(self, **more: Any) -> None:
        num_kinds = len(JOB_EVENTS) + len(CLUSTER_EVENTS)
        super().__init__(child=serializers.CharField(max_length=40), max_length=num_kinds, **more)


class ChannelSerializer(serializers.ModelSerializer):
    """A channel without what its address keeps secret."""

    address = serializers.CharField(source="shown_address")
    signing_key = serializers.CharField(
        required=False, help_text="Of a webhook; in the answer that creates it, and never again."
    )

    class Meta:
        model = NotificationChannel
        fields = (
            "id",
            "name",
            "kind",
            "address",
            "events",
            "is_cluster_wide",
            "paused_reason",
            "num_failures",
            "num_dropped",
            "created_at",
            "signing_key",
        )

    def to_representation(self, channel: Any) -> dict[str, Any]:
        """Return a channel; the encrypted key is left out."""
        shown = super().to_representation(channel)
        del shown["signing_key"]
        return shown


class NewChannelSerializer(BodySerializer):
    """A channel to create."""

    name = serializers.CharField(max_length=NAME_LIMIT)
    kind = serializers.ChoiceField(
        _KINDS,
        default=ChannelKind.WEBHOOK.value,
        error_messages={"invalid_choice": f"Choose one of {', '.join(_KINDS)}."},
    )
    address = serializers.CharField(max_length=ADDRESS_LIMIT, write_only=True)
    events = EventsField(default=list(DEFAULT_EVENTS))
    is_cluster_wide = FlagField(default=False)


class ChannelChangeSerializer(BodySerializer):
    """Changes of a channel."""

    events = EventsField(required=False)
    is_cluster_wide = FlagField(required=False)
    is_paused = FlagField(required=False)


class ConfirmationSerializer(BodySerializer):
    """The code that was mailed to the address of a channel."""

    code = serializers.CharField(max_length=40)


class DeliverySerializer(serializers.ModelSerializer):
    """A message and what came of it."""

    class Meta:
        model = NotificationDelivery
        fields = (
            "id",
            "kind",
            "status",
            "num_attempts",
            "next_try_at",
            "answer",
            "created_at",
            "ended_at",
            "body",
        )


class ChannelList(APIView):
    """The user's own channels."""

    @extend_schema(operation_id="channels_list", responses=ChannelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the channels by name."""
        rows = NotificationChannel.objects.filter(owner=person(request))
        return Response(ChannelSerializer(rows, many=True).data)

    @extend_schema(request=NewChannelSerializer, responses={201: ChannelSerializer})
    def post(self, request: Request) -> Response:
        """Create a channel; the answer has the signing key of a webhook, this once."""
        values = checked(NewChannelSerializer, body(request))
        channel, key = channel_create(person(request), values, timezone.now())
        shown = ChannelSerializer(channel).data
        headers = {"Cache-Control": "no-store"}
        return Response({**shown, "signing_key": key} if key else shown, 201, headers=headers)


class ChannelDetail(APIView):
    """One of the user's own channels."""

    @extend_schema(responses=ChannelSerializer)
    def get(self, request: Request, channel_id: int) -> Response:
        """Get a channel."""
        return Response(ChannelSerializer(channel_of(person(request), channel_id)).data)

    @extend_schema(request=ChannelChangeSerializer, responses=ChannelSerializer)
    def patch(self, request: Request, channel_id: int) -> Response:
        """Change the events of a channel, pause or resume it."""
        values = checked(ChannelChangeSerializer, body(request))
        return Response(ChannelSerializer(channel_change(person(request), channel_id, values)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, channel_id: int) -> Response:
        """Delete the channel with its messages."""
        channel_delete(person(request), channel_id)
        return Response(status=204)


class ChannelTest(APIView):
    """A test message."""

    @extend_schema(request=None, responses={202: None})
    def post(self, request: Request, channel_id: int) -> Response:
        """Send a test message, or a code; its outcome is in the channel's deliveries."""
        no_body(request)
        channel_test(person(request), channel_id, timezone.now())
        return Response(status=202)


class ChannelConfirm(APIView):
    """The consent of the owner of a mail address."""

    @extend_schema(request=ConfirmationSerializer, responses=ChannelSerializer)
    def post(self, request: Request, channel_id: int) -> Response:
        """Confirm the address of a mail channel."""
        code = checked(ConfirmationSerializer, body(request))["code"]
        return Response(ChannelSerializer(channel_confirm(person(request), channel_id, code)).data)


class ChannelDeliveries(generics.ListAPIView):
    """Messages of a channel, the newest first."""

    serializer_class = DeliverySerializer
    pagination_class = NewestFirst
    filter_backends = ()

    def get_queryset(self) -> Any:
        if getattr(self, "swagger_fake_view", False):
            return NotificationDelivery.objects.none()
        user = person(self.request)
        channel = channel_of(user, self.kwargs["channel_id"])
        return deliveries_visible_to(user, channel.deliveries.all())
