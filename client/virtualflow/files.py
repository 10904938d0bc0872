"""Downloads: streamed to a file beside the wanted one, checked, then put in its place.

A download that breaks off goes on where it stopped, also after some minutes without the site.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import httpx

from virtualflow.errors import VirtualFlowError
from virtualflow.submissions import StrPath
from virtualflow.transport import AWAY_LIMIT_S, Transport, bad_input
from virtualflow.typed_site import unexpected_answer

#: Most times that one download goes on.
_PARTS_LIMIT = 100


def file_store(site: Transport, route: str, name: str, path: StrPath) -> Path:
    """Store the answer of a route; return the file's path.

    Args:
        path: a folder, where the file gets `name`, or the new file, whose folder is made.

    Raises:
        VirtualFlowError: it cannot be had or written, or its digest is not `X-Sha256`.
    """
    file_name_check(name)
    path = Path(path)
    part: Path | None = None
    try:
        if path.is_dir():
            path = path / name
        if path.exists() and not path.is_file():
            raise bad_input("path", f"{path} is there already, and no file that could be replaced.")
        part = path.with_name(f"{path.name}.part")
        expected = _parts_store(site, route, part)
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise VirtualFlowError(
                f"{name} came with another digest than the site has for it; try again.",
                code="wrong_digest",
            )
        part.replace(path)
    except OSError as error:
        raise bad_input("path", f"{path}: {error.strerror or error}.") from None
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()
    return path


def _parts_store(site: Transport, route: str, path: Path) -> str:
    """Write the answer of a route to a file; return its digest as the site has it.

    Raises:
        OSError: the file cannot be written.
        VirtualFlowError: the site refused it, an attempt brought no more of it, or an answer has no
            digest.
    """
    size_bytes, tag = 0, ""
    for _ in range(_PARTS_LIMIT):
        rest = {"Range": f"bytes={size_bytes}-", "If-Range": tag} if tag else {}
        try:
            with site.stream(route, headers=rest, away_s=AWAY_LIMIT_S if tag else 0.0) as response:
                tag = response.headers.get("ETag", "")
                digest: str = response.headers.get("X-Sha256", "")
                if not digest:
                    raise unexpected_answer()
                path.parent.mkdir(parents=True, exist_ok=True)
                # A whole answer is another version by now, or of a proxy that knows no ranges.
                is_rest = response.status_code == httpx.codes.PARTIAL_CONTENT
                with path.open("ab" if is_rest else "wb") as file:
                    for piece in response.iter_bytes():
                        file.write(piece)
                return digest
        except VirtualFlowError as error:
            before, size_bytes = size_bytes, path.stat().st_size if path.exists() else 0
            if error.code != "unreachable" or size_bytes <= before:
                raise
    raise VirtualFlowError(f"The answer broke off {_PARTS_LIMIT} times.", code="unreachable")


def file_name_check(name: str) -> None:
    """Refuse what is no name of a file in one folder.

    Raises:
        VirtualFlowError: it is none.
    """
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise bad_input("name", f"{name!r:.60} is no name of a file, such as model.keras.")
