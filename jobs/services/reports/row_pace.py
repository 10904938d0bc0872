"""Pace at which jobs add rows to their history: their code can write reports, too."""

from __future__ import annotations

import threading
import time

from controlplane.core.protocol.wire import REPORT_EVERY_S

#: Rows that a job may add at once, as after hours without a connection.
BURST_ROWS = 50_000
#: Rows a second: of steps twice what a trainer reports, of epochs what some small jobs have.
STEPS_A_SECOND = 2.0 / REPORT_EVERY_S
EPOCHS_A_SECOND = 20.0


class RowPace:
    """Rows that each job may add now, in this process; one that is forgotten has its burst again.

    Args:
        rows_a_second: how fast used rows become free.
    """

    def __init__(self, rows_a_second: float) -> None:
        self._rows_a_second = rows_a_second
        self._lock = threading.Lock()
        self._used: dict[int, tuple[float, float]] = {}  # by job: rows, and when that was, in s
        self._forgot_at = 0.0

    def take(self, job_id: int, num_rows: int, now_s: float | None = None) -> int:
        """Take up to `num_rows` rows for a job; return how many it got.

        Args:
            now_s: monotonic seconds.
        """
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            if now_s - self._forgot_at >= 60.0:
                self._forgot_at = now_s
                self._used = {id_: row for id_, row in self._used.items() if self._left(row, now_s)}
            used = self._left(self._used.get(job_id, (0.0, now_s)), now_s)
            taken = max(0, min(num_rows, int(BURST_ROWS - used)))
            self._used[job_id] = used + taken, now_s
        return taken

    def _left(self, row: tuple[float, float], now_s: float) -> float:
        """Return how many used rows are not free again."""
        used, at_s = row
        return max(0.0, used - (now_s - at_s) * self._rows_a_second)


steps_pace, epochs_pace = RowPace(STEPS_A_SECOND), RowPace(EPOCHS_A_SECOND)
