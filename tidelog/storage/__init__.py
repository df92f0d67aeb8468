"""The log on disk: segments of record batches, one index with two views, group commit, recovery.

    store = Store(RealDisk(), "/var/lib/tidelog", StorageSettings(), random.Random())   # a node: `Folders`, of several
    log = store.create_stream(7, configuration=b"…")          # or store.streams[7] after a restart
    log.append_new(term=1, kind=EntryKind.DATA, data=[batch])  # in memory at once
    store.run_writer()                                          # the writer's thread: on disk
    for log in store.deliver().logs: ...                        # the loop: log.durable_index has moved
    log.read(offset=0, committed_index=log.durable_index, bytes_max=1 << 20)

docs/formats.md describes every file.
"""

from tidelog.storage.append_lane import AppendLane
from tidelog.storage.checksum import RangeChecksum
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import (
    BatchTooLargeError,
    CorruptDataError,
    DirectoryLockedError,
    FormatVersionError,
    LogMismatchError,
    StorageError,
    SyncFailedError,
    TransferError,
    WriterFailedError,
)
from tidelog.storage.folders import Folder, Folders
from tidelog.storage.hard_states import StoredVote
from tidelog.storage.readers import Chunk, FileRange, chunk_bytes
from tidelog.storage.real_disk import RealDisk, SyncMode
from tidelog.storage.retention import should_roll, start_for
from tidelog.storage.segment_view import SegmentView
from tidelog.storage.settings import StorageSettings
from tidelog.storage.store import Delivered, Store
from tidelog.storage.stream_log import StreamLog
from tidelog.storage.threads import StorageThreads
from tidelog.storage.transfer import ClosedSegment, Filling, Manifest, SegmentPiece, manifest_of, segment_piece
from tidelog.storage.verify import Report, verify_directories, verify_directory

__all__ = [
    "AppendLane",
    "BatchTooLargeError",
    "Chunk",
    "ClosedSegment",
    "CorruptDataError",
    "Delivered",
    "DirectoryLockedError",
    "Disk",
    "File",
    "FileRange",
    "Filling",
    "Folder",
    "Folders",
    "FormatVersionError",
    "LogMismatchError",
    "Manifest",
    "RangeChecksum",
    "RealDisk",
    "Report",
    "SegmentPiece",
    "SegmentView",
    "StorageError",
    "StorageSettings",
    "StorageThreads",
    "Store",
    "StoredVote",
    "StreamLog",
    "SyncFailedError",
    "SyncMode",
    "TransferError",
    "WriterFailedError",
    "chunk_bytes",
    "manifest_of",
    "segment_piece",
    "should_roll",
    "start_for",
    "verify_directories",
    "verify_directory",
]
