"""Requests about the own secrets, whose values the site never gives back."""

from __future__ import annotations

from urllib.parse import quote

from virtualflow import answers
from virtualflow.typed_site import TypedSite, answer_read


class SecretRequests:
    """Methods of `Client` about secrets."""

    _site: TypedSite

    def secrets(self) -> list[answers.Secret]:
        """Return names and dates of the own secrets."""
        return self._site.rows("secrets/", answers.Secret)

    def set_secret(self, name: str, value: str) -> answers.Secret:
        """Store a secret, in place of the value that it had; a submission names it in `secrets`.

        Args:
            name: letters, digits and `_`, as of an environment variable.
            value: text of 8 characters to 16 KiB.
        """
        path, body = f"secrets/{quote(name, safe='')}/", {"value": value}
        response = self._site.request("PUT", path, is_repeatable=True, json=body)
        return answer_read(response, answers.Secret)

    def delete_secret(self, name: str) -> None:
        """Delete a secret; jobs that name it fail."""
        self._site.request("DELETE", f"secrets/{quote(name, safe='')}/")
