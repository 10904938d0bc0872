"""Notification channels: made, changed and deleted by their owner."""

from __future__ import annotations

import base64
import datetime
import re
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils.crypto import constant_time_compare

from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError
from jobs.models import (
    AuditAction,
    AuditEntry,
    ChannelKind,
    DeliveryStatus,
    NotificationChannel,
)
from jobs.models.notifications import NOT_CONFIRMED, PAUSED_BY_OWNER, TEST_EVENT
from jobs.sealing import seal
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import user_actor
from jobs.services.lifecycle.notifications import (
    CLUSTER_EVENTS,
    JOB_EVENTS,
    deliveries_queue,
    delivery_make,
)
from jobs.services.notifications.senders import confirmation_code
from jobs.submission import unprintable

CHANNELS_LIMIT = 20
NAME_LIMIT = 60
ADDRESS_LIMIT = 1000
_UNPRINTABLE = f"Give 1 to {NAME_LIMIT} printable characters."
#: Tests of one channel that may wait.
_TESTS_LIMIT = 3
#: Codes that are mailed to an address until it is confirmed.
_CODES_LIMIT = 3
#: Mail channels that a user may add within 24 h: each one mails codes to an address unasked.
_MAIL_CHANNELS_A_DAY = 20
_KEY_BYTES = 32
_VISIBLE = re.compile(r"[!-~]+")
DEFAULT_EVENTS = ("finished", "failed", "invalid", "preempted")


def channel_create(
    user: User, values: dict[str, Any], now: datetime.datetime
) -> tuple[NotificationChannel, str]:
    """Create a channel; return it with its signing key, which is never shown again.

    Args:
        values: `name`, `kind`, `address`, `events`, `is_cluster_wide`.

    Raises:
        InvalidInputError: a value is out of bounds, or the site does not send this kind.
        ConflictError: the user has too many channels, one of this name, or has added too many mail
            channels within 24 h.
    """
    kind, address = values["kind"], values["address"]
    found = {
        "name": _UNPRINTABLE if unprintable(values["name"]) else "",
        "address": _address_errors(kind, address),
        **_setting_errors(user, values),
    }
    if wrong := {name: [text] for name, text in found.items() if text}:
        raise InvalidInputError("The channel is not valid.", fields=wrong)
    key = "whsec_" + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    key = key if kind == ChannelKind.WEBHOOK else ""
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(id=user.pk)  # serialises concurrent changes
        mine = NotificationChannel.objects.filter(owner=user)
        if mine.filter(name=values["name"]).exists():
            raise ConflictError(
                f"You have a channel {values['name']}; choose another name.", code="channel_exists"
            )
        if mine.count() >= CHANNELS_LIMIT:
            raise ConflictError(
                f"You have {CHANNELS_LIMIT} channels; delete one first.", code="too_many_channels"
            )
        num_mailed = _num_mail_channels_of_today(user, now) if kind == ChannelKind.EMAIL else 0
        if num_mailed >= _MAIL_CHANNELS_A_DAY:
            text = f"You have added {_MAIL_CHANNELS_A_DAY} mail channels in 24 h; wait a day."
            raise ConflictError(text, code="too_many_channels")
        channel = NotificationChannel.objects.create(
            owner=user,
            name=values["name"],
            kind=kind,
            address=seal(address),
            shown_address=shown_address(kind, address),
            signing_key=seal(key) if key else "",
            events=_in_order(values["events"]),
            is_cluster_wide=values["is_cluster_wide"],
            paused_reason=NOT_CONFIRMED if kind == ChannelKind.EMAIL else "",
            created_at=now,
        )
        audit_add(AuditAction.CHANNEL_MADE, _object(channel), address=channel.shown_address)
        if kind == ChannelKind.EMAIL:
            _test_queue(channel, now)  # mails the code
    return channel, key


def channel_change(user: User, channel_id: int, values: dict[str, Any]) -> NotificationChannel:
    """Change the events of a channel, or whether it is paused.

    Pausing alone is allowed to owners who may not have such a channel any more.

    Args:
        values: some of `events`, `is_cluster_wide` and `is_paused`.

    Raises:
        InvalidInputError: a value is out of bounds.
        NotFoundError: the user has no such channel.
    """
    with transaction.atomic():
        channel = channel_of(user, channel_id, is_locked=True)
        new = {"events": channel.events, "is_cluster_wide": channel.is_cluster_wide, **values}
        found = {} if values == {"is_paused": True} else _setting_errors(user, new)
        if not channel.is_confirmed and values.get("is_paused") is False:
            found["is_paused"] = "Confirm the address first, with the code that was mailed to it."
        if wrong := {name: [text] for name, text in found.items() if text}:
            raise InvalidInputError("The channel is not valid.", fields=wrong)
        channel.events, channel.is_cluster_wide = _in_order(new["events"]), new["is_cluster_wide"]
        if "is_paused" in values and channel.is_confirmed:
            channel.paused_reason = PAUSED_BY_OWNER if values["is_paused"] else ""
            channel.num_failures = 0
        channel.save(update_fields=["events", "is_cluster_wide", "paused_reason", "num_failures"])
        audit_add(AuditAction.CHANNEL_CHANGED, _object(channel), **values)
    return channel


def channel_confirm(user: User, channel_id: int, code: str) -> NotificationChannel:
    """Confirm the address of a mail channel with the code that was mailed to it.

    A channel that is confirmed already stays as it is.

    Raises:
        InvalidInputError: the code is another one.
        NotFoundError: the user has no such channel.
    """
    with transaction.atomic():
        channel = channel_of(user, channel_id, is_locked=True)
        typed = "".join(code.split()).upper()
        if not constant_time_compare(typed, confirmation_code(channel)):
            raise InvalidInputError.of(code="Give the code of the mail to this address.")
        if not channel.is_confirmed:
            channel.paused_reason, channel.num_failures = "", 0
            channel.save(update_fields=["paused_reason", "num_failures"])
            audit_add(AuditAction.CHANNEL_CHANGED, _object(channel), is_confirmed=True)
    return channel


def channel_delete(user: User, channel_id: int) -> NotificationChannel:
    """Delete a channel with its messages.

    Raises:
        NotFoundError: the user has no such channel.
    """
    with transaction.atomic():
        channel = channel_of(user, channel_id, is_locked=True)
        audit_add(AuditAction.CHANNEL_DELETED, _object(channel))
        channel.delete()
    return channel


def channel_test(user: User, channel_id: int, now: datetime.datetime) -> None:
    """Queue a test message; an address that is not confirmed is mailed its code instead.

    Raises:
        ConflictError: the channel is paused, tests are waiting, or enough codes were mailed.
        NotFoundError: the user has no such channel.
    """
    with transaction.atomic():
        channel = channel_of(user, channel_id, is_locked=True)
        tests = channel.deliveries.filter(kind=TEST_EVENT)
        if not channel.is_confirmed:
            if tests.count() >= _CODES_LIMIT:
                text = f"{_CODES_LIMIT} codes were mailed; delete the channel and add it again."
                raise ConflictError(text, code="too_many_tests")
        elif channel.paused_reason:
            raise ConflictError("The channel is paused; resume it first.", code="channel_paused")
        if tests.filter(status=DeliveryStatus.WAITING.value).count() >= _TESTS_LIMIT:
            raise ConflictError("Tests of this channel wait already.", code="too_many_tests")
        _test_queue(channel, now)


def _test_queue(channel: NotificationChannel, now: datetime.datetime) -> None:
    waiting = channel.deliveries.filter(status=DeliveryStatus.WAITING.value)
    channel.num_waiting = waiting.count()  # type: ignore[attr-defined]
    body = {
        "type": TEST_EVENT,
        "timestamp": now.isoformat(),
        "data": {"message": f"Test of the channel {channel.name}", "figures": {}},
    }
    deliveries_queue([delivery_make(channel, TEST_EVENT, body, now)])


def channel_of(user: User, channel_id: int, *, is_locked: bool = False) -> NotificationChannel:
    """Find one of the user's own channels.

    Raises:
        NotFoundError: the user has no such channel.
    """
    rows = NotificationChannel.objects.filter(owner=user, id=channel_id)
    channel = (rows.select_for_update() if is_locked else rows).first()
    if channel is None:
        raise NotFoundError("You have no such channel.")
    return channel


def kinds_available() -> list[ChannelKind]:
    """List the kinds of channels that this site can send to."""
    can_mail = settings.EMAIL_HOST and settings.EMAIL_DOMAINS
    return [kind for kind in ChannelKind if kind != ChannelKind.EMAIL or can_mail]


def shown_address(kind: str, address: str) -> str:
    """Return the part of an address that is no credential."""
    if kind == ChannelKind.EMAIL:
        return address[:200]
    parts = urlsplit(address)
    if kind == ChannelKind.CHAT:
        return f"{parts.scheme}://…"
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}/…"[:200]


def _address_errors(kind: str, address: str) -> str:
    if not _VISIBLE.fullmatch(address) or len(address) > ADDRESS_LIMIT:
        return f"Give at most {ADDRESS_LIMIT} ASCII characters without blanks."
    if kind == ChannelKind.EMAIL:
        return _email_errors(address)
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return "Give an address such as https://example.org/hook."
    if kind == ChannelKind.CHAT:
        services = settings.CHAT_SERVICES
        if parts.scheme not in services:
            return f"Give an address that begins with {', '.join(f'{s}://' for s in services)}."
        # Options of a service can name files of this machine and switch off its checks.
        return "Give the address without ? and #." if set("?#") & set(address) else ""
    # Some readers of addresses take a backslash for a slash, and so find another host.
    if parts.scheme not in ("https", "http") or not host or "\\" in address:
        return "Give an address such as https://example.org/hook."
    if parts.username or parts.password or parts.fragment:
        return "Give the address without user, password and fragment."
    return ""


def _email_errors(address: str) -> str:
    if ChannelKind.EMAIL not in kinds_available():
        return "This site sends no mail; ask an admin, or use a webhook."
    try:
        validate_email(address)
    except ValidationError:
        return "Give an e-mail address."
    domain = address.rpartition("@")[2].lower()
    allowed = [name.lower() for name in settings.EMAIL_DOMAINS]
    if "*" not in allowed and domain not in allowed:
        return f"This site sends mail to {', '.join(allowed)} only."
    return ""


def _setting_errors(user: Any, values: dict[str, Any]) -> dict[str, str]:
    is_cluster_wide = values["is_cluster_wide"]
    known = {**JOB_EVENTS, **(CLUSTER_EVENTS if is_cluster_wide else {})}
    unknown = [event for event in values["events"] if event not in known]
    return {
        "is_cluster_wide": "Only admins hear of all jobs and nodes."
        if is_cluster_wide and not user.is_staff
        else "",
        "events": f"Choose from {', '.join(known)}." if unknown or not values["events"] else "",
    }


def _num_mail_channels_of_today(user: User, now: datetime.datetime) -> int:
    """Return how many mail channels the user added in 24 h, deleted ones included."""
    made = AuditEntry.objects.filter(action=AuditAction.CHANNEL_MADE, actor=user_actor(user))
    since = now - datetime.timedelta(days=1)
    return made.filter(at__gt=since, details__address__icontains="@").count()


def _in_order(events: Sequence[str]) -> list[str]:
    return [event for event in (*JOB_EVENTS, *CLUSTER_EVENTS) if event in events]


def _object(channel: NotificationChannel) -> str:
    return f"channel:{channel.name}"
