"""Run the whole product on this machine: site, Celery, two nodes, three jobs."""

from __future__ import annotations

import os
from typing import Any

from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand

from jobs.demo.environment import demo_directory
from jobs.demo.run import AlreadyRunningError, demo_run
from jobs.demo.stack.supervisor import PartFailedError


class Command(BaseCommand):
    help = "Run the whole product on this machine until Ctrl-C. State and logs: var/demo."
    requires_system_checks = ()

    def handle(self, *_args: Any, **_options: Any) -> None:
        if "VIRTUALFLOW_DEMO_PORT" not in os.environ:
            raise CommandError("Start it as `make demo` or `python manage.py demo`.")
        call_command("migrate", interactive=False, verbosity=0)
        try:
            demo_run(demo_directory(), os.environ, self._say)
        except (AlreadyRunningError, PartFailedError) as error:
            raise CommandError(str(error)) from error

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
