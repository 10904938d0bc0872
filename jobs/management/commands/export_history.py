"""manage.py export_history: the cluster's history as a file for `manage.py simulate`."""

from __future__ import annotations

import datetime
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from controlplane.simulator.workloads.history import history_write
from jobs.selectors.history import history_read


class Command(BaseCommand):
    """Writes jobs with submission times, bounds, work and measured speeds; no code and no data."""

    help = "Write the jobs of the last hours, with their measured speeds, as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="written anew; its folder has to exist")
        parser.add_argument("--hours", type=float, default=24.0, help="how far back (24)")

    def handle(self, *_args: Any, **options: Any) -> None:
        path, hours = options["file"], options["hours"]
        if not hours > 0.0:
            raise CommandError(f"--hours: give a positive number, not {hours}.")
        now = timezone.now()
        history = history_read(now - datetime.timedelta(hours=hours), now)
        try:
            history_write(history, path)
        except OSError as error:
            raise CommandError(f"file: {path} cannot be written: {error.strerror}.") from error
        for why, number in history.left_out.items():
            self.stdout.write(f"{number} left out: {why}")
        self.stdout.write(f"{len(history.jobs)} jobs written to {path}")
        self.stdout.write(f"Next: manage.py simulate --workload {path} --policy NAME")
