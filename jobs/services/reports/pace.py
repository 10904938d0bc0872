"""Time between a trainer's reports of steps, longer the more jobs report to one process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable

from controlplane.core.protocol.wire import REPORT_EVERY_S

#: Most reports of steps a second: two thirds of what a process can take (docs/benchmarks.md).
REPORTS_A_SECOND = 100
LONGEST_S = 8.0
#: Several heartbeats: after so many seconds a job that is not heard of no longer counts.
_HEARD_S = 10.0


class ReportPace:
    """Counts the jobs that this process hears of; a lost count only makes reports frequent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_at: dict[int, float] = {}
        self._counted_at = 0.0

    def every_s(self, job_ids: Iterable[int], now_s: float | None = None) -> float:
        """Return how many seconds a trainer should leave between two reports of steps.

        It is doubled with the number of jobs, so that agents are seldom told another one.

        Args:
            job_ids: jobs with trainers on the node that is heard of.
            now_s: monotonic seconds.
        """
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            self._heard_at.update(dict.fromkeys(job_ids, now_s))
            if now_s - self._counted_at >= 1.0:
                since_s, self._counted_at = now_s - _HEARD_S, now_s
                self._heard_at = {id_: at for id_, at in self._heard_at.items() if at > since_s}
            num_jobs = len(self._heard_at)
        times = num_jobs / REPORTS_A_SECOND / REPORT_EVERY_S
        doubled = 2.0 ** math.ceil(math.log2(max(times, 1.0)))
        return min(REPORT_EVERY_S * doubled, LONGEST_S)
