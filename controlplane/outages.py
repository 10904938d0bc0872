"""Log records of a database that cannot be reached: a line each, without a traceback."""

from __future__ import annotations

import logging

from django.db import InterfaceError, OperationalError

#: SQLSTATEs of a server that stops, crashed or starts; a connection that failed or broke has none.
_AWAY = frozenset({None, "57P01", "57P02", "57P03"})


def is_outage(error: BaseException | None) -> bool:
    """Return whether PostgreSQL cannot be reached, rather than refuses a statement."""
    return isinstance(error, OperationalError | InterfaceError) and (
        getattr(error.__cause__, "sqlstate", "") in _AWAY
    )


class OutageFilter(logging.Filter):
    """Replaces the traceback of an outage, which is the same for minutes, by its first line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten a record; keep each."""
        error = record.exc_info[1] if record.exc_info else None
        if is_outage(error):
            first_line = str(error).partition("\n")[0]
            message = record.getMessage().partition("\n")[0]
            is_told = first_line in message
            record.msg = message if is_told else f"{message}: {first_line}"
            record.args = record.exc_info = record.exc_text = None
        return True
