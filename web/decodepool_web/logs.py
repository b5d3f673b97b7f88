"""Logs on stderr: a line for a person, or one JSON object a line."""

from __future__ import annotations

import logging
import sys

from decodepool_sizing.log_lines import worth_a_line

PLAIN = ("%(asctime)s %(levelname).1s %(name)s %(message)s", "%H:%M:%S")
"""A line for a person, and its clock."""


def log_to_stderr(formatter: logging.Formatter) -> None:
    """Send every log record of this process from INFO on to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(worth_a_line)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a traceback for each peer that speaks no HTTP
