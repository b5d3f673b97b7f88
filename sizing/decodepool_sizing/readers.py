"""Where model bytes come from: files here, URLs in `ranged_http` over `http_connections`. With `host`, the only modules
of this room that touch the world.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from decodepool_sizing.cursor import Reader
from decodepool_sizing.errors import BadModelFile


class FileReader:
    """Reads an open file at absolute offsets. Made by `file_reader`."""

    def __init__(self, descriptor: int, file_bytes: int) -> None:
        self._descriptor = descriptor
        self.file_bytes = file_bytes

    def __call__(self, offset: int, length: int) -> bytes:
        """Return the bytes `[offset, offset + length)`; fewer only at the end of the file."""
        parts, missing = [], length
        while missing:
            part = self._read(offset + length - missing, missing)
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, offset: int, length: int) -> bytes:
        """Return some bytes at an offset: Linux gives at most 2 GiB less a page at once."""
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise BadModelFile(f"offset {offset}: {_reason(error)}") from None


@contextmanager
def file_reader(path: str | Path) -> Iterator[FileReader]:
    """Open a model file for the time of a `with`. BadModelFile where there is none, or it is not a readable plain
    file.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - before opening, since opening a pipe would wait for its writer
        if stat.S_ISDIR(status.st_mode):
            raise BadModelFile("this is a directory, not a model file")
        if not stat.S_ISREG(status.st_mode):
            raise BadModelFile("this is a device or a pipe, not a model file")
        descriptor = os.open(path, os.O_RDONLY)
    except (OSError, ValueError) as error:
        if isinstance(error, BadModelFile):
            raise
        raise BadModelFile(_reason(error)) from None
    try:
        yield FileReader(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


@contextmanager
def model_reader(
    source: str | Path,
    headers: Mapping[str, str] | None = None,
    *,
    total_seconds: float | None = None,
    local_addresses: bool = True,
) -> Iterator[Reader]:
    """Open a path or an `http(s)://` URL; `headers` go with the requests to a URL's own host. The rest is what reading
    from a URL is held to, as in `HttpReader`.
    """
    if not is_url(source):
        with file_reader(source) as reader:
            yield reader
        return
    from decodepool_sizing.ranged_http import HttpReader  # noqa: PLC0415 - urllib costs more to import than a header to read

    yield HttpReader(str(source), headers, total_seconds=total_seconds, local_addresses=local_addresses)


def is_url(source: str | Path) -> bool:
    """Say whether a source is fetched rather than opened."""
    return str(source).startswith(("http://", "https://"))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error)
