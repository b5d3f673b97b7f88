"""A cursor over the bytes of a header: it only moves forward, and never takes what the file does not hold."""

from __future__ import annotations

import struct
from typing import Protocol

from decodepool_sizing import limits
from decodepool_sizing.errors import BadModelFile

FIRST_CHUNK_BYTES = 256 << 10
LARGEST_CHUNK_BYTES = 8 << 20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Reader(Protocol):
    """Where a model's bytes come from: a file, a URL, a test's own bytes."""

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""

    def __call__(self, offset: int, length: int) -> bytes:
        """Return the bytes `[offset, offset + length)`; fewer only at the end of the file."""


class Cursor:
    """Takes numbers and strings off the front of a header, fetching in chunks that double, so that a URL costs few
    requests.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self._buffer = b""
        self._index = 0
        self._buffer_offset = 0
        self.items_left = limits.ARRAY_ITEMS

    @property
    def offset(self) -> int:
        """Absolute offset of the next byte."""
        return self._buffer_offset + self._index

    @property
    def remaining_bytes(self) -> int:
        """Bytes of the file after the cursor."""
        return self._reader.file_bytes - self.offset

    def take(self, length: int, what: str) -> bytes:
        """Return the next `length` bytes; BadModelFile names `what` was being read where the file is too short for
        it.
        """
        if self._index + length > len(self._buffer):
            self._fetch(length, what)
        begin = self._index
        self._index += length
        return self._buffer[begin : self._index]

    def u32(self, what: str) -> int:
        """Return the next four bytes as an unsigned integer."""
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """Return the next eight bytes as an unsigned integer."""
        return int(_U64.unpack(self.take(8, what))[0])

    def string(self, what: str, limit_bytes: int = limits.HEADER_BYTES) -> str:
        """Return a string: eight bytes of length, then UTF-8."""
        length = self.u64(what)
        self.check_room(length, what)
        if length > limit_bytes:
            raise BadModelFile(f"{what}: a string of {length} bytes, more than the {limit_bytes} allowed")
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise BadModelFile(f"{what}: not UTF-8 at offset {self.offset - length + error.start}") from None

    def strings(self, count: int, what: str) -> list[str]:
        """Return `count` strings. A vocabulary is most of a header, so whole chunks are split at once."""
        found: list[str] = []
        while len(found) < count:
            self._split_buffered(found, count, what)
            if len(found) < count:
                found.append(self.string(f"{what}[{len(found)}]"))
        return found

    def check_room(self, length: int, what: str) -> None:
        """Refuse a claim of more bytes than the file has left."""
        if length > self.remaining_bytes:
            claim = (
                f"{what}: needs {length} bytes at offset {self.offset}, but the file ends at {self._reader.file_bytes}"
            )
            raise BadModelFile(claim)

    def _split_buffered(self, found: list[str], count: int, what: str) -> None:
        """Append the strings that lie whole in the buffer. Written for speed: a vocabulary passes through here, twice
        with merges.
        """
        buffer, index, end = self._buffer, self._index, len(self._buffer)
        unpack, add = _U64.unpack_from, found.append
        try:
            for _ in range(count - len(found)):
                begin = index + 8
                if begin > end:
                    break
                (length,) = unpack(buffer, index)
                if begin + length > end:
                    break
                add(buffer[begin : begin + length].decode())
                index = begin + length
        except UnicodeDecodeError:
            raise BadModelFile(f"{what}[{len(found)}]: not UTF-8 at offset {self._buffer_offset + index + 8}") from None
        self._index = index

    def _fetch(self, length: int, what: str) -> None:
        self.check_room(length, what)
        if self.offset + length > limits.HEADER_BYTES:
            raise BadModelFile(f"{what}: the header goes on past {limits.HEADER_BYTES} bytes, more than is ever read")
        tail = self._buffer[self._index :]
        wanted = max(length, self._chunk_bytes) - len(tail)
        offset = self.offset
        fresh = self._reader(offset + len(tail), min(wanted, self.remaining_bytes - len(tail)))
        self._buffer, self._index, self._buffer_offset = tail + fresh, 0, offset
        self._chunk_bytes = min(2 * self._chunk_bytes, LARGEST_CHUNK_BYTES)
        if len(self._buffer) < length:
            raise BadModelFile(f"{what}: the file ended at offset {offset + len(self._buffer)} while it was being read")
