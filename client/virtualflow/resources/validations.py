"""Requests for validations: code is built, and its memory measured, before it is submitted."""

from __future__ import annotations

import time
from typing import Any

from virtualflow import answers
from virtualflow.deadlines import POLL_LIMIT_S, Deadline
from virtualflow.submissions import Spec, StrPath, submission_content
from virtualflow.transport import AWAY_LIMIT_S
from virtualflow.typed_site import TypedSite


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
        deadline, away_s = Deadline(timeout_s), 0.0
        while True:
            asked_at, left_s = time.monotonic(), deadline.left_s(POLL_LIMIT_S)
            found = self._site.get(
                f"validations/{validation_id}/", answers.Validation,
                params={"wait": f"{left_s:.3f}"}, wait_s=left_s, away_s=away_s,
            )  # fmt: skip
            if found["status"] != "running":
                return found
            deadline.check(f"Validation {validation_id} is not over")
            # The site answers at once when too many requests wait already.
            self._site.sleep(max(0.0, asked_at + self._poll_s - time.monotonic()))
            away_s = deadline.left_s(AWAY_LIMIT_S)
