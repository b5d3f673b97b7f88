"""The end of a worker's process: at once, whatever its threads still do.

Python's own end waits for the threads of executors, and takes the interpreter from daemon threads, which kills the
process by a signal where one of them has native code below it (pydantic's, say). Nobody waits for their work any more.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Write what has been said, and end with `code`. Streams, connections and the engine must be closed before."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
