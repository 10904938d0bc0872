"""Celery beat with a sign of life for health checks, on a clock that may be set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery.beat import PersistentScheduler, ScheduleEntry


class TickingScheduler(PersistentScheduler):
    """Touches `<schedule file>.tick` at each tick; the schedule file itself is seldom written."""

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send what is due; return the seconds until the next tick."""
        Path(f"{self.schedule_filename}.tick").touch()  # type: ignore[attr-defined]
        self._clock_follow()
        return float(super().tick(*arguments, **options))

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
