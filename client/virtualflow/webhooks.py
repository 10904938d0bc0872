"""Check that a webhook comes from the site: signatures of the Standard Webhooks specification."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from virtualflow.errors import VirtualFlowError

#: Older and later messages are refused: somebody may send a recorded one again.
TOLERANCE_S = 300


def webhook_read(
    headers: Mapping[str, str], body: bytes, signing_key: str, *, now: float | None = None
) -> dict[str, Any]:
    """Return the message of a webhook whose signature is right.

    Receivers should remember `webhook-id`: a message may come more than once.

    Args:
        headers: of the request, in any case.
        body: of the request, as it came.
        signing_key: `whsec_…`, as given when the channel was created.
        now: seconds since 1970, by default the time of this machine.

    Raises:
        VirtualFlowError: the signature is wrong, or the message too old or of the future.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    sent_at = lower.get("webhook-timestamp", "")
    try:
        age_s = (time.time() if now is None else now) - int(sent_at)
        key = base64.b64decode(signing_key.removeprefix("whsec_"), validate=True)
    except (ValueError, binascii.Error):
        text = "The webhook has no time, or the signing key is none."
        raise VirtualFlowError(text, code="wrong_signature") from None
    signed = f"{lower.get('webhook-id', '')}.{sent_at}.".encode() + body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    given = [part.partition(",") for part in lower.get("webhook-signature", "").split()]
    # Of an empty key, such as of a variable that is not set, everybody can sign.
    if not key or not any(
        version == "v1" and hmac.compare_digest(text.encode(), expected.encode())
        for version, _, text in given
    ):
        raise VirtualFlowError("The signature of the webhook is wrong.", code="wrong_signature")
    if abs(age_s) > TOLERANCE_S:
        text = f"The webhook is not of the last {TOLERANCE_S} s."
        raise VirtualFlowError(text, code="wrong_signature")
    message = json.loads(body)
    assert isinstance(message, dict)
    return message
