"""Read a model's header in place: `python -m decodepool_operator.reader PATH`, run by a pool's reader Job.

Prints the model's facts as one line of JSON and leaves them as the container's last words. Where there are none, one
line on stderr, `Reason: what is wrong`, and exit code 2.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.facts import MAX_JSON_BYTES, fault_reason, read_facts
from decodepool_sizing.readers import file_reader

LAST_WORDS = Path("/dev/termination-log")
BAD_INPUT = 2
TERMINATED = 128 + signal.SIGTERM


def main(arguments: list[str], last_words: Path = LAST_WORDS) -> int:
    """Read one file; return the exit code. SIGTERM ends it: process 1 of a pod gets none that it has no handler for."""
    signal.signal(signal.SIGTERM, _end)
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m decodepool_operator.reader PATH\n")
        return BAD_INPUT
    try:
        with file_reader(arguments[0]) as reader:
            text = read_facts(reader).to_json()
    except BadModelFile as error:
        line = f"{fault_reason(error)}: {error}"
        sys.stderr.write(line + "\n")
        _leave(last_words, line)
        return BAD_INPUT
    sys.stdout.write(text + "\n")
    _leave(last_words, text)
    return 0


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is the signal module's
    sys.exit(TERMINATED)


def _leave(last_words: Path, text: str) -> None:
    """Write where the kubelet looks for a container's last words; elsewhere there is no such file."""
    if last_words.exists():
        last_words.write_text(text[:MAX_JSON_BYTES], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
