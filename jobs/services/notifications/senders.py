"""Sending one message: by signed webhook, by mail, to a chat."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import smtplib
from dataclasses import dataclass
from functools import cache
from typing import Any

import requests
from django.conf import settings
from django.core.mail import EmailMessage
from django.utils.crypto import salted_hmac
from requests_hardened import Config, HTTPSession, ip_filter
from requests_hardened.ip_filter import InvalidIPAddress

from jobs.models import ChannelKind, NotificationChannel, NotificationDelivery
from jobs.sealing import UnsealError, unseal

CONNECT_LIMIT_S, READ_LIMIT_S = 5.0, 10.0
# Site-local addresses, which Python takes for public ones.
ip_filter.EXTRA_BLOCKED_NET_RANGES += (ipaddress.ip_network("fec0::/10"),)
_SUBJECT_LIMIT = 150
_ANSWER_LIMIT = 300
_GONE = 410
_CODE_LENGTH = 10
#: Services read tags, mentions of people and links with another text in a message. Job code writes
#: parts of it, and a service that is sent no valid markup refuses it.
_NO_MARKUP = str.maketrans({"<": "\u2039", ">": "\u203a", "@": "@\u200b", "]": "]\u200b"})


@dataclass(frozen=True, slots=True)
class Sent:
    """Outcome of an attempt.

    Attributes:
        answer: text for the owner; never the body of an answer, which could be of a host that the
            owner cannot reach.
        is_final: no other attempt can succeed.
    """

    is_delivered: bool
    answer: str
    is_final: bool = False


def send(delivery: NotificationDelivery, now: datetime.datetime) -> Sent:
    """Try to send a message once; never raises for what the receiver does."""
    channel = delivery.channel
    try:
        address = unseal(channel.address)
        key = unseal(channel.signing_key) if channel.signing_key else ""
    except UnsealError:
        text = "The address cannot be read since the site's key was changed; make a new channel."
        return Sent(is_delivered=False, answer=text, is_final=True)
    if channel.kind == ChannelKind.WEBHOOK:
        return _webhook_send(address, key, delivery, now)
    if channel.kind == ChannelKind.EMAIL:
        return _email_send(address, delivery)
    return _chat_send(address, delivery)


def signature(key: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`, as the Standard Webhooks specification has it.

    Args:
        key: `whsec_` and the key in base64.
        timestamp: seconds since 1970.
    """
    raw = base64.b64decode(key.removeprefix("whsec_"))
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(raw, signed, hashlib.sha256)).decode()


def confirmation_code(channel: NotificationChannel) -> str:
    """Return the code that is mailed to the address of a channel, and nowhere else shown."""
    digest = salted_hmac("notification channel", str(channel.pk), algorithm="sha256").digest()
    return base64.b32encode(digest).decode()[:_CODE_LENGTH]


def _code_text(channel: NotificationChannel) -> tuple[str, str]:
    """Return title and text of the mail that asks the owner of an address for consent."""
    page = f"{settings.PUBLIC_URL}/account/notifications/" if settings.PUBLIC_URL else ""
    lines = (
        f"The user {channel.owner.get_username()} asks for messages about jobs at this address.",
        f"To allow it, enter this code under Notifications: {confirmation_code(channel)}",
        *([page] if page else []),
        "If you did not ask for it, do nothing: no messages about jobs will come.",
    )
    return "Confirm this address", "\n\n".join(lines)


def _webhook_send(
    address: str, key: str, delivery: NotificationDelivery, now: datetime.datetime
) -> Sent:
    body = json.dumps(delivery.body).encode()
    message_id, timestamp = f"msg_{delivery.pk}", int(now.timestamp())
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, message_id, timestamp, body),
    }
    host = requests.utils.urlparse(address).hostname
    config = Config(
        ip_filter_enable=host not in settings.WEBHOOK_PRIVATE_HOSTS,
        ip_filter_allow_loopback_ips=False,
        never_redirect=True,
        default_timeout=(CONNECT_LIMIT_S, READ_LIMIT_S),
        user_agent_override="VirtualFlow-Webhook",
    )
    try:
        with HTTPSession(config) as session:
            session.trust_env = False  # a proxy would connect to addresses that are refused here
            with session.post(address, data=body, headers=headers, stream=True) as answer:
                status = answer.status_code
    except InvalidIPAddress:
        return Sent(is_delivered=False, answer="The host has a private address.")
    except requests.exceptions.SSLError:
        return Sent(is_delivered=False, answer="The certificate was not accepted.")
    except requests.Timeout:
        return Sent(is_delivered=False, answer="No answer in time.")
    except (requests.RequestException, OSError, ValueError):
        return Sent(is_delivered=False, answer="The host cannot be reached.")
    is_delivered = requests.codes.ok <= status < requests.codes.multiple_choices
    return Sent(is_delivered, answer=f"HTTP {status}", is_final=status == _GONE)


def _email_send(address: str, delivery: NotificationDelivery) -> Sent:
    channel = delivery.channel
    title, text = message_text(delivery.body) if channel.is_confirmed else _code_text(channel)
    try:
        EmailMessage(f"[VirtualFlow] {title}", text, to=[address]).send()
    except (smtplib.SMTPException, OSError) as error:
        return Sent(is_delivered=False, answer=f"The mail server refused: {error}"[:_ANSWER_LIMIT])
    return Sent(is_delivered=True, answer="accepted by the mail server")


def _chat_send(address: str, delivery: NotificationDelivery) -> Sent:
    title, text = (part.translate(_NO_MARKUP) for part in message_text(delivery.body))
    service = _chat_services().instantiate(address, suppress_exceptions=True)
    if service is None:
        text = "The service does not accept this address; compare it with the documentation."
        return Sent(is_delivered=False, answer=text, is_final=True)
    service.socket_connect_timeout = CONNECT_LIMIT_S
    service.socket_read_timeout = READ_LIMIT_S
    if service.notify(title=title, body=text):
        return Sent(is_delivered=True, answer="accepted by the service")
    return Sent(is_delivered=False, answer="The service refused the message.")


@cache
def _chat_services() -> Any:
    """Return the class that reads addresses, with the site's services alone."""
    # Loading all services takes a second and many megabytes, which only this process needs.
    import apprise
    from apprise.manager_plugins import NotificationManager

    NotificationManager().enable_only(*settings.CHAT_SERVICES)
    return apprise.Apprise


def message_text(body: dict[str, Any]) -> tuple[str, str]:
    """Return title and text of a message for people."""
    data = body["data"]
    job, node = data.get("job"), data.get("node")
    about = f"Job {job['id']} ({job['name']})" if job else "Cluster"
    about = f"{about}, node {node['name']}" if node else about
    title = " ".join(f"{about}: {data['message']}".split())[:_SUBJECT_LIMIT]
    lines = [f"{about}: {data['message']}"]
    lines += [f"Status: {job['status']}, step {job['step']}"] if job else []
    lines += [f"Time: {body['timestamp']}"]
    place = job or node
    if place and settings.PUBLIC_URL:
        lines.append(settings.PUBLIC_URL + place["path"])
    return title, "\n".join(lines)
