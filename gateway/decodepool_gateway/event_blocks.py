"""Whole server-sent events out of a stream's pieces.

A worker that dies may leave half an event behind. Its client must never take that half for an event, so the end of a
piece is held back until the blank line after it has come.
"""

from __future__ import annotations

END = b"\n\n"


class EventBlocks:
    """Pieces in, whole events out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """Return every event that is whole with this piece, in one; nothing if none is."""
        if not self._rest and piece.endswith(END):
            return piece
        data = self._rest + piece
        end = data.rfind(END) + len(END)
        if end < len(END):
            self._rest = data
            return b""
        self._rest = data[end:]
        return data[:end]
