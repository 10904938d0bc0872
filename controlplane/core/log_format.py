"""Log lines as JSON objects, one a line, of site, workers and agents alike."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping

#: Values of VIRTUALFLOW_LOG_FORMAT.
LOG_FORMATS = ("text", "json")
#: Attributes of a record, given as `extra`, that its line has as fields.
FIELDS = ("node", "job", "generation", "slot", "event")
#: Logger of the web server, whose arguments are a mapping, and its fields.
ACCESS = "granian.access"
_ACCESS_FIELDS = {"addr": "address", "method": "method", "path": "path", "status": "status"}


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object.

    Args:
        node: name of the node, for an agent's lines.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = {"node": node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without line breaks."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._node,
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.name == ACCESS and isinstance(record.args, Mapping):
            line |= {name: record.args.get(key) for key, name in _ACCESS_FIELDS.items()}
            line["milliseconds"] = record.args.get("dt_ms")
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
