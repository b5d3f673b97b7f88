"""The key-value part of a header."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from decodepool_sizing import limits
from decodepool_sizing.cursor import Cursor
from decodepool_sizing.errors import BadModelFile, shown

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = "Scalar | tuple[Value, ...]"


class ValueType(IntEnum):
    """How a metadata value is stored."""

    U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


_FORMATS = {
    ValueType.U8: "B",
    ValueType.I8: "b",
    ValueType.U16: "H",
    ValueType.I16: "h",
    ValueType.U32: "I",
    ValueType.I32: "i",
    ValueType.F32: "f",
    ValueType.BOOL: "B",
    ValueType.U64: "Q",
    ValueType.I64: "q",
    ValueType.F64: "d",
}
_STRING_BYTES = 8
_ARRAY_BYTES = 12
_ENTRY_BYTES = 8 + 1 + 4 + 1
"""The smallest entry: a key of one letter, a type, one byte."""


def read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    """Read `count` entries. BadModelFile names the key at fault; a key that comes twice is a fault."""
    if count > limits.METADATA_KEYS or count * _ENTRY_BYTES > cursor.remaining_bytes:
        raise BadModelFile(
            f"metadata count: {count} entries, more than the file can hold or than {limits.METADATA_KEYS}"
        )
    metadata: dict[str, Value] = {}
    for index in range(count):
        key = cursor.string(f"key {index}", limits.KEY_BYTES)
        if not key or not key.isprintable():
            raise BadModelFile(f"key {index}: '{shown(key)}' is empty or has unprintable characters")
        if key in metadata:
            raise BadModelFile(f"{shown(key)}: this key comes twice")
        metadata[key] = _read_value(cursor, _value_type(cursor, key), shown(key), 0)
    return metadata


def _value_type(cursor: Cursor, what: str) -> ValueType:
    number = cursor.u32(what)
    try:
        return ValueType(number)
    except ValueError:
        raise BadModelFile(f"{shown(what)}: value type {number} does not exist") from None


def _read_value(cursor: Cursor, kind: ValueType, what: str, depth: int) -> Value:
    if kind is ValueType.STRING:
        return cursor.string(what)
    if kind is ValueType.ARRAY:
        return _read_array(cursor, what, depth + 1)
    return _read_numbers(cursor, kind, 1, what)[0]


def _read_array(cursor: Cursor, what: str, depth: int) -> tuple[Value, ...]:
    if depth > limits.ARRAY_DEPTH:
        raise BadModelFile(f"{what}: arrays nested more than {limits.ARRAY_DEPTH} deep")
    kind, count = _value_type(cursor, what), cursor.u64(what)
    cursor.check_room(count * _smallest_bytes(kind), what)
    cursor.items_left -= count
    if cursor.items_left < 0:
        raise BadModelFile(
            f"{what}: with this array of {count} the file's arrays hold more than {limits.ARRAY_ITEMS} items"
        )
    return _array_reader(kind, depth)(cursor, count, what)


def _array_reader(kind: ValueType, depth: int) -> Callable[[Cursor, int, str], tuple[Value, ...]]:
    if kind is ValueType.STRING:
        return lambda cursor, count, what: tuple(cursor.strings(count, what))
    if kind is ValueType.ARRAY:
        return lambda cursor, count, what: tuple(_read_array(cursor, what, depth + 1) for _ in range(count))
    return lambda cursor, count, what: _read_numbers(cursor, kind, count, what)


def _read_numbers(cursor: Cursor, kind: ValueType, count: int, what: str) -> tuple[bool | int | float, ...]:
    layout = struct.Struct(f"<{count}{_FORMATS[kind]}")
    numbers = layout.unpack(cursor.take(layout.size, what))
    if kind is not ValueType.BOOL:
        return numbers
    if not set(numbers) <= {0, 1}:
        raise BadModelFile(f"{what}: a boolean that is neither 0 nor 1")
    return tuple(number == 1 for number in numbers)


def _smallest_bytes(kind: ValueType) -> int:
    if kind in _FORMATS:
        return struct.calcsize(f"<{_FORMATS[kind]}")
    return _STRING_BYTES if kind is ValueType.STRING else _ARRAY_BYTES
