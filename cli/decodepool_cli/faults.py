"""How commands fail: one exception, and one place where what other rooms raise becomes a line and an exit code.

0 is done, 1 is failed, 2 is bad usage or bad input, 130 is interrupted.
"""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb

from decodepool_kernels.cuda.errors import GpuFault
from decodepool_sizing.errors import BadDemand, BadManifest, BadModelFile, CannotFit

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
INSTALL = (
    "`uv sync --inexact --extra worker` installs it in a checkout, `pip install 'WHEEL[worker]'` from a wheel's path"
)


class Fault(Exception):  # noqa: N818 - it says what happened: the command found a fault, its own or its input's
    """A command's failure: one line for stderr, and the exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def bad_input(message: str) -> Fault:
    """Return the fault of input that cannot be used."""
    return Fault(message, BAD_INPUT)


def translate(error: Exception) -> Fault:
    """Return the line and exit code of anything that a command let through."""
    match error:
        case Fault():
            return error
        case BadModelFile() | BadManifest() | BadDemand():
            return bad_input(str(error))
        case CannotFit() | GpuFault() | MemoryError():
            return Fault(f"{error}; {error.advice}" if isinstance(error, CannotFit) else str(error) or "out of memory")
        case ModuleNotFoundError(name=str(name)):
            return Fault(f"this needs the module {name}: {INSTALL}")
        case OSError():
            return Fault(f"{error.filename or 'system'}: {error.strerror or error}")
    return Fault(_internal(error))


def one_line(text: str) -> str:
    """Return a text as one line, for stderr; what were lines are parted by semicolons."""
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def _internal(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"internal error{place}: {type(error).__name__}: {error}; `decodepool --debug ...` shows where"
