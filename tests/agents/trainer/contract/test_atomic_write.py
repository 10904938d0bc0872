"""Files that are written atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.trainer.contract.atomic_write import atomic_write, text_write


@pytest.mark.parametrize("is_synced", [False, True])
def test_the_file_appears_when_it_is_complete(tmp_path: Path, is_synced: bool) -> None:
    path = tmp_path / "model.keras"
    path.write_text("old")
    with atomic_write(path, is_synced=is_synced) as partial:
        assert partial.suffix == path.suffix
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def test_an_error_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    text_write(path, "old")
    with pytest.raises(FileNotFoundError), atomic_write(path) as partial:
        partial.with_name("missing").rename(path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    with atomic_write(path, mode=0o600) as partial:
        assert partial.stat().st_mode & 0o777 == 0o600
        partial.write_text("secret")
    assert path.stat().st_mode & 0o777 == 0o600
