"""Run Django's management commands for this project."""

import os
import sys

from django.core.management import execute_from_command_line

from jobs.demo.environment import demo_directory, demo_environment

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    if sys.argv[1:2] == ["demo"]:
        # The demo makes its own settings, and Django reads them before it runs a command.
        os.environ.update(demo_environment(demo_directory()))
    execute_from_command_line(sys.argv)
