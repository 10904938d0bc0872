"""Requests about notification channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from virtualflow import answers
from virtualflow.typed_site import (
    PAGE_SIZE,
    TypedSite,
    answer_json,
    answer_read,
)


class NotificationRequests:
    """Methods of `Client` about notifications."""

    _site: TypedSite

    def channels(self) -> list[answers.Channel]:
        """Return the own notification channels."""
        return self._site.rows("channels/", answers.Channel)

    def create_channel(
        self,
        name: str,
        address: str,
        *,
        kind: str = "webhook",
        events: Sequence[str] | None = None,
        is_cluster_wide: bool = False,
    ) -> answers.NewChannel:
        """Create a channel; the answer has the signing key of a webhook, this once.

        Args:
            kind: `webhook`, `email` or `chat`.
            events: by default the ends of jobs and preemptions.
            is_cluster_wide: events of all jobs and nodes (admins).
        """
        body = {"name": name, "address": address, "kind": kind, "is_cluster_wide": is_cluster_wide}
        body |= {} if events is None else {"events": list(events)}
        response = self._site.request("POST", "channels/", json=body)
        found = answer_read(response, answers.Channel)
        return {**found, "signing_key": str(answer_json(response).get("signing_key", ""))}

    def change_channel(self, channel_id: int, **changes: Any) -> answers.Channel:
        """Change `events`, `is_cluster_wide` or `is_paused`."""
        return self._site.patch(f"channels/{channel_id}/", answers.Channel, json=changes)

    def delete_channel(self, channel_id: int) -> None:
        """Delete a channel with its messages."""
        self._site.request("DELETE", f"channels/{channel_id}/")

    def test_channel(self, channel_id: int) -> None:
        """Send a test message; `deliveries` has what came of it."""
        self._site.request("POST", f"channels/{channel_id}/test/")

    def confirm_channel(self, channel_id: int, code: str) -> answers.Channel:
        """Confirm the address of a mail channel, with the code that was mailed to it."""
        path = f"channels/{channel_id}/confirm/"
        return self._site.post(path, answers.Channel, json={"code": code})

    def deliveries(self, channel_id: int) -> Iterator[answers.Delivery]:
        """Yield the messages of a channel, the newest first."""
        params = {"page_size": PAGE_SIZE}
        return self._site.pages(f"channels/{channel_id}/deliveries/", answers.Delivery, params)
