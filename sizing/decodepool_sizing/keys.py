"""Reading an architecture's numbers out of metadata: typed, bounded, and with the key named in every fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from decodepool_sizing import limits
from decodepool_sizing.errors import BadModelFile, shown
from decodepool_sizing.metadata import Value


@dataclass(frozen=True, slots=True)
class Keys:
    """The metadata of one file under its architecture's prefix. A default of None means that the key must be there."""

    metadata: Mapping[str, Value]
    architecture: str

    def has(self, key: str) -> bool:
        """Say whether the file has this key."""
        return self._full(key) in self.metadata

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = limits.WIDTH) -> int:
        """Return an integer in `[least, most]`."""
        return self._integer(key, self._value(key, default), least, most)

    def counts(
        self, key: str, layers: int, default: int | None = None, *, least: int = 1, most: int = limits.WIDTH
    ) -> tuple[int, ...]:
        """Return an integer a layer, from a list with one for each layer (or for more: trailing prediction blocks) or
        from a single one.
        """
        value = self._value(key, default)
        if isinstance(value, tuple):
            return tuple(self._integer(key, item, least, most) for item in self._for_layers(key, value, layers))
        return (self._integer(key, value, least, most),) * layers

    def real(self, key: str, default: float | None = None, *, least: float = 0.0, most: float = 1e12) -> float:
        """Return a finite number in `(least, most]`; `least` itself is out."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadModelFile(f"{self._full(key)}: {_shown_value(value)} is not a number")
        if not isfinite(value) or not least < value <= most:
            raise BadModelFile(f"{self._full(key)}: {value} is not in the range ({least:g}, {most:g}]")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise BadModelFile(f"{self._full(key)}: {_shown_value(value)} is not a boolean")
        return value

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Return a boolean a layer; None where the key is missing or holds a single number."""
        value = self.metadata.get(self._full(key))
        if not isinstance(value, tuple):
            return None
        items = self._for_layers(key, value, layers)
        if not all(isinstance(item, int) and item in (0, 1) for item in items):
            raise BadModelFile(f"{self._full(key)}: not a list of booleans")
        return tuple(bool(item) for item in items)

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise BadModelFile(f"{self._full(key)}: {_shown_value(value)} is not a string")
        return value

    def fault(self, key: str, reason: str) -> BadModelFile:
        """Return the error that says what is wrong with a key."""
        return BadModelFile(f"{self._full(key)}: {reason}")

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _value(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(self._full(key), default)
        if value is None:
            raise BadModelFile(f"{self._full(key)}: missing")
        return value

    def _integer(self, key: str, value: Value, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadModelFile(f"{self._full(key)}: {_shown_value(value)} is not an integer")
        if not least <= value <= most:
            raise BadModelFile(f"{self._full(key)}: {value} is not in the range {least} to {most}")
        return value

    def _for_layers(self, key: str, value: tuple[Value, ...], layers: int) -> tuple[Value, ...]:
        if len(value) < layers:
            raise BadModelFile(f"{self._full(key)}: {len(value)} values for {layers} layers")
        return value[:layers]


def _shown_value(value: Value) -> str:
    return shown(repr(value) if not isinstance(value, tuple) else f"a list of {len(value)}")
