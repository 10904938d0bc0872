"""The app that owns all persisted state."""

from typing import Any

from django.apps import AppConfig
from django.core.management import CommandError
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import pre_migrate

#: The newest migration among those that `0001_squashed_0041` stands for.
_LAST_REPLACED = ("jobs", "0041_job_attempts")


class JobsConfig(AppConfig):
    name = "jobs"

    def ready(self) -> None:
        # Binds @shared_task to our Celery application. Not in controlplane/__init__.py: the pure
        # core lives in that package and must not pull in Celery.
        import controlplane.celery  # noqa: F401

        pre_migrate.connect(older_database_refuse, sender=self)


def older_database_refuse(using: str, **_: Any) -> None:
    """CommandError for a database with a part of the replaced migrations, which Django skips."""
    applied = MigrationRecorder(connections[using]).applied_migrations()
    if _LAST_REPLACED not in applied and any(app == "jobs" for app, _name in applied):
        raise CommandError(
            f"This database is older than the migration {_LAST_REPLACED[1]}: bring it there with "
            "the last version that has that file, then install this one."
        )
