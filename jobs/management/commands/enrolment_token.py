"""Print a one-time token for the enrolment of one node."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.services.cluster.nodes import ENROLMENT_TOKEN_HOURS, enrolment_token_create

#: A week, as on the nodes page.
HOURS_LIMIT = 168


class Command(BaseCommand):
    help = "Print a one-time enrolment token for one node."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--hours", type=float, default=ENROLMENT_TOKEN_HOURS)

    def handle(self, *_args: Any, **options: Any) -> None:
        if not 0 < options["hours"] <= HOURS_LIMIT:
            raise CommandError(f"--hours: give more than 0 and at most {HOURS_LIMIT}.")
        lifetime_s = options["hours"] * 3600
        _, text = enrolment_token_create(None, timezone.now(), lifetime_s=lifetime_s)
        self.stdout.write(text)
