"""Reader of cluster files: nodes of several sizes and kinds, and the speeds of the kinds.

    nodes:
      - {kind: t4, count: 6, accelerators: 4}
      - {kind: a100, count: 2, accelerators: 8}
    kinds:
      a100: {speeds: {cifar10: 4.5, imagenet: 6.1}}

`count` nodes have `accelerators` each. A kind has `speeds` by application, relative to the
accelerators that --profiles were measured on, or `profiles`, a folder like that of --profiles that
was measured on the kind itself, given from the file's folder. A kind with neither is as fast as the
accelerators of --profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from controlplane.plain_yaml import PlainLoader
from controlplane.simulator.workloads.profiles import speeds_of
from controlplane.simulator.workloads.reading import row_of, text_of, whole_of
from controlplane.simulator.workloads.workloads import (
    MOST_ACCELERATORS,
    Cluster,
    NodeGroup,
    cluster_build,
)

_OPTION = "--cluster"


@dataclass(frozen=True)
class ClusterFile:
    """Content of a cluster file.

    Attributes:
        profiles: kind -> folder with measurements on that kind.
        speeds: application -> kind -> relative speed.
    """

    cluster: Cluster
    profiles: Mapping[str, Path] = field(default_factory=dict)
    speeds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def cluster_read(path: Path) -> ClusterFile:
    """Read a cluster file.

    Raises:
        ValueError: naming the file, the field and the fix.
    """
    content = _yaml_read(path)
    with row_of(_OPTION, str(path)):
        _fields_check(content, {"nodes", "kinds"}, "the file")
        rows = content.get("nodes")
        if not isinstance(rows, list) or not rows:
            raise ValueError(
                "'nodes' must be a list with a row for each group of equal nodes, as "
                "- {kind: t4, count: 6, accelerators: 4}"
            )
    groups = [_group_read(row, f"row {number} of 'nodes' in {path}")
              for number, row in enumerate(rows, start=1)]  # fmt: skip
    with row_of(_OPTION, f"'nodes' in {path}"):
        cluster = cluster_build(groups)
    with row_of(_OPTION, str(path)):
        kinds = content.get("kinds") or {}
        _fields_check(kinds, set(cluster.kinds), "'kinds'")
    kinds = {str(kind): about for kind, about in kinds.items()}
    profiles: dict[str, Path] = {}
    speeds: dict[str, dict[str, float]] = {}
    for kind, about in kinds.items():
        with row_of(_OPTION, f"kind {kind} in {path}"):
            _fields_check(about, {"profiles", "speeds"}, f"kind {kind}")
            if len(about) != 1:
                raise ValueError("give either 'profiles' or 'speeds' of the kind")
            if "profiles" in about:
                folder = profiles[kind] = path.parent / text_of(about, "profiles")
                if not folder.is_dir():
                    raise ValueError(
                        f"'profiles': there is no folder {folder}; name one that exists"
                    )
            else:
                for application, factor in speeds_of(about["speeds"]).items():
                    speeds.setdefault(application, {})[kind] = factor
    return ClusterFile(cluster, profiles, speeds)


def _yaml_read(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8-sig"), Loader=PlainLoader)  # noqa: S506
    except OSError as error:
        raise ValueError(f"{_OPTION}: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{_OPTION}: {path} is no YAML: {error}") from error


def _fields_check(values: Any, known: set[str], where: str) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must have the fields {', '.join(sorted(known))}")
    unknown = sorted({str(name) for name in values} - known)
    if unknown:
        raise ValueError(
            f"{where} has {', '.join(map(repr, unknown))}; known are {', '.join(sorted(known))}"
        )


def _group_read(row: Any, where: str) -> NodeGroup:
    with row_of(_OPTION, where):
        kind = text_of(row, "kind")
        _fields_check(row, {"kind", "count", "accelerators"}, "the row")
        count, size = (whole_of(row, name, MOST_ACCELERATORS) for name in ("count", "accelerators"))
        for name, number in (("count", count), ("accelerators", size)):
            if number < 1:
                raise ValueError(f"{name!r} must be at least 1, not {number}")
        return NodeGroup(kind, count, size)
