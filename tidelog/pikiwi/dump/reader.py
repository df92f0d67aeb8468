"""From a range of a dump to its keys: `read_keys` gives typed elements in bounded parts, `read_range` their commands.

Elements are read by going through their rows once, in order. When a row begins a new user key its meta row is asked for
(one lookup a collection), and says whether the rows that follow are alive: right type, right version, not empty, not
expired. A row of another version is skipped. Strings and collections that do not exist any more cost their rows only.

Memory: one part (`batch_num` elements, about `batch_bytes`), whatever the size of a collection or the dump. Cost: one
to three microseconds an element.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tidelog.pikiwi.dump.commands import commands_of
from tidelog.pikiwi.dump.layout import INTERNAL_PREFIXES, Layout, Meta
from tidelog.pikiwi.dump.layouts import layout_named
from tidelog.pikiwi.dump.model import DataType, DumpKey, SnapshotCommand
from tidelog.pikiwi.dump.open import Database
from tidelog.pikiwi.dump.plan import DumpRange, Piece
from tidelog.pikiwi.errors import DumpError


def read_range(dump_range: DumpRange) -> Iterator[SnapshotCommand]:
    """The commands that build every living key of a range, key by key, batch numbers rising from 0 within a key."""
    return commands_of(read_keys(dump_range))


def read_keys(dump_range: DumpRange) -> Iterator[DumpKey]:
    """Every living key of a range, in parts. Reading the same range again gives the same parts."""
    layout = layout_named(dump_range.layout)
    for name, pieces in groupby(dump_range.pieces, key=lambda piece: piece.database):
        with Database(Path(dump_range.folder) / name) as database:
            for piece in pieces:
                reader = _PieceReader(dump_range, layout, database, piece)
                yield from reader.strings() if piece.data_type == "string" else reader.collections()


@dataclass(slots=True)
class _PieceReader:
    range: DumpRange
    layout: Layout
    database: Database
    piece: Piece

    def strings(self) -> Iterator[DumpKey]:
        decode, expired, now_ms, prefixes = (
            self.layout.string,
            self.layout.expired,
            self.range.now_ms,
            self.range.prefixes,
        )
        row = b""
        try:
            for row, content in self._rows():
                key, value, expire_ms, hyperloglog = decode(row, content)
                if value is None or key.startswith(INTERNAL_PREFIXES) or (prefixes and not key.startswith(prefixes)):
                    continue
                if expire_ms and expired(expire_ms, now_ms):
                    continue
                yield DumpKey("string", key, expire_ms, [value], 0, True, None, hyperloglog)
        except (ValueError, struct.error) as error:
            raise self._undecodable(row, error) from error

    def collections(self) -> Iterator[DumpKey]:
        layout = self.layout
        batch_num, batch_bytes = self.range.batch_num, self.range.batch_bytes
        decode = layout.decoder(self.piece.data_type)
        prefix = b""  # user key and version of the rows at hand
        end = 0
        key: bytes | None = None
        meta: Meta | None = None
        is_list = self.piece.data_type == "list"
        left = right = 0  # of a list: its indexes are between them
        alive = False
        elements: list[Any] = []
        held = part = 0
        row = b""
        try:
            for row, content in self._rows():
                if not (prefix and row.startswith(prefix)):
                    if elements:
                        yield self._part(key, meta, elements, part, last=True)
                        elements = []
                    held = part = 0
                    row_key, version, end = layout.collection(row)
                    prefix = row[:end]
                    if row_key != key:
                        key, meta = row_key, self._meta(row_key)
                    alive = meta is not None and meta.version == version
                    if is_list and meta is not None:
                        left, right = self._indexes(meta)
                if not alive:
                    continue
                element = decode(row, content, end)
                if is_list:
                    index, element = element
                    if not left < index < right:
                        continue
                if len(elements) >= batch_num or held >= batch_bytes:
                    yield self._part(key, meta, elements, part, last=False)
                    elements = []
                    held = 0
                    part += 1
                elements.append(element)
                held += len(row) + len(content)
        except (ValueError, struct.error) as error:
            raise self._undecodable(row, error) from error
        if elements:
            yield self._part(key, meta, elements, part, last=True)

    def _rows(self) -> Iterator[tuple[bytes, bytes]]:
        return self.database.scan(self.piece.family, self.piece.lower, self.piece.upper)

    def _wanted(self, key: bytes) -> bool:
        if key.startswith(INTERNAL_PREFIXES):
            return False
        return not self.range.prefixes or key.startswith(self.range.prefixes)

    def _meta(self, key: bytes) -> Meta | None:
        """A key's meta row when the key is wanted, of this type, not empty and not expired."""
        if not self._wanted(key):
            return None
        wanted = self.layout.meta_key(key)
        content = self.database.get(wanted)
        if content is None and b"\0" in key:
            content = self.database.first(wanted)  # 4.0.1 leaves more bytes behind keys with a NUL
        meta = self.layout.meta(self.piece.data_type, content) if content is not None else None
        if meta is None or meta.count <= 0 or self.layout.expired(meta.expire_ms, self.range.now_ms):
            return None
        return meta

    def _indexes(self, meta: Meta) -> tuple[int, int]:
        """What the indexes of a list's wanted elements lie between."""
        tail = self.range.list_tail_n
        return max(meta.left, meta.right - 1 - tail) if tail else meta.left, meta.right

    def _part(self, key: bytes | None, meta: Meta | None, elements: list[Any], part: int, last: bool) -> DumpKey:
        assert key is not None
        assert meta is not None
        data_type: DataType = self.piece.data_type
        return DumpKey(data_type, key, meta.expire_ms, elements, part, last, meta.stream)

    def _undecodable(self, row: bytes, error: Exception) -> DumpError:
        where = f"{self.database.folder} ({self.piece.family})"
        return DumpError(f"{where}: row {row!r} of a {self.piece.data_type} cannot be decoded: {error}")
