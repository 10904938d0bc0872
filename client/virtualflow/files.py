"""Downloads: streamed to a file beside the wanted one, checked, then put in its place."""

from __future__ import annotations

import hashlib
from pathlib import Path

from virtualflow.errors import VirtualFlowError
from virtualflow.transport import Transport, bad_input


def file_store(site: Transport, route: str, name: str, path: Path) -> Path:
    """Store the answer of a route; return the file's path.

    Args:
        path: a folder, where the file gets `name`, or the new file, whose folder is made.

    Raises:
        VirtualFlowError: it cannot be had or written, or its digest is not `X-Sha256`.
    """
    file_name_check(name)
    if path.is_dir():
        path = path / name
    if path.exists() and not path.is_file():
        raise bad_input("path", f"{path} is there already, and no file that could be replaced.")
    part = path.with_name(f"{path.name}.part")
    digest = hashlib.sha256()
    try:
        with site.stream(route) as response:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                for piece in response.iter_bytes():
                    digest.update(piece)
                    file.write(piece)
            expected = response.headers.get("X-Sha256")
        if expected and digest.hexdigest() != expected:
            raise VirtualFlowError(
                f"{name} came with another digest than the site has for it; try again.",
                code="wrong_digest",
            )
        part.replace(path)
    except OSError as error:
        raise bad_input("path", f"{path}: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def file_name_check(name: str) -> None:
    """Refuse what is no name of a file in one folder.

    Raises:
        VirtualFlowError: it is none.
    """
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise bad_input("name", f"{name!r:.60} is no name of a file, such as model.keras.")
