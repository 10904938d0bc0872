"""Requests about saved filters: queries of the list of jobs, by a name."""

from __future__ import annotations

from virtualflow import answers
from virtualflow.typed_site import TypedSite


class SavedFilterRequests:
    """Methods of `Client` about the own saved filters."""

    _site: TypedSite

    def saved_filters(self) -> list[answers.SavedFilter]:
        """Return the own filters by name; `jobs(query=...)` takes the query of one."""
        return self._site.rows("saved-filters/", answers.SavedFilter)

    def save_filter(self, name: str, query: str) -> answers.SavedFilter:
        """Keep a filter, in place of one of the same name.

        Args:
            query: parameters of `GET jobs/`, such as `status=live&tag=baseline`.
        """
        body = {"name": name, "query": query}
        return self._site.post("saved-filters/", answers.SavedFilter, json=body)

    def delete_filter(self, filter_id: int) -> None:
        """Delete a filter."""
        self._site.request("DELETE", f"saved-filters/{filter_id}/")
