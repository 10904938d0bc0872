"""Celery beat with a sign of life for health checks, on a clock that may be set."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from celery.beat import PersistentScheduler, ScheduleEntry

from jobs.nudges import queue_lengths

#: Tasks that wait in a queue, from which on no more are sent there: nobody takes them, and Redis
#: would run out of memory within days.
QUEUE_LIMIT = 1000

logger = logging.getLogger(__name__)


class TickingScheduler(PersistentScheduler):
    """Touches `<schedule file>.tick` at each tick; the schedule file itself is seldom written."""

    _is_failing = False

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send what is due; return the seconds until the next tick."""
        Path(f"{self.schedule_filename}.tick").touch()  # type: ignore[attr-defined]
        self._clock_follow()
        return float(super().tick(*arguments, **options))

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send a task that is due; an outage of the broker is logged once, and its end.

        Celery itself logs a traceback for each task, several a second.
        """
        queue = (entry.options or {}).get("queue", "")
        try:
            if queue_lengths().get(queue, 0) >= QUEUE_LIMIT:
                logger.info("%s is not sent: %d tasks wait in %s", entry.name, QUEUE_LIMIT, queue)
                return
            self.apply_async(entry, producer=producer, advance=False)
        except Exception as error:
            if not self._is_failing:
                logger.warning("nothing is sent until the broker is back: %s", error)
            self._is_failing = True
        else:
            if self._is_failing:
                logger.warning("tasks are sent again")
            self._is_failing = False
            logger.info("sent %s", entry.name)

    def _clock_follow(self) -> None:
        """Count from now what was sent later than now: the clock has been set back since.

        Beat would send nothing until that time, also when it is restarted.
        """
        entries: list[ScheduleEntry] = list(self.schedule.values())
        for entry in entries:
            now = entry.default_now()
            if entry.last_run_at is not None and entry.last_run_at > now:
                entry.last_run_at = now
                self._heap = None  # its times are of the former clock
