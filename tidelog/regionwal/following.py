"""Reading a region's topics into their folds: the bridge between the log's records and the pure rules of `fold`."""

from contextlib import AbstractContextManager, nullcontext

from confluent_kafka import Message

from tidelog.regionwal import formats
from tidelog.regionwal.errors import CorruptRecord, UnsupportedVersion
from tidelog.regionwal.fold import DataFold, MetaFold
from tidelog.regionwal.formats import FormatError, VersionError
from tidelog.regionwal.log import Log, offset_of
from tidelog.regionwal.log_errors import OutOfRange

Lock = AbstractContextManager[object]
NO_LOCK: Lock = nullcontext()

TRIMMED_MAX = 10  # times that a topic may be trimmed while it is read
RECORD_OVERHEAD_BYTES = 24  # what the log adds to key and value: lengths, deltas, our header


def record_bytes(payload_bytes: int) -> int:
    """About what a data record takes in the log."""
    return formats.DATA_KEY.size + 1 + payload_bytes + RECORD_OVERHEAD_BYTES


def follow_data(log: Log, topic: str, region: int, fold: DataFold, end: int, lock: Lock = NO_LOCK) -> tuple[int, int]:
    """Fold what lies before `end`; the lock is held for a chunk at a time. Records and bytes that were read."""
    records = size_bytes = 0
    for chunk in log.read(topic, fold.next_offset, end):
        with lock:
            before = fold.meter.total_bytes
            _fold_data_chunk(topic, region, fold, chunk)
            size_bytes += fold.meter.total_bytes - before
        records += len(chunk)
    with lock:
        fold.skip_to(end)
    return records, size_bytes


def _fold_data_chunk(topic: str, region: int, fold: DataFold, chunk: list[Message]) -> None:
    offset = fold.next_offset
    try:
        for message in chunk:
            offset = offset_of(message)
            table, sequence = formats.parse_data_key(message.key(), region)
            epoch, part = formats.parse_headers(message.headers())
            payload = formats.payload_of(message.value())
            fold.observe(offset, epoch, table, sequence, part, payload, record_bytes(len(payload)))
    except FormatError as error:
        raise unreadable(topic, offset, error) from error


def follow_meta(log: Log, topic: str, region: int, fold: MetaFold, end: int) -> None:
    """Fold what lies before `end`; what a later owner trimmed away does not matter, its own snapshot is there."""
    for _ in range(TRIMMED_MAX):
        if fold.next_offset >= end:
            break
        earliest, _ = log.watermarks(topic, log.read_deadline())
        fold.next_offset = max(fold.next_offset, earliest)
        try:
            for chunk in log.read(topic, fold.next_offset, end, bulk=False):
                _fold_meta_chunk(topic, region, fold, chunk)
            break
        except OutOfRange:  # trimmed just now
            continue
    fold.next_offset = max(fold.next_offset, end)


def _fold_meta_chunk(topic: str, region: int, fold: MetaFold, chunk: list[Message]) -> None:
    offset = fold.next_offset
    try:
        for message in chunk:
            offset = offset_of(message)
            formats.check_meta_key(message.key(), region)
            epoch, part = formats.parse_headers(message.headers())
            fold.observe(offset, epoch, part, formats.payload_of(message.value()))
    except FormatError as error:
        raise unreadable(topic, offset, error) from error


def unreadable(topic: str, offset: int, error: FormatError) -> CorruptRecord:
    """Bytes that make no sense get their place named."""
    kind = UnsupportedVersion if isinstance(error, VersionError) else CorruptRecord
    return kind(topic, offset, str(error))
