"""Logs on stderr: a line for a person, or one JSON object a line."""

from __future__ import annotations

import logging
import sys

from decodepool_sizing.log_lines import JsonLines, fields_of, worth_a_line


def configure_logging(*, as_json: bool, level: int = logging.INFO) -> None:
    """Send every log record of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if as_json else Plain("%(asctime)s %(levelname).1s %(name)s %(message)s", "%H:%M:%S")
    )
    handler.addFilter(worth_a_line)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a traceback for each peer that speaks no HTTP


class Plain(logging.Formatter):
    """One line a record, its fields at the end."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {name: value for name, value in fields_of(record).items() if name == "seconds"}
        return super().format(record) + "".join(f" {name}={value}" for name, value in fields.items())
