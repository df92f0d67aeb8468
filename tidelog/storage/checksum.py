"""One checksum over the records of a range of offsets: replicas that hold the same give the same.

All record batches that hold an offset of start..end-1 are read, each is checked by itself, and a CRC-32C is rolled over
their bytes, offsets and terms included. Entries of our own are left out, as they are for consumers.

    checksum = RangeChecksum(log, start, end, committed_index)
    while (piece := checksum.next_piece()) is not None:    # on the loop: finds the bytes
        checksum.take(piece)                               # in a thread: reads and checks them, a bounded piece
"""

from collections.abc import Sequence

from crc32c import crc32c

from tidelog.storage.errors import CorruptDataError, StorageError
from tidelog.storage.readers import Chunk, chunk_bytes
from tidelog.storage.stream_log import StreamLog
from tidelog.wire.batch import CorruptBatchError, check_batch, split_batches

PIECE_BYTES = 1 << 20


class RangeChecksum:
    def __init__(self, log: StreamLog, start_offset: int, end_offset: int, committed_index: int) -> None:
        """`end_offset` must not lie behind the offset after `committed_index`."""
        if not log.start_offset <= start_offset <= end_offset <= log.offset_after(committed_index):
            raise StorageError(
                f"stream {log.stream}: {start_offset}..{end_offset} is not within "
                f"{log.start_offset}..{log.offset_after(committed_index)}"
            )
        self._log = log
        self._committed_index = committed_index
        self._offset = start_offset
        self._end = end_offset
        self.crc = 0
        self.batches = 0
        self.bytes = 0

    def next_piece(self) -> Sequence[Chunk] | None:
        """What comes next, or None behind the end. Retention may overtake us: that is an error, and no damage."""
        if self._offset >= self._end:
            return None
        if self._offset < self._log.start_offset:
            raise StorageError(f"stream {self._log.stream}: offset {self._offset} was deleted meanwhile")
        return self._log.read(self._offset, self._committed_index, PIECE_BYTES)

    def take(self, piece: Sequence[Chunk]) -> None:
        data = memoryview(chunk_bytes(piece))
        position = 0
        before = self._offset
        try:
            for position, size in split_batches(data):
                if self._offset >= self._end:
                    break
                header = check_batch(data[position : position + size])
                if not header.base_offset <= self._offset < header.next_offset:
                    raise CorruptBatchError(f"offsets {header.base_offset}..{header.next_offset - 1}")
                self.crc = crc32c(data[position : position + size], self.crc)
                self.batches += 1
                self.bytes += size
                self._offset = header.next_offset
        except CorruptBatchError as error:
            place = f"stream {self._log.stream}, the batch at offset {self._offset}"
            raise CorruptDataError(place, position, str(error)) from error
        if self._offset == before:
            raise CorruptDataError(f"stream {self._log.stream}, offset {before}", 0, "there is no batch")
