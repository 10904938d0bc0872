"""The app that owns all persisted state."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"

    def ready(self) -> None:
        # Binds @shared_task to our Celery application. Not in controlplane/__init__.py: the pure
        # core lives in that package and must not pull in Celery.
        import controlplane.celery  # noqa: F401
