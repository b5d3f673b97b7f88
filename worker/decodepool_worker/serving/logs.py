"""The worker's logs on stderr: lines for a person, or JSON objects."""

from __future__ import annotations

from decodepool_sizing.log_lines import JsonLines
from decodepool_web.logs import Plain, log_to_stderr


def configure_logging(*, as_json: bool) -> None:
    """Send every log record of this process from INFO on to stderr."""
    log_to_stderr(JsonLines() if as_json else Plain())
