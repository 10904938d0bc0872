"""Downloads that break off: the rest is asked for, and put together only if it fits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from virtualflow import Client, VirtualFlowError

from tests.client.scripted_site import Answer, ScriptedSite, file_of, problem, scripted_site


def download(site: ScriptedSite, name: str, folder: Path) -> Path:
    with Client(site.address, "vfp_secret", timeout_s=5, sleep=lambda _: None) as client:
        return client.download(1, name, folder)


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    with (
        scripted_site(
            file_of(content, content[:9000], is_cut=True),
            *[problem(502)] * 10,  # while the site is upgraded
            file_of(content, content[9000:9001], status=206, is_cut=True),
            file_of(content, content[9001:], status=206),
        ) as site
    ):
        path = download(site, "model.keras", tmp_path)
    assert path.read_bytes() == content
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    asked = [(row.headers.get("Range"), row.headers.get("If-Range")) for row in site.asked]
    assert asked == [(None, None), *[("bytes=9000-", tag)] * 11, ("bytes=9001-", tag)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("new", [b"a newer version", b"new"])
def test_a_whole_answer_replaces_a_part(tmp_path: Path, new: bytes) -> None:
    with scripted_site(file_of(b"old version", b"old ver", is_cut=True), file_of(new)) as site:
        assert download(site, "a", tmp_path).read_bytes() == new


@pytest.mark.parametrize(
    "later",
    [
        file_of(b"whole", b"", status=206, is_cut=True),  # no more of it
        file_of(b"whole", b"e of another file", status=206),
        problem(404),
        problem(416),
    ],
)
def test_what_cannot_go_on_leaves_no_file(tmp_path: Path, later: Answer) -> None:
    begun = file_of(b"whole", b"whol", is_cut=True)
    with scripted_site(begun, later) as site, pytest.raises(VirtualFlowError):
        download(site, "a", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(site.asked) <= 6


def test_a_place_that_cannot_be_written_is_a_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with scripted_site(file_of(b"whole")) as site:
        for path in (tmp_path / "file" / "new", tmp_path / ("n" * 300)):
            with pytest.raises(VirtualFlowError) as caught:
                download(site, "a", path)
            assert {*caught.value.fields} == {"path"}


def test_an_answer_that_always_breaks_off_is_given_up(tmp_path: Path) -> None:
    a_byte = file_of(b"a" * 1000, b"a", status=206, is_cut=True)
    with scripted_site(a_byte) as site, pytest.raises(VirtualFlowError, match="100 times"):
        download(site, "a", tmp_path)
    assert len(site.asked) == 100
