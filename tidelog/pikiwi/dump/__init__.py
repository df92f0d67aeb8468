"""Dumps of a PikiwiDB master: fetched over rsync2, opened read-only, read as keys or as commands.

`fetch_dump` copies a dump and hands its binlog position over as soon as it is known; `plan` cuts it into ranges for any
number of readers; `read_keys` and `read_range` read one range. `open.py` says how RocksDB is read, `floyd.py` and
`blackwidow.py` what 4.x and 3.5 store, `commands.py` which commands come out.
"""

from tidelog.pikiwi.dump.info import DumpInfo
from tidelog.pikiwi.dump.model import DATA_TYPES, DataType, DumpKey, SnapshotCommand, StreamState
from tidelog.pikiwi.dump.plan import DumpRange, Piece, plan
from tidelog.pikiwi.dump.reader import read_keys, read_range
from tidelog.pikiwi.dump.rsync import DumpChanged, DumpNotReady, FetchLimits, fetch_dump

__all__ = [
    "DATA_TYPES",
    "DataType",
    "DumpChanged",
    "DumpInfo",
    "DumpKey",
    "DumpNotReady",
    "DumpRange",
    "FetchLimits",
    "Piece",
    "SnapshotCommand",
    "StreamState",
    "fetch_dump",
    "plan",
    "read_keys",
    "read_range",
]
