"""Bodies and parameters of any content are answered with a client error, never with a 500."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import RequestFactory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.exceptions import ParseError

from controlplane.core.protocol.code_archive import (
    ENTRIES_LIMIT,
    CodeArchiveError,
    archive_check,
)
from controlplane.core.protocol.prediction_parts import PredictionPart, parts_join
from jobs.api.jobs.submission_request import submission_read
from jobs.api.parsers import SUBMISSION_LIMIT_BYTES, YAML_LIMIT_BYTES, yaml_read
from jobs.exceptions import InvalidInputError
from tests.security.hostile_values import HOSTILE
from tests.support.builders import Clients, job_make, logged_in, submission_values

YAML = (
    "!!timestamp foo",
    '!!int ""',
    "!!float " + "1:" * 400 + "1.0",
    "!!binary a",
    "!!python/object:os.system {}",
    "{1: a, b: c, null: d, true: e}",
    "? [a]\n: b",
    "{? {a: b} : c}",
    "stop: {1: 2, null: 3}",
    "settings: {1: 2, a: 3}",
    "settings: {2026-01-01: 3}",
    '"\\ud800": "\\ud800"',
    "a: &a [*a]",
    "[" * 1000,
    "- " * 1000,
    "!!set {a, b}",
    "2026-01-01",
)


@pytest.mark.parametrize("text", YAML)
@pytest.mark.django_db
def test_odd_yaml_is_a_client_error(ada: User, client_of: Clients, text: str) -> None:
    for body in (text, f"settings: {text}", f"name: {text}"):
        answer = client_of(ada).post("/api/v1/jobs/", body, content_type="application/yaml")
        assert answer.status_code == 400, body


@given(st.text(alphabet="!&*[]{}:,?-# \n\"'|>%@`ab01.~<=tfloatintbinary", max_size=60))
def test_any_text_is_yaml_or_refused(text: str) -> None:
    with contextlib.suppress(ParseError):
        yaml_read(text.encode())


def test_yaml_is_bounded() -> None:
    with pytest.raises(ParseError, match="65536 bytes"):
        yaml_read(b"a" * (YAML_LIMIT_BYTES + 1))


@pytest.mark.django_db
def test_json_is_bounded_by_route(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    code = "#" * (SUBMISSION_LIMIT_BYTES // 2)
    fitting = json.dumps(submission_values(code=code[: 2**20]))
    answer = client.post("/api/v1/jobs/", fitting, content_type="application/json")
    assert answer.status_code == 201
    number = answer.json()["id"]
    long = json.dumps(submission_values(code=code * 2))
    answer = client.post("/api/v1/jobs/", long, content_type="application/json")
    assert (answer.status_code, "2097152 bytes" in answer.json()["detail"]) == (413, True)
    reason = json.dumps({"reason": "a" * 2**17})
    answer = client.post(f"/api/v1/jobs/{number}/cancel/", reason, content_type="application/json")
    assert (answer.status_code, "65536 bytes" in answer.json()["detail"]) == (400, True)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "jobs/"), ("post", "jobs/?dry_run=1"), ("post", "sweeps/"),
        ("post", "jobs/actions/"), ("post", "jobs/{}/reprioritise/"), ("patch", "jobs/{}/"),
        ("post", "saved-filters/"), ("put", "secrets/A/"), ("post", "jobs/{}/clone/"),
    ],
)  # fmt: skip
def test_the_answer_to_many_unknown_fields_is_short(
    method: str, path: str, ada: User, client_of: Clients
) -> None:
    """Each is named with all that there are instead: an answer could be 70 times its request."""
    job = job_make(ada)
    body = json.dumps(dict.fromkeys(map("x{}".format, range(5000)), 0))
    send = getattr(client_of(ada), method)
    answer = send(f"/api/v1/{path.format(job.pk)}", body, content_type="application/json")
    assert answer.status_code == 400
    assert len(answer.content) < len(body) // 2


@pytest.mark.django_db
@pytest.mark.parametrize("position", ["abc", "", "-1", "1" * 40, "\0", "1e5", "2026-01-01"])
def test_any_cursor_is_answered(ada: User, client_of: Clients, position: str) -> None:
    cursor = b64encode(f"p={quote(position)}".encode()).decode()
    for sign in ("", "&r=1"):
        cursor = b64encode(f"p={quote(position)}{sign}".encode()).decode()
        answer = client_of(ada).get("/api/v1/jobs/", {"cursor": cursor})
        assert answer.status_code in (200, 404)


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["settings", "name", "code", "stop", "priority", "accepted_kinds"])
def test_any_value_of_a_field_is_answered(ada: User, client_of: Clients, name: str) -> None:
    client = client_of(ada)
    values: list[Any] = [*HOSTILE[:-1], {"a": "\ud800"}, {"\0": 1}, {"a": 10**400}]
    values += [{"kind": "metric", "limit": 10**400, "metric": "a", "target": 10**400}]
    for value in values:
        body = json.dumps(submission_values(**{name: value}))
        answer = client.post("/api/v1/jobs/", body, content_type="application/json")
        assert answer.status_code in (201, 400), (name, body[:100])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(target=st.integers() | st.just(10**400) | st.just(-(10**400)) | st.floats())
def test_any_target_is_a_number_or_refused(target: float) -> None:
    stop = {"kind": "metric", "limit": 5, "metric": "loss", "target": target}
    with contextlib.suppress(InvalidInputError):
        assert submission_read(submission_values(stop=stop)).stop.target == float(target)


@pytest.mark.django_db
@pytest.mark.parametrize("reason", ["\0", "a\0b", "\ud800"])
def test_reasons_are_text_that_can_be_stored(ada: User, client_of: Clients, reason: str) -> None:
    job = job_make(ada)
    body = json.dumps({"reason": reason})
    for action in ("cancel", "pause"):
        path = f"/api/v1/jobs/{job.pk}/{action}/"
        answer = client_of(ada).post(path, body, content_type="application/json")
        assert answer.status_code == 400
        assert ("errors" in answer.json()) == ("\0" in reason)


@pytest.mark.django_db
def test_pages_and_files_stay_out_of_caches(ada: User) -> None:
    client, job = logged_in(ada), job_make(ada)
    paths = ["/", "/jobs/", f"/jobs/{job.pk}/", f"/jobs/{job.pk}/code/", "/account/", "/nowhere/"]
    for path in [*paths, f"/api/v1/jobs/{job.pk}/", f"/api/v1/jobs/{job.pk}/code/"]:
        assert client.get(path).headers["Cache-Control"] == "private, no-store", path


def zip_with(num_entries: int, num_claimed: int | None = None) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(num_entries):
            archive.writestr(f"f{number}.py", b"")
    data = bytearray(packed.getvalue())
    if num_claimed is not None:
        data[-14:-10] = num_claimed.to_bytes(2, "little") * 2
    return bytes(data)


@pytest.mark.parametrize("num_claimed", [None, 1, 0])
def test_an_archive_of_many_files_is_not_listed(
    num_claimed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zip_with(30_000, num_claimed)
    monkeypatch.setattr(zipfile, "ZipFile", pytest.fail)
    with pytest.raises(CodeArchiveError, match=f"at most {ENTRIES_LIMIT:,}"):
        archive_check(data, "a.zip")


def part_of(**options: Any) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", **options) as archive:
        array = io.BytesIO()
        np.save(array, np.zeros((2, 1000), np.float32))
        archive.writestr("a.npy", array.getvalue())
    return packed.getvalue()


def test_uploads_have_no_name_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = bytes(3 * 1024**2)
    request = RequestFactory().post("/", {"code": SimpleUploadedFile("job.py", code)})
    upload = request.FILES["code"]
    assert list(tmp_path.iterdir()) == []
    assert (upload.name, upload.size, upload.read()) == ("job.py", len(code), code)
    request.close()


def test_compressed_parts_are_not_joined() -> None:
    whole = io.BytesIO()
    parts_join([PredictionPart(0, 2)], 2, lambda _: io.BytesIO(part_of()), whole)
    assert np.load(io.BytesIO(whole.getvalue()))["a"].shape == (2, 1000)
    packed = part_of(compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="packed ones"):
        parts_join([PredictionPart(0, 2)], 2, lambda _: io.BytesIO(packed), io.BytesIO())


@pytest.mark.parametrize("name", ["a.npy", "a"])
def test_a_part_of_many_entries_is_not_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table alone may be as large as the part, and takes ten times that in memory."""
    entry = b"\x14\0\x14\0" + bytes(20) + len(name).to_bytes(2, "little") + bytes(16)
    table = (b"PK\x01\x02" + entry + name.encode()) * 30_000
    end = b"PK\x05\x06" + bytes(4) + (30_000).to_bytes(2, "little") * 2
    hostile = table + end + len(table).to_bytes(4, "little") + bytes(6)
    with zipfile.ZipFile(io.BytesIO(hostile)) as archive:
        assert len(archive.infolist()) == 30_000
    monkeypatch.setattr(zipfile, "ZipInfo", pytest.fail)
    with pytest.raises(ValueError, match="a table of over"):
        parts_join([PredictionPart(0, 2)], 2, lambda _: io.BytesIO(hostile), io.BytesIO())


def test_arrays_that_share_bytes_are_not_joined() -> None:
    """Two entries of the table may point to the same bytes of the file."""
    data = part_of()
    at = data.index(b"PK\x01\x02")
    entry = data[at : data.index(b"PK\x05\x06")]
    again = entry.replace(b"a.npy", b"b.npy")
    end = bytearray(data[at + len(entry) :])
    end[8:12] = (2).to_bytes(2, "little") * 2
    end[12:16] = (2 * len(entry)).to_bytes(4, "little")
    hostile = data[:at] + entry + again + bytes(end)
    with pytest.raises(ValueError, match="larger than itself"):
        parts_join([PredictionPart(0, 2)], 2, lambda _: io.BytesIO(hostile), io.BytesIO())
