"""Produce, by hand: the one request whose cost decides how fast the log is.

The tables in `messages.produce` describe the same bytes, and a test compares the two. This path differs in what it
leaves out: no object per field, record batches stay where they lie in the request, and an answer without hints is one
join of bytes.

Cost: about 4 µs to read a request with one partition, 1 µs when it begins as the one before, 1 µs to answer it.
"""

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from uuid import UUID

from tidelog.wire.errors import ProtocolError
from tidelog.wire.leader_hints import NO_TAGS, Endpoint, endpoint_tags, leader_tag
from tidelog.wire.names import encoded_name, uvarint

VERSION_MAX = 13
TRANSACTIONAL_SINCE = 3
FLEXIBLE_SINCE = 9
LEADER_SINCE = 10
TOPIC_ID_SINCE = 13

_REQUEST = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_ACKS_TIMEOUT = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ii")
_HEAD = struct.Struct(">ii")
_ANSWER_V0 = struct.Struct(">ihq")
_ANSWER_V2 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
_ONE_HEAD = struct.Struct(">iiBB")
_ONE_TAIL = struct.Struct(">BihqqqBBBBiB")
_ONE_BYTES = _ONE_HEAD.size + _ONE_TAIL.size - 4  # without the size itself and the name
_NO_ERRORS_CLASSIC = struct.pack(">ih", 0, -1)  # no record errors, no message
_NO_ERRORS_FLEXIBLE = b"\x01\x00"  # no record errors, no message

_NOTHING = memoryview(b"")
_VERSION = slice(2, 4)
_CORRELATION_END = 8
_NO_RECORDS = b"\x01"
_NO_MORE = memoryview(b"\x00\x00\x00")  # no tags of the partition, of the topic, of the request
BEGINNING_BYTES_MAX = 1 << 10  # of a request, that a connection remembers

TopicName = str | UUID


ProducedPartition = tuple[int, memoryview | None]
"""Its number, and its records."""


class ProduceRequest(NamedTuple):
    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicName, list[ProducedPartition]]]


# A named tuple's own constructor takes three times as long.
_new_request = cast(Callable[[type[ProduceRequest], tuple[Any, ...]], ProduceRequest], tuple.__new__)


@dataclass(slots=True)
class PartitionAnswer:
    """What becomes of one partition's records; filled in as that gets known."""

    partition: int
    error: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    start_offset: int = -1
    message: str | None = None
    leader: tuple[int, int] | None = None
    """(node, epoch) of who leads, for a client that asked somebody else."""


class ProduceReader:
    """Reads the requests of one connection.

    From one request to the next a client changes little more than the correlation id and the records. So what stands
    before the records of a request with one partition is kept, and a request that begins with the same bytes is not
    taken apart again.
    """

    __slots__ = ("_beginning", "_known", "_version")

    def __init__(self) -> None:
        self._version = _NOTHING
        self._beginning = _NOTHING  # from behind the correlation id to the records' length; empty: nothing is known yet
        self._known: tuple[int, str | None, int, int, TopicName, int] = (0, None, 0, 0, "", 0)

    def read(self, frame: memoryview) -> ProduceRequest:
        """A whole request, its header included. Raises ProtocolError on anything malformed."""
        beginning = self._beginning
        at = _CORRELATION_END + len(beginning)
        if beginning and frame[_CORRELATION_END:at] == beginning and frame[_VERSION] == self._version:
            records = _only_records(frame, at)
            if records is not None:
                version, transactional_id, acks, timeout_ms, name, number = self._known
                topics = [(name, [(number, records)])]
                return _new_request(ProduceRequest, (version, transactional_id, acks, timeout_ms, topics))
        request = read_produce(frame)
        self._remember(frame, request)
        return request

    def _remember(self, frame: memoryview, request: ProduceRequest) -> None:
        version, transactional_id, acks, timeout_ms, topics = request
        if version < FLEXIBLE_SINCE or len(topics) != 1 or len(topics[0][1]) != 1:
            return
        name, [(number, records)] = topics[0]
        if not records:
            return
        at = len(frame) - len(_NO_MORE) - len(records) - len(uvarint(len(records) + 1))
        if at > BEGINNING_BYTES_MAX or _only_records(frame, at) is None:
            return
        # With tags behind the records, or a length that is written in too many bytes, what stands before `at` is no
        # beginning: then it does not read as this request without its records.
        beginning = bytes(frame[:at])
        try:
            bare = read_produce(memoryview(b"".join((beginning, _NO_RECORDS, _NO_MORE))))
        except ProtocolError:
            return
        if bare == (version, transactional_id, acks, timeout_ms, [(name, [(number, b"")])]):
            known = memoryview(beginning)
            self._version, self._beginning = known[_VERSION], known[_CORRELATION_END:]
            self._known = (version, transactional_id, acks, timeout_ms, name, number)


def _only_records(frame: memoryview, at: int) -> memoryview | None:
    """The records whose length stands at `at`, if nothing but empty tags follows them."""
    try:
        length, start = _uvarint(frame, at)
    except (IndexError, ProtocolError):
        return None
    end = start + length - 1
    return frame[start:end] if length and frame[end:] == _NO_MORE else None


def read_produce(frame: memoryview) -> ProduceRequest:
    """A whole request, its header included. Raises ProtocolError on anything malformed."""
    try:
        _, version, _, length = _REQUEST.unpack_from(frame)
        if length < -1:
            raise ProtocolError(f"a client id of length {length}")
        position = _REQUEST.size + max(0, length)  # the client's id does not matter here
        if not 0 <= version <= VERSION_MAX:
            raise ProtocolError(f"Produce version {version} is not supported")
        if version < FLEXIBLE_SINCE:
            return _read_classic(frame, position, version)
        return _read_flexible(frame, _skip_tags(frame, position), version)
    except (struct.error, IndexError):
        raise ProtocolError("a Produce request ends too early") from None
    except UnicodeDecodeError:
        raise ProtocolError("a topic's name is no UTF-8") from None


def _read_classic(frame: memoryview, position: int, version: int) -> ProduceRequest:
    transactional_id = None
    if version >= TRANSACTIONAL_SINCE:
        (length,) = _INT16.unpack_from(frame, position)
        position += 2
        if length != -1:
            transactional_id, position = _text(frame, position, length)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position)
    position += 10
    _refuse_null(topic_count)
    topics: list[tuple[TopicName, list[ProducedPartition]]] = []
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(frame, position)
        name, position = _text(frame, position + 2, length)
        (partition_count,) = _INT32.unpack_from(frame, position)
        position += 4
        _refuse_null(partition_count)
        partitions: list[ProducedPartition] = []
        for _ in range(partition_count):
            number, length = _PARTITION.unpack_from(frame, position)
            position += 8
            records = None
            if length != -1:
                records, position = _slice(frame, position, length)
            partitions.append((number, records))
        topics.append((name, partitions))
    return ProduceRequest(version, transactional_id, acks, timeout_ms, topics)


def _read_flexible(frame: memoryview, position: int, version: int) -> ProduceRequest:
    transactional_id = None
    length, position = _uvarint(frame, position)
    if length:
        transactional_id, position = _text(frame, position, length - 1)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position = _uvarint(frame, position + 6)
    _refuse_null(topic_count - 1)
    topics: list[tuple[TopicName, list[ProducedPartition]]] = []
    for _ in range(topic_count - 1):
        name: TopicName
        if version >= TOPIC_ID_SINCE:
            name = UUID(bytes=bytes(_slice(frame, position, 16)[0]))
            position += 16
        else:
            length, position = _uvarint(frame, position)
            name, position = _text(frame, position, length - 1)
        partition_count, position = _uvarint(frame, position)
        _refuse_null(partition_count - 1)
        partitions: list[ProducedPartition] = []
        for _ in range(partition_count - 1):
            (number,) = _INT32.unpack_from(frame, position)
            length, position = _uvarint(frame, position + 4)
            records = None
            if length:
                records, position = _slice(frame, position, length - 1)
            position = position + 1 if frame[position] == 0 else _skip_tags(frame, position)
            partitions.append((number, records))
        position = position + 1 if frame[position] == 0 else _skip_tags(frame, position)
        topics.append((name, partitions))
    _skip_tags(frame, position)
    return ProduceRequest(version, transactional_id, acks, timeout_ms, topics)


def _refuse_null(count: int) -> None:
    if count < 0:
        raise ProtocolError("a Produce request has a list that is null")


def _slice(frame: memoryview, position: int, length: int) -> tuple[memoryview, int]:
    end = position + length
    if length < 0 or end > len(frame):
        raise ProtocolError(f"a field of {length} bytes, {len(frame) - position} are left")
    return frame[position:end], end


def _text(frame: memoryview, position: int, length: int) -> tuple[str, int]:
    piece, end = _slice(frame, position, length)
    return str(piece, "utf-8"), end


def _uvarint(frame: memoryview, position: int) -> tuple[int, int]:
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ProtocolError("a varint has more than five bytes")


def _skip_tags(frame: memoryview, position: int) -> int:
    count = frame[position]
    if count == 0:
        return position + 1
    count, position = _uvarint(frame, position)
    for _ in range(count):
        _, position = _uvarint(frame, position)
        length, position = _uvarint(frame, position)
        _, position = _slice(frame, position, length)
    return position


def write_answer(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicName, Sequence[PartitionAnswer]]],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> bytes:
    """The whole response frame. `endpoints` say where the leaders are that partitions name."""
    flexible = version >= FLEXIBLE_SINCE
    if flexible and len(topics) == 1 and not endpoints:
        name, partitions = topics[0]
        answer = partitions[0] if len(partitions) == 1 else None
        if answer is not None and answer.message is None and answer.leader is None:
            return _write_one(correlation_id, name, answer, throttle_ms)
    parts: list[bytes] = [b"", b"\x00" if flexible else b"", _count(len(topics), flexible)]
    for name, partitions in topics:
        parts.append(name.bytes if isinstance(name, UUID) else encoded_name(name, flexible))
        parts.append(_count(len(partitions), flexible))
        for partition in partitions:
            _put_partition(parts, partition, version)
        if flexible:
            parts.append(b"\x00")
    if version >= 1:
        parts.append(_INT32.pack(throttle_ms))
    if flexible:
        parts.append(endpoint_tags(endpoints) if version >= LEADER_SINCE else NO_TAGS)
    parts[0] = _HEAD.pack(4 + sum(map(len, parts)), correlation_id)
    return b"".join(parts)


def _write_one(correlation_id: int, name: TopicName, answer: PartitionAnswer, throttle_ms: int) -> bytes:
    """The most frequent answer: one partition, flexible encoding, nothing to explain."""
    named = name.bytes if isinstance(name, UUID) else encoded_name(name, True)
    tail = _ONE_TAIL.pack(
        2, answer.partition, answer.error, answer.base_offset, answer.append_time_ms, answer.start_offset,
        1, 0, 0, 0, throttle_ms, 0,  # no record errors, no message, no tags, no tags; throttle; no tags
    )  # fmt: skip
    return _ONE_HEAD.pack(_ONE_BYTES + len(named), correlation_id, 0, 2) + named + tail  # no tags; one topic


def _put_partition(parts: list[bytes], answer: PartitionAnswer, version: int) -> None:
    partition, error, base_offset = answer.partition, answer.error, answer.base_offset
    append_time_ms, start_offset = answer.append_time_ms, answer.start_offset
    message, leader = answer.message, answer.leader
    if version >= 5:
        parts.append(_ANSWER_V5.pack(partition, error, base_offset, append_time_ms, start_offset))
    elif version >= 2:
        parts.append(_ANSWER_V2.pack(partition, error, base_offset, append_time_ms))
    else:
        parts.append(_ANSWER_V0.pack(partition, error, base_offset))
    if version < 8:
        return
    if version < FLEXIBLE_SINCE:
        if message is None:
            parts.append(_NO_ERRORS_CLASSIC)
        else:
            encoded = message.encode()
            parts += (b"\x00\x00\x00\x00", _INT16.pack(len(encoded)), encoded)
        return
    if message is None:
        parts.append(_NO_ERRORS_FLEXIBLE)
    else:
        encoded = message.encode()
        parts += (b"\x01", uvarint(len(encoded) + 1), encoded)
    parts.append(NO_TAGS if leader is None or version < LEADER_SINCE else b"\x01" + leader_tag(0, leader))


@functools.lru_cache(maxsize=64)
def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _INT32.pack(count)
