"""The OpenAPI document: what every operation has."""

from __future__ import annotations

from collections import Counter

from drf_spectacular.generators import SchemaGenerator


def test_every_operation_has_a_short_summary_of_its_own() -> None:
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    summaries = {
        f"{method.upper()} {path}": operation["summary"]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert len(summaries) > 50
    assert {name: text for name, text in summaries.items() if not 4 <= len(text) <= 60} == {}
    counts = Counter(summaries.values())
    assert {name: text for name, text in summaries.items() if counts[text] > 1} == {}
    assert summaries["POST /api/v1/nodes/{node_id}/drain/"] == "Drain a node"
