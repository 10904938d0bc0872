"""List, or remove, files that the database does not know."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core.files.storage import default_storage
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from jobs.services.lifecycle.retention import files_left


class Command(BaseCommand):
    help = "List code and files of jobs that the database does not know, and are a day old."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--remove", action="store_true", help="remove them, too")

    def handle(self, *_args: Any, **options: Any) -> None:
        for file in files_left(timezone.now()):
            with suppress(FileNotFoundError):  # removed meanwhile
                self.stdout.write(f"{file} ({default_storage.size(file)} bytes)")
            if options["remove"]:
                default_storage.delete(file)
