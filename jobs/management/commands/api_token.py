"""Print a new API token that acts for a user."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.exceptions import ControlPlaneError
from jobs.services.cluster.api_tokens import JOB_SCOPES, SCOPES, api_token_create


class Command(BaseCommand):
    help = "Print a new API token; it is shown this once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--name", default="command line")
        parser.add_argument("--scope", choices=SCOPES, action="append", help="default: jobs:*")
        parser.add_argument("--days", type=int, default=90)

    def handle(self, *_args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']!r}.")
        try:
            _, text = api_token_create(
                user,
                options["name"],
                timezone.now(),
                scopes=options["scope"] or JOB_SCOPES,
                lifetime_days=options["days"],
            )
        except ControlPlaneError as error:
            raise CommandError(f"{error.detail} {error.fields or ''}") from None
        self.stdout.write(text)
