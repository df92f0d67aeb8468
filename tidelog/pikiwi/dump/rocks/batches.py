"""What a log holds: write batches, of which the rows of one column family are taken.

A batch is `sequence number u64 | count u32` and its writes, each of which takes the next sequence number. A log's
writes count for a column family only if the log is not older than the family's own mark in the MANIFEST; others are in
tables.

Memory: the rows of the wanted range, held sorted, as RocksDB itself holds them; at most `LOG_BYTES_MAX` of logs. A
checkpoint of PikiwiDB flushes first, so its logs are nearly always empty.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from tidelog.pikiwi.dump.rocks.coding import Malformed, sized, varint
from tidelog.pikiwi.dump.rocks.manifest import ColumnFamily
from tidelog.pikiwi.dump.rocks.records import read_records
from tidelog.pikiwi.errors import DumpError

LOG_BYTES_MAX = 1 << 30

DELETION, VALUE, SINGLE_DELETION, RANGE_DELETION = 0, 1, 7, 15  # kinds of rows, in tables too

_HEADER = struct.Struct("<QI")
_LOG_DATA, _NOOP = 3, 13
# tag of a write: (kind of its row, has it a column family, has it a second byte string)
_WRITES: dict[int, tuple[int, bool, bool]] = {
    0: (DELETION, False, False),
    1: (VALUE, False, True),
    4: (DELETION, True, False),
    5: (VALUE, True, True),
    7: (SINGLE_DELETION, False, False),
    8: (SINGLE_DELETION, True, False),
    14: (RANGE_DELETION, True, True),
    15: (RANGE_DELETION, False, True),
}

Write = tuple[int, int, bytes, bytes]
"""Sequence number, kind, key, and value (a range deletion's: the first key after it; a deletion's: nothing)."""


def read_logs(folder: Path, family: ColumnFamily) -> Iterator[Write]:
    """A column family's writes that are in no table yet, oldest first."""
    logs = sorted((int(path.stem), path) for path in folder.glob("*.log") if path.stem.isdecimal())
    wanted = [(number, path) for number, path in logs if number >= family.log_number]
    size = sum(path.stat().st_size for _, path in wanted)
    if size > LOG_BYTES_MAX:
        raise DumpError(
            f"{folder}: logs of {size:,} bytes, at most {LOG_BYTES_MAX:,} are read; let the master save anew"
        )
    for number, path in wanted:
        for record in read_records(path, log_number=number):
            try:
                yield from _writes(record, family.identity)
            except Malformed as error:
                raise DumpError(f"{path}: a write batch cannot be read ({error}); fetch the dump again") from error


def _writes(batch: bytes, identity: int) -> Iterator[Write]:
    if len(batch) < _HEADER.size:
        raise Malformed(f"{len(batch)} bytes are no batch")
    sequence, _ = _HEADER.unpack_from(batch)
    at = _HEADER.size
    while at < len(batch):
        tag = batch[at]
        at += 1
        if tag == _NOOP:
            continue
        if tag == _LOG_DATA:
            _, at = sized(batch, at)
            continue
        if tag not in _WRITES:
            raise Malformed(f"a write of kind {tag}, which this reader lacks")
        kind, has_family, has_value = _WRITES[tag]
        family = 0
        if has_family:
            family, at = varint(batch, at)
        key, at = sized(batch, at)
        value = b""
        if has_value:
            value, at = sized(batch, at)
        if family == identity:
            yield sequence, kind, key, value
        sequence += 1
