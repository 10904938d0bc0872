"""The exception of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class VirtualFlowError(Exception):
    """A request that the site refused, or that got no usable answer.

    Attributes:
        status: HTTP status; None without an answer.
        code: machine word of the site's problem (docs/rest-api.md), or one of the client's own:
            `bad_input`, `unreachable`, `unexpected_answer`, `redirected`, `timed_out`,
            `wrong_digest`, `wrong_signature`.
        detail: what is wrong, in a sentence.
        fields: messages by field of the request.
        retry_after_s: seconds after which the site would accept the request again.
    """

    def __init__(
        self,
        detail: str,
        *,
        code: str,
        status: int | None = None,
        fields: Mapping[str, Sequence[str]] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        self.status = status
        self.fields = {name: list(messages) for name, messages in (fields or {}).items()}
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        lines = [f"{name}: {text}" for name, texts in self.fields.items() for text in texts]
        return "\n".join([self.detail, *lines])

    @property
    def is_refusal(self) -> bool:
        """True if the site understood the request and refused it."""
        is_own_answer = self.code != "unexpected_answer"
        return is_own_answer and self.status is not None and 400 <= self.status < 500
