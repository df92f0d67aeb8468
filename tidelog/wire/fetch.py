"""The answer to Fetch, by hand: record batches leave as they lie, in as many pieces as they have.

The table in `messages.fetch` describes the same bytes, and a test compares the two. This path differs in one thing: a
partition's records may be many buffers (batches in the tail cache, pieces of a segment), and none of them is copied.

Cost: about 3 µs for a partition, whatever its bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog.wire.batch import Buffer

FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_SESSION = struct.Struct(">hi")
_PARTITION_V0 = struct.Struct(">ihq")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_LEADER = struct.Struct(">BBBiiB")  # one tag: number 1, nine bytes: leader, epoch, no tags


@dataclass(slots=True)
class PartitionAnswer:
    partition: int
    error: int = 0
    high_watermark: int = -1
    start_offset: int = -1
    records: Sequence[Buffer] = ()
    preferred_replica: int = -1
    leader: tuple[int, int] | None = None
    """(node, epoch) of who leads, for a client that asked somebody else."""

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


def write_fetch_answer(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[PartitionAnswer]]],
    error: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """The whole response frame as buffers. Fetch sessions are not kept: the session id is always 0."""
    flexible = version >= FLEXIBLE_SINCE
    out = bytearray(8)
    buffers: list[Buffer] = [out]
    if flexible:
        out.append(0)
    if version >= 1:
        out += _INT32.pack(throttle_ms)
    if version >= 7:
        out += _SESSION.pack(error, 0)
    _put_count(out, len(topics), flexible)
    records_bytes = 0
    for name, partitions in topics:
        if version >= TOPIC_ID_SINCE:
            assert isinstance(name, UUID)
            out += name.bytes
        else:
            encoded = str(name).encode()
            if flexible:
                _put_uvarint(out, len(encoded) + 1)
            else:
                out += _INT16.pack(len(encoded))
            out += encoded
        _put_count(out, len(partitions), flexible)
        for partition in partitions:
            size = partition.size
            _put_partition(out, partition, version, size)
            if size:
                records_bytes += size
                buffers.extend(partition.records)
                out = bytearray()
                buffers.append(out)
            if flexible:
                _put_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    own_bytes = sum(map(len, buffers)) if records_bytes else len(out)
    _HEAD.pack_into(buffers[0], 0, own_bytes - 4, correlation_id)  # type: ignore[arg-type]
    return buffers


def _put_partition(out: bytearray, answer: PartitionAnswer, version: int, size: int) -> None:
    watermark = answer.high_watermark
    if version >= 5:
        out += _PARTITION_V5.pack(answer.partition, answer.error, watermark, watermark, answer.start_offset)
    elif version == 4:
        out += _PARTITION_V4.pack(answer.partition, answer.error, watermark, watermark)
    else:
        out += _PARTITION_V0.pack(answer.partition, answer.error, watermark)
    if version >= 4:
        _put_count(out, 0, version >= FLEXIBLE_SINCE)  # no aborted transactions
    if version >= 11:
        out += _INT32.pack(answer.preferred_replica)
    if version >= FLEXIBLE_SINCE:
        _put_uvarint(out, size + 1)
    else:
        out += _INT32.pack(size)


def _put_tags(out: bytearray, answer: PartitionAnswer) -> None:
    if answer.leader is None:
        out.append(0)
    else:
        out += _LEADER.pack(1, 1, 9, *answer.leader, 0)


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        _put_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
