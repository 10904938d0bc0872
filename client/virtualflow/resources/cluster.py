"""Requests about templates, nodes and the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from virtualflow import answers
from virtualflow.typed_site import (
    TypedSite,
    given_only,
)

_WINDOWS = "maintenance-windows/"


class ClusterRequests:
    """Methods of `Client` about the cluster."""

    _site: TypedSite

    def templates(self) -> list[answers.Template]:
        """Return the ready jobs that a submission may name."""
        return self._site.rows("templates/", answers.Template)

    def nodes(self) -> Iterator[answers.Node]:
        """Yield the nodes with their accelerators."""
        return self._site.pages("nodes/", answers.Node)

    def utilisation(
        self,
        node_id: int,
        *,
        since: str | None = None,
        until: str | None = None,
        step: int | None = None,
        fields: Sequence[str] = (),
    ) -> answers.Utilisation:
        """Return the use of a node's accelerators over time, by default of the last hour.

        Args:
            since, until: times of ISO 8601.
            step: width of a bin, 60 or 3600 seconds.
            fields: values of a bin, all by default.
        """
        query = {"since": since, "until": until, "step": step, "fields": ",".join(fields) or None}
        return self._site.get(
            f"nodes/{node_id}/utilisation/", answers.Utilisation, params=given_only(query)
        )

    def cordon(self, node_id: int, reason: str = "") -> answers.Node:
        """Give a node no new work (admins); jobs there keep what they have."""
        return self._site.post(f"nodes/{node_id}/cordon/", answers.Node, json={"reason": reason})

    def drain(self, node_id: int, reason: str = "") -> answers.Node:
        """Take a node out of the pool (admins): the policy moves its jobs to other nodes."""
        return self._site.post(f"nodes/{node_id}/drain/", answers.Node, json={"reason": reason})

    def drain_preview(self, node_id: int) -> answers.DrainPreview:
        """Return who would move where, and by when, if the node was drained now (admins)."""
        return self._site.post(
            f"nodes/{node_id}/drain/", answers.DrainPreview, params={"dry_run": 1}, json={}
        )

    def uncordon(self, node_id: int, reason: str = "") -> answers.Node:
        """Give a node work again (admins)."""
        return self._site.post(f"nodes/{node_id}/uncordon/", answers.Node, json={"reason": reason})

    def windows(self) -> list[answers.MaintenanceWindow]:
        """Return the maintenance windows that have not ended, the next one first."""
        return self._site.rows(_WINDOWS, answers.MaintenanceWindow)

    def plan_windows(
        self, node_ids: Sequence[int], starts_at: str, ends_at: str, reason: str
    ) -> list[answers.MaintenanceWindow]:
        """Plan a maintenance window for each of some nodes (admins).

        Args:
            starts_at, ends_at: times of ISO 8601; without an offset they are UTC.
        """
        values = {"nodes": [*node_ids], "starts_at": starts_at, "ends_at": ends_at}
        body = {**values, "reason": reason}
        return self._site.rows(_WINDOWS, answers.MaintenanceWindow, "POST", json=body)

    def preview_windows(self, node_ids: Sequence[int]) -> answers.DrainPreview:
        """Return who would move where if maintenance of some nodes began now (admins)."""
        return self._site.post(
            _WINDOWS, answers.DrainPreview, params={"dry_run": 1}, json={"nodes": [*node_ids]}
        )

    def cancel_window(self, window_id: int, reason: str = "") -> answers.MaintenanceWindow:
        """Cancel a maintenance window before or during it (admins)."""
        path = f"{_WINDOWS}{window_id}/cancel/"
        return self._site.post(path, answers.MaintenanceWindow, json={"reason": reason})

    def policy(self) -> answers.Policy:
        """Return the policy in force, and the names of all."""
        return self._site.get("policy/", answers.Policy)
