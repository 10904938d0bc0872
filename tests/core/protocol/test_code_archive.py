"""Uploaded code: what is accepted, what is refused, and that nothing leaves the target."""

import io
import re
import stat
import zipfile
from pathlib import Path

import pytest

from controlplane.core.protocol import code_archive
from controlplane.core.protocol.code_archive import CodeArchiveError, archive_check, archive_unpack

JOB = b"def build(settings):\n    return None\n"


def zip_of(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def refusal(data: bytes, name: str = "code.zip") -> str:
    with pytest.raises(CodeArchiveError) as caught:
        archive_check(data, name)
    return caught.value.code


def test_a_single_file_is_its_own_entry(tmp_path: Path) -> None:
    assert archive_check(JOB, "wine.py") == "wine.py"
    assert archive_unpack(JOB, "wine.py", tmp_path / "code") == "wine.py"
    assert (tmp_path / "code" / "wine.py").read_bytes() == JOB


@pytest.mark.parametrize("name", ["../../up.py", "C:\\up.py", "/etc/up.py"])
def test_only_the_last_part_of_a_single_files_name_counts(name: str, tmp_path: Path) -> None:
    assert archive_unpack(JOB, name, tmp_path / "code") == "up.py"
    assert [path.name for path in tmp_path.rglob("*.py")] == ["up.py"]
    assert (tmp_path / "code" / "up.py").is_file()


@pytest.mark.parametrize(
    ("data", "name", "code"),
    [
        (JOB, "notes.txt", "code_type"),
        (JOB, "with space.py", "code_name"),
        (JOB, "ünïcode.py", "code_name"),
        (JOB, ".py", "code_name"),
        (b"  \n", "job.py", "code_empty"),
        (b"x = 1\0", "job.py", "code_empty"),
        (b"#" * (code_archive.FILE_LIMIT_BYTES + 1), "job.py", "code_too_large"),
        (b"PK no zip at all", "code.zip", "zip_broken"),
    ],
)
def test_unusable_uploads_are_refused_by_name(data: bytes, name: str, code: str) -> None:
    assert refusal(data, name) == code


def test_a_zip_is_unpacked_with_its_folders(tmp_path: Path) -> None:
    data = zip_of(
        {"job.py": JOB, "other.py": b"", "tools/": b"", "tools/wash.py": b"x = 1\n", "d.bin": b"\0"}
    )
    assert archive_unpack(data, "code.zip", tmp_path / "code") == "job.py"
    names = sorted(str(p.relative_to(tmp_path / "code")) for p in (tmp_path / "code").rglob("*"))
    assert names == ["d.bin", "job.py", "other.py", "tools", "tools/wash.py"]
    assert (tmp_path / "code" / "tools" / "wash.py").read_bytes() == b"x = 1\n"


def test_the_only_python_file_at_the_top_is_the_entry() -> None:
    assert archive_check(zip_of({"train.py": JOB, "lib/a.py": b""}), "c.zip") == "train.py"


@pytest.mark.parametrize(
    "entries", [{"a.py": JOB, "b.py": JOB}, {"project/job.py": JOB}, {"readme.md": b"hello"}, {}]
)
def test_a_zip_without_a_clear_entry_is_refused(entries: dict[str, bytes]) -> None:
    assert refusal(zip_of(entries)) == "no_entry_file"


@pytest.mark.parametrize(
    ("entries", "fix"),
    [
        ({"a.py": JOB, "b.py": JOB}, "(found a.py, b.py); name the one with build() job.py"),
        ({"project/job.py": JOB}, "(found no Python file there); pack the files themselves"),
    ],
)
def test_the_refusal_of_a_zip_has_the_fix(entries: dict[str, bytes], fix: str) -> None:
    with pytest.raises(CodeArchiveError, match=re.escape(fix)):
        archive_check(zip_of(entries), "code.zip")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "lib/../../evil.py",
        "/evil.py",
        "lib//evil.py",
        "./evil.py",
        "C:/evil.py",
        "lib\\evil.py",
        "new\nline.py",
        "/".join(["deep"] * 12) + "/evil.py",
        "n" * 201,
        "ü" * 128,  # more bytes than a file system takes
    ],
)
def test_names_that_could_leave_the_target_are_refused(name: str, tmp_path: Path) -> None:
    data = zip_of({"job.py": JOB, name: b"evil"})
    assert refusal(data) == "zip_name"
    with pytest.raises(CodeArchiveError):
        archive_unpack(data, "code.zip", tmp_path / "code")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(kind: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("job.py", JOB)
        link = zipfile.ZipInfo("passwords")
        link.external_attr = (kind | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert refusal(buffer.getvalue()) == "zip_link"


def test_two_entries_for_one_path_are_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("job.py", JOB)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("job.py", b"import os\n")
    assert refusal(buffer.getvalue()) == "zip_duplicate"
    assert refusal(zip_of({"job.py": JOB, "Job.py": JOB})) == "zip_duplicate"
    assert refusal(zip_of({"job.py": JOB, "a": b"file", "a/b": b"in it"})) == "zip_duplicate"


def test_a_bomb_is_refused_by_ratio_before_it_is_unpacked() -> None:
    data = zip_of({"job.py": JOB, "zeros.bin": b"\0" * (code_archive.RATIO_FREE_BYTES + 1)})
    assert len(data) < 20_000
    assert refusal(data) == "zip_ratio"


def test_limits_on_number_and_total_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = zip_of({"job.py": JOB, "a": b"1" * 40, "b": b"2" * 40}, zipfile.ZIP_STORED)
    monkeypatch.setattr(code_archive, "ENTRIES_LIMIT", 2)
    assert refusal(data) == "zip_too_many_files"
    monkeypatch.setattr(code_archive, "ENTRIES_LIMIT", 3)
    monkeypatch.setattr(code_archive, "UNPACKED_LIMIT_BYTES", 80)
    assert refusal(data) == "zip_too_large"
    monkeypatch.setattr(code_archive, "UPLOAD_LIMIT_BYTES", len(data) - 1)
    assert refusal(data) == "code_too_large"


def test_a_damaged_entry_is_found() -> None:
    data = zip_of({"job.py": JOB}, zipfile.ZIP_STORED)
    damaged = data.replace(b"return None", b"return Nine")
    assert damaged != data
    assert refusal(damaged) == "zip_broken"


def test_an_entry_cannot_be_larger_than_it_says() -> None:
    data = zip_of({"job.py": b"#" * 5_000_000})
    honest, lie = (5_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    assert data.count(honest) == 2
    assert refusal(data.replace(honest, lie)) == "zip_broken"


def test_encrypted_and_unusual_compression_are_refused() -> None:
    assert refusal(zip_of({"job.py": JOB}, zipfile.ZIP_LZMA)) == "zip_method"
    data = bytearray(zip_of({"job.py": JOB}))
    for flags_at in (6, data.index(b"PK\x01\x02") + 8):  # of the entry, and of the table
        data[flags_at] |= 1
    assert refusal(bytes(data)) == "zip_method"


def test_a_larger_table_beside_the_usual_one_is_refused() -> None:
    """`zipfile` would read the entries that a Zip64 record names, however many."""
    data = zip_of({"job.py": JOB})
    end = len(data) - 22
    assert refusal(data[:end] + b"PK\x06\x07" + bytes(16) + data[end:]) == "zip_method"


def test_a_name_is_not_cut_at_a_zero_byte() -> None:
    data = zip_of({"job.py": JOB, "lib.py~": b"evil"})
    assert data.count(b"lib.py~") == 2
    assert refusal(data.replace(b"lib.py~", b"lib.py\0")) == "zip_name"


def test_the_target_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("")
    with pytest.raises(FileExistsError):
        archive_unpack(JOB, "job.py", tmp_path)


def test_what_packers_add_is_left_out(tmp_path: Path) -> None:
    data = zip_of({"job.py": JOB, "__MACOSX/._job.py": b"\0\5"})
    assert archive_unpack(data, "code.zip", tmp_path / "code") == "job.py"
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["job.py"]
