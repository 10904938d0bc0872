"""Storage of the files of jobs: whole or not at all, and only together with the row that has it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.core.files import File
from django.core.files.storage import FileSystemStorage
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import DatabaseError
from django.db.models.fields.files import FieldFile


class WholeFiles(FileSystemStorage):
    """Files of new names: one that cannot be written to its end, as on a full disk, is deleted."""

    def _save(self, name: str, content: File) -> str:
        try:
            return str(super()._save(name, content))  # type: ignore[misc]
        except OSError:
            with suppress(OSError):
                Path(self.path(name)).unlink()
            raise


class UnnamedUploads(TemporaryFileUploadHandler):
    """Uploads on the disk, without a name: a process that is killed leaves nothing of them."""

    def new_file(self, *args: Any, **options: Any) -> None:
        """Begin with a file."""
        super(TemporaryFileUploadHandler, self).new_file(*args, **options)
        about = self.file_name, self.content_type, 0, self.charset, self.content_type_extra
        unnamed = tempfile.TemporaryFile()  # noqa: SIM115  the request closes it
        self.file = UploadedFile(unnamed, *about)  # type: ignore[assignment]

    def upload_interrupted(self) -> None:
        """Drop the file under way, if any."""
        with suppress(AttributeError):
            self.file.close()


@contextmanager
def stored_with_row(file: FieldFile) -> Iterator[None]:
    """Delete a stored file if the block, which stores its row, fails.

    It stays where the database does not tell whether the row is there: a file without a row does
    no harm, a row without its file does.
    """
    try:
        yield
    except BaseException:
        rows = type(file.instance)._default_manager  # noqa: SLF001  public by its documentation
        with suppress(DatabaseError):
            if not rows.filter(pk=file.instance.pk, **{file.field.name: file.name}).exists():
                file.delete(save=False)
        raise


def file_share(source: FieldFile, own: FieldFile, name: str) -> None:
    """Give `own` a second name of a stored file, which is never written again, or else a copy.

    Args:
        name: as of `FieldFile.save`.

    Raises:
        OSError: the file is gone, or there is no room.
    """
    storage = source.storage
    if isinstance(storage, FileSystemStorage):
        new = storage.get_available_name(own.field.generate_filename(own.instance, name))
        target = Path(storage.path(new))
        with suppress(OSError):  # another file system, or no hard links
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(storage.path(source.name or ""), target)
            own.name = new
            return
    with source.open("rb") as file:
        own.save(name, file, save=False)
