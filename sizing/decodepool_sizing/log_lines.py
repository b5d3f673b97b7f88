"""Log records as lines of JSON, and which requests are worth one: the same from workers, gateways and the operator, so
that one query finds all of them.
"""

from __future__ import annotations

import json
import logging
import time

QUIET = {
    "/healthz": {200},
    "/readyz": {200, 503},
    "/metrics": {200},
    "/v1/capacity": {200, 503},
    "/v1/live": {200, 401, 499},
}
"""Probes, scrapes, a gateway's polls and open pages come every second: these answers of theirs are not worth a line."""


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return what a record was given as `extra={"fields": {...}}`."""
    fields = getattr(record, "fields", {})
    return fields if isinstance(fields, dict) else {}


def worth_a_line(record: logging.LogRecord) -> bool:
    """Whether anybody would miss this record, by the route and status among its fields."""
    fields = fields_of(record)
    return fields.get("status") not in QUIET.get(str(fields.get("route")), ())
