"""A write-ahead log for databases, on any Kafka-compatible log.

A *namespace* holds *regions*; a region is the shared log of many tables. `RegionWal` opens regions, appends entries to
their tables, reads them back after a crash, and deletes what the database has flushed. It reaches the log through
Kafka's protocol only, so it runs on Tidelog and on Apache Kafka. `tidelog.regionwal.aio` has the same for asyncio.

    with RegionWal(Settings(bootstrap="127.0.0.1:9092")) as wal:
        last = wal.write(7, table_id=1, payloads=[b"row", b"row"])
        for entry in wal.read(7, table_id=1): ...
        wal.mark_delete(7, table_id=1, up_to=last)

docs/regionwal.md is the guide; `fold` has the rules by which a region has one writer and never loses a write.
"""

from tidelog.regionwal.errors import (
    BadMark,
    Closed,
    CorruptRecord,
    Fenced,
    LogFailed,
    LogLost,
    ReadOnly,
    RegionWalError,
    SettingsError,
    Timeout,
    UnsupportedVersion,
    WriteFailed,
    WriteUnknown,
)
from tidelog.regionwal.meta import DROPPED, RegionMeta, TableMeta
from tidelog.regionwal.reading import Bound, Entry
from tidelog.regionwal.replay import ReplayResult
from tidelog.regionwal.sequence_map import SequenceMap
from tidelog.regionwal.settings import Settings
from tidelog.regionwal.statistics import CleanResult, Counters, RegionStatistics, Statistics, TableStatistics
from tidelog.regionwal.wal import RegionWal

__all__ = [
    "DROPPED",
    "BadMark",
    "Bound",
    "CleanResult",
    "Closed",
    "CorruptRecord",
    "Counters",
    "Entry",
    "Fenced",
    "LogFailed",
    "LogLost",
    "ReadOnly",
    "RegionMeta",
    "RegionStatistics",
    "RegionWal",
    "RegionWalError",
    "ReplayResult",
    "SequenceMap",
    "Settings",
    "SettingsError",
    "Statistics",
    "TableMeta",
    "TableStatistics",
    "Timeout",
    "UnsupportedVersion",
    "WriteFailed",
    "WriteUnknown",
]
