"""Cutting a dump into ranges that independent readers can work through at once.

A range is a handful of *pieces*; a piece is one type's rows of one RocksDB database between two row keys. Pieces are
cut between user keys, so a key is always read by one reader, from its first part to its last. Cut points come from the
tables' own indexes (a key and a size for every data block), so planning reads no rows. Ranges are plain data: pickle
them to where the readers are.

`mode="type"`: pieces larger than an equal share are cut, and small ones of the same type are put together, so that
about `ranges` readers (at least one a type) have much the same to do. `mode="single"`: one range with everything, for
one reader.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tidelog.pikiwi.dump.layout import Layout
from tidelog.pikiwi.dump.layouts import layout_of
from tidelog.pikiwi.dump.model import BATCH_BYTES, BATCH_NUM, DATA_TYPES, DataType
from tidelog.pikiwi.dump.received import require_complete
from tidelog.pikiwi.dump.rocks import ORDERS, ColumnFamily, ColumnFamilyRows, Order, read_manifest
from tidelog.pikiwi.errors import ConfigError, DumpError

RANGES_MAX = 10_000
SAMPLES_PER_RANGE = 16  # candidates for a cut, so shares are even to about a sixteenth

ReaderMode = Literal["single", "type"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows from `lower` (inclusive) to `upper` (exclusive); None: no bound."""

    database: str
    family: str
    data_type: DataType
    lower: bytes | None
    upper: bytes | None
    size: int  # bytes of tables, roughly


@dataclass(frozen=True, slots=True)
class DumpRange:
    """Everything a reader needs."""

    folder: str
    layout: str
    pieces: tuple[Piece, ...]  # those of one database follow one another
    now_ms: int  # keys that expired before are left out
    prefixes: tuple[bytes, ...] = ()  # only keys that begin with one of them; none: all
    list_tail_n: int = 0  # only the last N elements of a list; 0: all
    batch_num: int = BATCH_NUM
    batch_bytes: int = BATCH_BYTES

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


def plan(
    folder: Path | str,
    *,
    now_ms: int,
    types: Iterable[str] = DATA_TYPES,
    prefixes: Iterable[bytes] = (),
    list_tail_n: int = 0,
    ranges: int = 1,
    mode: ReaderMode = "type",
    batch_num: int = BATCH_NUM,
    batch_bytes: int = BATCH_BYTES,
) -> list[DumpRange]:
    """Ranges that hold each wanted key of a dump exactly once."""
    wanted = _checked_types(types)
    _check_bounds(ranges=ranges, list_tail_n=list_tail_n, batch_num=batch_num, batch_bytes=batch_bytes)
    folder = Path(folder).absolute()
    require_complete(folder)
    layout = layout_of(folder)
    shortest = _shortest_prefixes(prefixes)
    sources = _sources(folder, layout, wanted)
    share = max(1, sum(source.family.size for source in sources) // ranges) if mode == "type" else None
    pieces = [piece for source in sources for piece in source.pieces(shortest, share)]
    if share is None:
        packed = [sorted(pieces, key=lambda piece: piece.database)] if pieces else []
    else:
        packed = _pack(pieces, share)
    return [
        DumpRange(str(folder), layout.name, tuple(some), now_ms, shortest, list_tail_n, batch_num, batch_bytes)
        for some in packed
    ]


@dataclass(frozen=True, slots=True)
class _Source:
    """One type's rows in one database."""

    folder: Path
    layout: Layout
    data_type: DataType
    family: ColumnFamily

    def pieces(self, prefixes: Sequence[bytes], share: int | None) -> list[Piece]:
        """The rows of keys with these prefixes (none: all), cut into pieces of about `share` bytes (None: not cut)."""
        spans = self._spans(prefixes)
        if share is None or self.family.size <= share:
            return [self._piece(lower, upper, self.family.size // len(spans)) for lower, upper in spans]
        order = ORDERS[self.family.comparator]
        samples = self._samples(order, max(1, share // SAMPLES_PER_RANGE))
        pieces: list[Piece] = []
        for lower, upper in spans:
            inside = [
                (key, size)
                for key, size in samples
                if (lower is None or order(key) > order(lower)) and (upper is None or order(key) < order(upper))
            ]
            pieces += self._cut(lower, upper, inside, share, order)
        return pieces

    def _spans(self, prefixes: Sequence[bytes]) -> list[tuple[bytes | None, bytes | None]]:
        """Where rows with the prefixes lie; everything when they do not lie together, and the reader sorts them out."""
        spans: list[tuple[bytes | None, bytes | None]] = []
        for prefix in prefixes:
            bounds = self.layout.prefix_bounds(self.data_type, prefix)
            if bounds is None:
                return [(None, None)]
            spans.append(bounds)
        return spans or [(None, None)]

    def _samples(self, order: Order, step: int) -> list[tuple[bytes, int]]:
        """Starts of user keys in order, each with the bytes between it and the one before."""
        boundaries = ColumnFamilyRows(self.folder, self.family).boundaries(step)
        found = [(self.layout.shared_prefix(self.data_type, key), size) for key, size in boundaries]
        return sorted(found, key=lambda sample: order(sample[0]))

    def _cut(
        self,
        lower: bytes | None,
        upper: bytes | None,
        samples: Sequence[tuple[bytes, int]],
        share: int,
        order: Order,
    ) -> list[Piece]:
        pieces: list[Piece] = []
        begin, size = lower, 0
        last: Any = None
        for key, weight in samples:
            size += weight
            if size >= share and order(key) != last:
                last = order(key)
                pieces.append(self._piece(begin, key, size))
                begin, size = key, 0
        pieces.append(self._piece(begin, upper, size))
        return pieces

    def _piece(self, lower: bytes | None, upper: bytes | None, size: int) -> Piece:
        return Piece(self.folder.name, self.family.name, self.data_type, lower, upper, size)


def _sources(folder: Path, layout: Layout, types: Sequence[DataType]) -> list[_Source]:
    manifests: dict[str, dict[str, ColumnFamily]] = {}
    sources: list[_Source] = []
    for data_type in types:
        for place in layout.places(folder, data_type):
            database = folder / place.database
            if place.database not in manifests:
                manifests[place.database] = read_manifest(database)
            family = manifests[place.database].get(place.family)
            if family is None:
                raise DumpError(f"{database} has no column family {place.family}; fetch the dump again")
            if family.comparator not in ORDERS:
                raise DumpError(f"{database}: {place.family} is sorted by {family.comparator}, which this reader lacks")
            sources.append(_Source(database, layout, data_type, family))
    return sources


def _pack(pieces: Sequence[Piece], share: int) -> list[list[Piece]]:
    """Pieces in order, neighbours of one type together while they stay within a share."""
    packed: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if packed and packed[-1][-1].data_type == piece.data_type and size + piece.size <= share:
            packed[-1].append(piece)
            size += piece.size
        else:
            packed.append([piece])
            size = piece.size
    return packed


def _checked_types(types: Iterable[str]) -> list[DataType]:
    wanted = set(types)
    if unknown := wanted - set(DATA_TYPES):
        raise ConfigError(f"{', '.join(sorted(unknown))}: no such type in a dump; there are {', '.join(DATA_TYPES)}")
    return [data_type for data_type in DATA_TYPES if data_type in wanted]


def _check_bounds(*, ranges: int, list_tail_n: int, batch_num: int, batch_bytes: int) -> None:
    if not 1 <= ranges <= RANGES_MAX:
        raise ConfigError(f"{ranges} ranges; give 1 to {RANGES_MAX:,}")
    if list_tail_n < 0 or batch_num < 1 or batch_bytes < 1:
        raise ConfigError(f"list_tail_n {list_tail_n} < 0, or batch_num {batch_num} or batch_bytes {batch_bytes} < 1")


def _shortest_prefixes(prefixes: Iterable[bytes]) -> tuple[bytes, ...]:
    """Without those that begin with another one; the empty prefix is every key, so it leaves none."""
    kept: list[bytes] = []
    for prefix in sorted(set(prefixes)):
        if not prefix:
            return ()
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    return tuple(kept)
