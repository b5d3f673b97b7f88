"""Typed access to GGUF metadata: every value is checked on the way out, and a wrong one is named by its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from decodepool_worker.text.errors import BadTokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metadata:
    """A GGUF header's keys and values. Every method gives None for an absent key, BadTokenizer for a wrong type."""

    values: Mapping[str, object]

    def text(self, key: str) -> str | None:
        """Return a string value."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise BadTokenizer(f"{key}: expected a string, found {_kind(value)}")
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean value."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadTokenizer(f"{key}: expected a boolean, found {_kind(value)}")
        return value

    def token_id(self, key: str, vocabulary_size: int) -> int | None:
        """Return a token id below `vocabulary_size`."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadTokenizer(f"{key}: expected a token id, found {_kind(value)}")
        if not 0 <= value < vocabulary_size:
            raise BadTokenizer(f"{key}: {value} is outside the vocabulary of {vocabulary_size} tokens")
        return value

    def texts(self, key: str) -> list[str] | None:
        """Return an array of strings."""
        return self._array(key, (str,), "strings")

    def integers(self, key: str) -> list[int] | None:
        """Return an array of integers."""
        return self._array(key, (int,), "integers")

    def numbers(self, key: str) -> list[float] | None:
        """Return an array of numbers."""
        return self._array(key, (float, int), "numbers")

    def _array(self, key: str, types: tuple[type[T], ...], plural: str) -> list[T] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise BadTokenizer(f"{key}: expected an array of {plural}, found {_kind(value)}")
        items = list(value)
        for index, item in enumerate(items):
            if not isinstance(item, types) or isinstance(item, bool):
                raise BadTokenizer(f"{key}[{index}]: expected {plural}, found {_kind(item)}")
        return items


def _kind(value: object) -> str:
    return type(value).__name__
