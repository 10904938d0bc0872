"""Prepare an installation for use: schema, static files, first admin, tokens for new nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management import CommandError, CommandParser, call_command
from django.core.management.base import BaseCommand

from jobs.services.cluster.bootstrap import ensure_admin, ensure_enrolment_token, ensure_token_file
from jobs.services.cluster.secrets import secrets_seal_anew


class Command(BaseCommand):
    help = (
        "Migrate the database, make the first admin (password: ADMIN_PASSWORD) and write a "
        "one-time enrolment token for each node that has not joined. Safe to run again, and needed "
        "after an update."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("nodes", nargs="*", help="names of nodes that shall be let in")
        parser.add_argument("--admin", required=True, help="user name of the first admin")
        parser.add_argument(
            "--enrolment-dir",
            type=Path,
            help="folder that gets NODE/token for each new node",
        )
        parser.add_argument(
            "--again", action="store_true", help="also let nodes in that were removed"
        )
        parser.add_argument(
            "--static",
            action="store_true",
            help="collect the static files, compressed: half a minute for faster first views; "
            "where they were collected once, every update needs it",
        )
        parser.add_argument(
            "--token-file", type=Path, help="file that gets an API token of the admin, for scripts"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        password = os.environ.get("ADMIN_PASSWORD", "")
        if not password:
            raise CommandError("Set ADMIN_PASSWORD; it has no default.")
        nodes, directory = options["nodes"], options["enrolment_dir"]
        if nodes and directory is None:
            raise CommandError("Say with --enrolment-dir where the tokens of the nodes go.")
        call_command("migrate", interactive=False, verbosity=1)
        if options["static"]:
            # Compressed once, and better than each answer by itself would be.
            try:
                call_command("collectstatic", interactive=False, verbosity=0)
            except OSError as error:
                raise CommandError(f"Static files cannot be collected: {error}") from None
        try:
            admin = ensure_admin(options["admin"], password)
        except ValidationError as error:
            raise CommandError(f"ADMIN_PASSWORD: {' '.join(error.messages)}") from None
        num_sealed, num_lost = secrets_seal_anew()
        if num_sealed:
            self.stdout.write(f"encrypted {num_sealed} stored secrets with the present key")
        if num_lost:
            self.stdout.write(
                f"{num_lost} stored secrets cannot be read with VIRTUALFLOW_SECRETS_KEY or "
                "VIRTUALFLOW_OLD_SECRETS_KEYS: their owners have to store them again"
            )
        try:
            if options["token_file"]:
                ensure_token_file(admin, "prepare", options["token_file"])
            for node in nodes:
                self._write_token(node, directory / node / "token", again=options["again"])
        except OSError as error:
            raise CommandError(f"A token cannot be written: {error}") from None

    def _write_token(self, node: str, path: Path, *, again: bool) -> None:
        token = ensure_enrolment_token(node, again=again)
        if token is None:
            self.stdout.write(f"{node} has joined already (--again lets a removed node in)")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
        self.stdout.write(f"wrote a one-time enrolment token for {node} to {path}")
