"""Connections to PostgreSQL that are asked now and then whether they are still there.

Django asks before the first query of every request, which is a third query where a request has two.
"""

from __future__ import annotations

import math
import time

from django.db.backends.postgresql import base

#: A connection that was found to be there so long ago is asked again. Requests that come between
#: the end of the server and the next check are answered with 503, each by a connection of its own.
CHECK_EVERY_S = 1.0


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection of one thread."""

    health_check_done: bool
    _checked_at = -math.inf

    def close_if_health_check_failed(self) -> None:
        """Close the connection if the server has ended it, unless that was checked just now.

        Once in a request at most, as Django does: the check is a query, which would begin another
        transaction at the end of one.
        """
        if self.health_check_done:
            return
        now = time.monotonic()
        if now - self._checked_at >= CHECK_EVERY_S:
            super().close_if_health_check_failed()
            self._checked_at = now
        self.health_check_done = True
