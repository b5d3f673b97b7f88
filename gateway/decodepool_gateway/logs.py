"""Logs on stderr: one JSON object a line, or plain lines for a person."""

from __future__ import annotations

import logging
import sys

from decodepool_sizing.log_lines import JsonLines, worth_a_line


def configure_logging(*, as_json: bool, level: int = logging.INFO) -> None:
    """Send every log record of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname).1s %(name)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    handler.addFilter(worth_a_line)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a traceback for each peer that speaks no HTTP
