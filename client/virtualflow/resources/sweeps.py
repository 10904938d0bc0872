"""Sweeps: many jobs over a space of settings, submitted and steered as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from virtualflow import answers
from virtualflow.submissions import Spec, StrPath, key_headers, submission_content
from virtualflow.typed_site import TypedSite


class SweepRequests:
    """Methods of the client about sweeps."""

    _site: TypedSite

    def submit_sweep(
        self,
        spec: Spec | None = None,
        *,
        code: StrPath | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> answers.Sweep:
        """Submit a sweep.

        Args:
            spec, code, idempotency_key, fields: as of `submit`, with one field more: `sweep`, an
                object with `space`, `num_draws` (without it a grid), `seed` and `max_running`.
        """
        headers = key_headers(idempotency_key)
        content = submission_content(spec, code, fields)
        return self._site.post("sweeps/", answers.Sweep, headers=headers, **content)

    def preview_sweep(
        self, spec: Spec | None = None, *, code: StrPath | None = None, **fields: Any
    ) -> answers.SweepPreview:
        """Return the settings of the jobs that a sweep would have; nothing is stored."""
        content = submission_content(spec, code, fields)
        return self._site.post("sweeps/", answers.SweepPreview, params={"dry_run": 1}, **content)

    def sweeps(self) -> Iterator[answers.Sweep]:
        """Yield the visible sweeps, newest first; the jobs of one are `jobs(sweep=...)`."""
        return self._site.pages("sweeps/", answers.Sweep)

    def sweep(self, sweep_id: int) -> answers.Sweep:
        """Return a sweep."""
        return self._site.get(f"sweeps/{sweep_id}/", answers.Sweep)

    def limit_sweep(
        self, sweep_id: int, max_running: int, reason: str = "", *, if_match: str | None = None
    ) -> answers.Sweep:
        """Change how many jobs of a sweep run at once; those that run go on.

        Args:
            if_match: `"MAX_RUNNING"` of the sweep as it was read, with the quotes; refused with
                412 when somebody has changed it since.
        """
        headers = {"If-Match": if_match} if if_match else {}
        body = {"max_running": max_running, "reason": reason}
        return self._site.patch(f"sweeps/{sweep_id}/", answers.Sweep, json=body, headers=headers)

    def cancel_sweep(self, sweep_id: int, reason: str = "") -> answers.Sweep:
        """Cancel the jobs of a sweep that have not ended."""
        return self._site.post(f"sweeps/{sweep_id}/cancel/", answers.Sweep, json={"reason": reason})

    def pause_sweep(self, sweep_id: int, reason: str = "") -> answers.Sweep:
        """Pause the jobs of a sweep that run, and let none begin."""
        return self._site.post(f"sweeps/{sweep_id}/pause/", answers.Sweep, json={"reason": reason})

    def resume_sweep(self, sweep_id: int, reason: str = "") -> answers.Sweep:
        """Resume a sweep and its paused jobs."""
        return self._site.post(f"sweeps/{sweep_id}/resume/", answers.Sweep, json={"reason": reason})
