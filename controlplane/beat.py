"""Celery beat with a sign of life for health checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery.beat import PersistentScheduler


class TickingScheduler(PersistentScheduler):
    """Touches `<schedule file>.tick` at each tick; the schedule file itself is seldom written."""

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send what is due; return the seconds until the next tick."""
        Path(f"{self.schedule_filename}.tick").touch()  # type: ignore[attr-defined]
        return float(super().tick(*arguments, **options))
