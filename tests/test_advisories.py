"""The search for known vulnerabilities: it fails on findings, and says when it does not search."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.advisories import AUDIT, REQUIREMENTS, advisories_search

ROOT = Path(__file__).resolve().parents[1]
Serve = Callable[[int, object], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start an index that answers everything alike; give its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, content: object) -> str:
        class Index(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def audits(tmp_path: Path, failing: str) -> list[str]:
    """Give a command that notes its last argument, and fails for one of them."""
    script = (
        f"import sys; print(sys.argv[-1], file=open({str(tmp_path / 'searched')!r}, 'a'));"
        f"sys.exit(sys.argv[-1] == {failing!r})"
    )
    return [sys.executable, "-c", script]


@pytest.mark.parametrize("failing", ["", *REQUIREMENTS])
def test_every_file_of_pins_is_searched(failing: str, serve: Serve, tmp_path: Path) -> None:
    index = serve(200, {"vulnerabilities": [{"id": "PYSEC-1"}]})
    assert advisories_search(index, audits(tmp_path, failing)) == bool(failing)
    assert (tmp_path / "searched").read_text().split() == [*REQUIREMENTS]
    assert all((ROOT / name).exists() for name in REQUIREMENTS)


@pytest.mark.parametrize(
    ("status", "content"),
    [(404, {}), (503, {}), (200, {"vulnerabilities": []}), (200, {}), (200, "text"), (200, None)],
)
def test_an_index_without_advisories_is_said(
    status: int, content: object, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advisories_search(serve(status, content), audits(tmp_path, "")) == 0
    assert "NOT searched" in capsys.readouterr().out
    assert not (tmp_path / "searched").exists()


def test_no_index_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advisories_search("http://127.0.0.1:1", audits(tmp_path, "")) == 0
    assert "NOT searched" in capsys.readouterr().out


def test_the_audit_passes_over_nothing() -> None:
    """Without `--strict` packages that an index does not know would pass."""
    assert {"--strict", "--require-hashes", "--disable-pip"} <= {*AUDIT}
    assert "\npip-audit==" in (ROOT / "requirements/dev.txt").read_text()
