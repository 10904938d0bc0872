"""The Celery application and its beat schedule; imported by JobsConfig.ready() alone."""

from __future__ import annotations

import logging.config
import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import heartbeat_sent, setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# `manage.py prepare` runs the checks; here they would load every page and view.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

from django.conf import settings


def _logging_configure(**_: Any) -> None:
    """Log as the settings say; with a receiver of its signal, Celery sets nothing up itself."""
    logging.config.dictConfig(settings.LOGGING)


def worker_alive(**_: Any) -> None:
    """Touch the file of the health check, every two seconds while the worker reaches Redis."""
    Path(settings.WORKER_HEARTBEAT_FILE).touch()


if settings.LOG_FORMAT == "json":
    setup_logging.connect(_logging_configure)
if settings.WORKER_HEARTBEAT_FILE:
    heartbeat_sent.connect(worker_alive)
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
    "send_notifications": settings.CYCLE_PERIOD_S,
    "advance_forks": settings.EXPIRE_PERIOD_S,
    "advance_tuning": settings.EXPIRE_PERIOD_S,
    "expire_records": 3600,  # by the day, a beat that restarts each night would send it never
    "expire_files": 600,
    "file_logs": 60,
    "expire_readings": 600,
    "sum_usage_days": 60,
    "answer_replay": settings.EXPIRE_PERIOD_S,
}
#: Tasks that take minutes have a queue and a worker of their own, so that no other task waits.
_QUEUES = {"answer_replay": "replays", "join_predictions": "replays"}
app.conf.beat_scheduler = "controlplane.beat:TickingScheduler"
app.conf.beat_schedule = {
    name: {
        "task": f"jobs.tasks.{name}",
        "schedule": period_s,
        # A worker that was away must not process a queue of old ticks.
        "options": {"expires": period_s, "queue": _QUEUES.get(name, "celery")},
    }
    for name, period_s in _PERIODS_S.items()
}
