"""Run Django's management commands for this project."""

import os
import re
import sys

#: Settings of a process that needs neither secret nor server: it reads files and computes.
ALONE = {
    "VIRTUALFLOW_SECRET_KEY": "of-a-simulation-which-signs-nothing-and-answers-nobody",
    "REDIS_URL": "redis://localhost",
    "DATABASE_URL": "sqlite:///:memory:",
}


def main() -> None:
    """Run the command that the arguments name."""
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError

    from jobs.demo.environment import demo_directory, demo_environment

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    if sys.argv[1:2] == ["demo"]:
        # The demo makes its own settings, and Django reads them before it runs a command.
        os.environ.update(demo_environment(demo_directory()))
    if "simulate" in sys.argv[1:3]:
        os.environ.update(
            {name: value for name, value in ALONE.items() if not os.environ.get(name)}
        )
    try:
        execute_from_command_line(sys.argv)
    except (ImproperlyConfigured, OperationalError, ProgrammingError) as error:
        if "--traceback" in sys.argv:
            raise
        if isinstance(error, ImproperlyConfigured):
            sys.exit(f"Settings: {error}")
        told = str(error).partition("\nLINE ")[0].strip()
        is_older = re.search("no such |(relation|column) .* does not exist", told)
        fix = "\nFix: bring it up to date with `python manage.py migrate`." if is_older else ""
        sys.exit(f"The database of DATABASE_URL: {told}{fix}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped by Ctrl-C before the end.\n")
        sys.exit(130)
