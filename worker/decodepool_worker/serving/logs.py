"""The worker's logs on stderr: a line for a person, which tells how long a request took, or one JSON object a line."""

from __future__ import annotations

import logging

from decodepool_sizing.log_lines import JsonLines, fields_of
from decodepool_web.logs import PLAIN, log_to_stderr


def configure_logging(*, as_json: bool) -> None:
    """Send every log record of this process from INFO on to stderr."""
    log_to_stderr(JsonLines() if as_json else Plain(*PLAIN))


class Plain(logging.Formatter):
    """One line a record, its fields at the end."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {name: value for name, value in fields_of(record).items() if name == "seconds"}
        return super().format(record) + "".join(f" {name}={value}" for name, value in fields.items())
