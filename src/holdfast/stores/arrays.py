"""Lists as parameters of PostgreSQL, in its binary form. The driver's own way asks each element for its type, which
costs several times what the rest of a commit does."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, ClassVar

from psycopg import Connection, DataError
from psycopg.adapt import Dumper
from psycopg.pq import Format

_length = struct.Struct("!i").pack
_number = struct.Struct("!iq").pack
_head = struct.Struct("!5i").pack
_NULL = _length(-1)


class Numbers(list[Any]):
    """bigint[]"""


class Texts(list[Any]):
    """text[]"""


class Blobs(list[Any]):
    """bytea[]"""


def array(values: Iterable[Any]) -> Numbers | Texts:
    """A list of numbers or of texts, whichever they are."""
    found = list(values)
    return Numbers(found) if found and isinstance(found[0], int) else Texts(found)


class _ArrayDumper(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def dump(self, values: Any) -> bytes:
        pack = self.pack
        parts = [_NULL if value is None else pack(value) for value in values]
        return _head(1, 1, self.element, len(parts), 1) + b"".join(parts)

    @staticmethod
    def pack(value: Any) -> bytes:
        raise NotImplementedError


class _NumbersDumper(_ArrayDumper):
    element, oid = 20, 1016

    @staticmethod
    def pack(value: int) -> bytes:
        try:
            return _number(8, value)
        except struct.error as error:
            raise DataError(f"{value!r} is no number of 64 bits") from error


class _TextsDumper(_ArrayDumper):
    element, oid = 25, 1009

    @staticmethod
    def pack(value: str) -> bytes:
        encoded = value.encode()
        if b"\0" in encoded:
            raise DataError(f"{value!r} contains a NUL character, which PostgreSQL can't keep in a text")
        return _length(len(encoded)) + encoded


class _BlobsDumper(_ArrayDumper):
    element, oid = 17, 1001

    @staticmethod
    def pack(value: bytes) -> bytes:
        return _length(len(value)) + value


def adapt(connection: Connection[Any]) -> None:
    """Teach a connection these lists."""
    connection.adapters.register_dumper(Numbers, _NumbersDumper)
    connection.adapters.register_dumper(Texts, _TextsDumper)
    connection.adapters.register_dumper(Blobs, _BlobsDumper)
