"""Logs on stderr: one JSON object a line, with the record's own fields. What repeats is not logged twice."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable

from decodepool_sizing.log_lines import JsonLines

QUIET = {"kopf": logging.WARNING, "kubernetes": logging.WARNING, "urllib3": logging.ERROR}
"""Libraries that tell more than anybody reads, and from which level on they are heard."""

RETRIES_SECONDS = 60.0


def configure_logging(level: str) -> None:
    """Send every log record of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Retries())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for name, lowest in QUIET.items():
        logging.getLogger(name).setLevel(lowest)
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)


class Retries(logging.Filter):
    """Lets one of kopf's failed tries through a minute: each of a dozen watches tells of each, so an API server that is
    away for a minute would be a hundred lines. A request's last try, which ends the process, is always told.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is worth a line."""
        if not (record.name.startswith("kopf.") and "will retry" in record.getMessage()):
            return True
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + RETRIES_SECONDS
        return due
