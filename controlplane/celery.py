"""The Celery application and its beat schedule; imported by JobsConfig.ready() alone."""

from __future__ import annotations

import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from django.conf import settings


def _logging_configure(**_: Any) -> None:
    """Log as the settings say; with a receiver of its signal, Celery sets nothing up itself."""
    logging.config.dictConfig(settings.LOGGING)


if settings.LOG_FORMAT == "json":
    setup_logging.connect(_logging_configure)
app = Celery("controlplane")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
_PERIODS_S = {
    "allocate_cluster": settings.CYCLE_PERIOD_S,
    "expire_nodes": settings.EXPIRE_PERIOD_S,
    "fit_models": settings.CYCLE_PERIOD_S,
    "expire_generations": settings.CYCLE_PERIOD_S,
    "join_predictions": settings.CYCLE_PERIOD_S,
    "expire_validations": settings.CYCLE_PERIOD_S,
    "expire_records": 24 * 3600,
    "expire_files": 600,
    "answer_replay": settings.EXPIRE_PERIOD_S,
}
#: Tasks that take minutes have a queue and a worker of their own, so that no other task waits.
_QUEUES = {"answer_replay": "replays"}
app.conf.beat_schedule = {
    name: {
        "task": f"jobs.tasks.{name}",
        "schedule": period_s,
        # A worker that was away must not process a queue of old ticks.
        "options": {"expires": period_s, "queue": _QUEUES.get(name, "celery")},
    }
    for name, period_s in _PERIODS_S.items()
}
