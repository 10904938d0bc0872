"""Requests for validations: code is built, and its memory measured, before it is submitted."""

from __future__ import annotations

import time
from typing import Any

from virtualflow import answers
from virtualflow.errors import VirtualFlowError
from virtualflow.submissions import Spec, StrPath, submission_content
from virtualflow.transport import AWAY_LIMIT_S
from virtualflow.typed_site import TypedSite

#: Longest wait of a long poll; the site's own limit is 30 s.
_WAIT_S = 25.0


class ValidationRequests:
    """Methods of `Client` about validations."""

    _site: TypedSite
    _poll_s: float

    def validate(
        self, spec: Spec | None = None, *, code: StrPath | None = None, **fields: Any
    ) -> answers.Validation:
        """Ask for a validation of a submission, which is not submitted; it ends the one before.

        Args:
            spec, code, fields: as of `submit`.
        """
        content = submission_content(spec, code, fields)
        return self._site.post("validations/", answers.Validation, **content)

    def validation(self, validation_id: int) -> answers.Validation:
        """Return a validation as it is now."""
        return self._site.get(f"validations/{validation_id}/", answers.Validation)

    def wait_validation(
        self, validation_id: int, *, timeout_s: float | None = None
    ) -> answers.Validation:
        """Return a validation as soon as it is over: `passed`, `failed` or `cancelled`.

        Once it has answered, the site may be away for some minutes.

        Args:
            timeout_s: raise the error `timed_out` when it is not over by then.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        away_s = 0.0
        while True:
            asked_at = time.monotonic()
            left_s = _WAIT_S if deadline is None else min(_WAIT_S, max(deadline - asked_at, 0.0))
            found = self._site.get(
                f"validations/{validation_id}/", answers.Validation,
                params={"wait": f"{left_s:.3f}"}, wait_s=left_s, away_s=away_s,
            )  # fmt: skip
            away_s = AWAY_LIMIT_S
            if found["status"] != "running":
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise VirtualFlowError(
                    f"Validation {validation_id} is not over within {timeout_s:g} s; it goes on.",
                    code="timed_out",
                )
            # The site answers at once when too many requests wait already.
            self._site.sleep(max(0.0, asked_at + self._poll_s - time.monotonic()))
