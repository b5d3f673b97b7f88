"""Logs on stderr: one JSON object a line, or plain lines for a person."""

from __future__ import annotations

import json
import logging
import sys
import time

QUIET = {"/healthz": {200}, "/readyz": {200, 503}, "/metrics": {200}, "/v1/live": {200}}
"""Probes and scrapes come every second: these answers of theirs are not worth a line."""


def configure_logging(*, as_json: bool, level: int = logging.INFO) -> None:
    """Send every log record of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname).1s %(name)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    handler.addFilter(worth_a_line)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a traceback for each peer that speaks no HTTP


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def worth_a_line(record: logging.LogRecord) -> bool:
    """Whether anybody would miss this record."""
    fields = getattr(record, "fields", {})
    return fields.get("status") not in QUIET.get(str(fields.get("route")), ())
