"""The idempotent producers as of a remote segment's end, worked out from the batches that go to the store.

What a stream knows of its producers is about its end, which is far behind the segment that is copied: the last batches
in that segment may be among those it has forgotten. So each copy begins with what the segment before ended with, and
follows the batches as they pass. A stream that is made again from the store then takes no batch for lost that it has,
and none for written that was lost.
"""

from tidelog.groups.producers import Numbers, Producers
from tidelog.server.clock import wall_ms
from tidelog.wire.batch import BatchHeader


class ProducersFollowed:
    """One pass over a segment's batches, in a thread."""

    def __init__(self, before: bytes, expiration_ms: int) -> None:
        """`before`: as of the segment's beginning."""
        self._producers = Producers(expiration_ms)
        self._producers.restore(before)

    def passed(self, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            numbers = Numbers.of(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
            self._producers.committed(numbers, header.base_offset, 0, wall_ms())

    def encode(self) -> bytes:
        return self._producers.encode(wall_ms())
