"""Reading dumps: commands out of every type, per core, against RocksDB's own iterator over the same rows.

The floor is what any reader in Python has to pay: an iterator that gives each row of the type's column family as two
byte strings. Times are CPU seconds of this process, so that a busy machine gives much the same figures.
"""

import time
from collections.abc import Callable
from pathlib import Path

from bench.rounds import Comparison, Line, compare
from bench.scratch import scratch
from tests.pikiwi.dump_writer import FloydWriter
from tidelog.pikiwi.dump import DATA_TYPES, DataType, DumpRange, plan, read_range
from tidelog.pikiwi.dump.open import Database

ELEMENTS = 100_000
PER_KEY = 1000  # elements of a large collection
PER_SMALL_KEY = 5
ROUNDS = 3
TARGET = 150_000  # elements a second and core


def pikiwi_dump() -> list[Line]:
    with scratch() as folder:
        _write(Path(folder))
        large = [_line(Path(folder), data_type, b"large:") for data_type in DATA_TYPES]
        return [*large, _line(Path(folder), "hash", b"small:")]


def _write(folder: Path) -> None:
    writer = FloydWriter(folder)
    for number in range(ELEMENTS):
        writer.string(b"large:string:%06d" % number, b"value of %d" % number)
    for number in range(ELEMENTS // PER_KEY):
        name = b"large:%%s:%06d" % number
        numbers = range(PER_KEY)
        writer.hash(name % b"hash", {b"field:%06d" % each: b"value of %d" % each for each in numbers})
        writer.set(name % b"set", [b"member:%06d" % each for each in numbers])
        writer.zset(name % b"zset", {b"member:%06d" % each: each / 7 for each in numbers})
        writer.list(name % b"list", [b"value of %d" % each for each in numbers])
        writer.stream(
            name % b"stream", [(each, 0, (b"field", b"value of %d" % each)) for each in range(1, PER_KEY + 1)]
        )
    for number in range(ELEMENTS // PER_SMALL_KEY):
        writer.hash(b"small:hash:%06d" % number, {b"field:%d" % each: b"v" for each in range(PER_SMALL_KEY)})
    writer.close()


def _line(folder: Path, data_type: DataType, prefix: bytes) -> Line:
    ranges = plan(folder, now_ms=1, types=[data_type], prefixes=[prefix])
    assert sum(map(_elements, ranges)) == ELEMENTS
    comparison = compare(lambda: _cpu(ranges, _drain), lambda: _cpu(ranges, _rows), ROUNDS)
    rate = ELEMENTS / min(comparison.ours)
    return Line(
        f"dump to commands, {data_type}, {prefix.decode()[:-1]} keys",
        f"{rate:,.0f}/s",
        f"≥ {TARGET:,} elements/s a core",
        rate >= TARGET,
        _note(comparison),
        {"cpu_s": comparison.ours, "floor_cpu_s": comparison.floor, "elements": ELEMENTS},
    )


def _note(comparison: Comparison) -> str:
    return f"{comparison.ratio:.2f} of the bare iterator's speed"


def _cpu(ranges: list[DumpRange], read: Callable[[DumpRange], object]) -> float:
    begun = time.process_time()
    for each in ranges:
        read(each)
    return time.process_time() - begun


def _drain(dump_range: DumpRange) -> None:
    for _ in read_range(dump_range):
        pass


def _rows(dump_range: DumpRange) -> None:
    for piece in dump_range.pieces:
        with Database(Path(dump_range.folder) / piece.database) as database:
            for _ in database.scan(piece.family, piece.lower, piece.upper):
                pass


def _elements(dump_range: DumpRange) -> int:
    """Counted from the commands, which also shows that the dump is what it should be."""
    per_element = {"string": 1, "hash": 2, "set": 1, "list": 1, "zset": 2}
    return sum(
        1 if command.data_type == "stream" else (len(command.args) - 2) // per_element[command.data_type]
        for command in read_range(dump_range)
    )
