"""Logs on stderr: a line for a person, or one JSON object a line."""

from __future__ import annotations

import logging
import sys

from decodepool_sizing.log_lines import fields_of, worth_a_line

SHOWN_FIELDS = ("seconds", "code", "param")


class Plain(logging.Formatter):
    """One line a record for a person: how long a request took and why it was refused, at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = fields_of(record)
        return super().format(record) + "".join(f" {name}={fields[name]}" for name in SHOWN_FIELDS if name in fields)


def log_to_stderr(formatter: logging.Formatter) -> None:
    """Send every log record of this process from INFO on to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(worth_a_line)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a traceback for each peer that speaks no HTTP
