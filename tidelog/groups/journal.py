"""The records that make groups and offsets durable, byte for byte.

These are the records of Kafka's `__consumer_offsets`, so that tools which read it read ours. A record is a key and a
value; a missing value (tombstone) deletes what the key names. Numbers are big-endian and signed; `string` is a 16-bit
length and UTF-8, -1 meaning null where it may be; `bytes` has a 32-bit length. Every key and value begins with a 16-bit
number: the kind of the key, the version of the value.

    key 1     an offset        string group, string topic, int32 partition
    value 3                    int64 offset, int32 leader epoch, string metadata, int64 commit time
    value 1                    int64 offset, string metadata, int64 commit time, int64 expiry time
                               (for a client that set a retention time; it has no leader epoch)

    key 2     a group          string group
    value 3                    string protocol type, int32 generation, string? protocol, string? leader,
                               int64 time of entering the state, int32 count of members, for each:
                               string member id, string? instance id, string client id, string client host,
                               int32 rebalance timeout, int32 session timeout, bytes metadata, bytes assignment

    key 1000  snapshot begins  int64 snapshot id
    value 0                    (nothing)
    key 1001  snapshot ends    int64 snapshot id
    value 0                    int32 count of records between

The last two are Tidelog's own; Kafka's readers skip kinds they do not know. What they mean is in `image`.

Decoding trusts nothing: every length is checked against what is there, and bytes left over are an error.
"""

from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

from tidelog.groups.errors import JournalError
from tidelog.groups.messages import TopicPartition
from tidelog.groups.offsets import NO_EXPIRY, CommittedOffset

Record: TypeAlias = tuple[bytes, bytes | None]

STRING_BYTES_MAX = 2**15 - 1

KEY_OFFSET = 1
KEY_GROUP = 2
KEY_SNAPSHOT_BEGIN = 1_000
KEY_SNAPSHOT_END = 1_001

_OFFSET_VALUE = 3
_OFFSET_VALUE_WITH_EXPIRY = 1
_GROUP_VALUE = 3
_MARKER_VALUE = 0

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")


@dataclass(frozen=True, slots=True)
class MemberImage:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    metadata: bytes
    """What it said to the protocol that was chosen."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupImage:
    """A group as it is durable: Stable with its members, or Empty without."""

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_since_ms: int
    members: tuple[MemberImage, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    snapshot_id: int


Key: TypeAlias = OffsetKey | GroupKey | SnapshotBegin | SnapshotEnd


# Writing


def offset_record(group_id: str, partition: TopicPartition, committed: CommittedOffset | None) -> Record:
    topic, number = partition
    key = _INT16.pack(KEY_OFFSET) + _string(group_id) + _string(topic) + _INT32.pack(number)
    if committed is None:
        return key, None
    metadata, commit_ms = _string(committed.metadata), _INT64.pack(committed.commit_ms)
    if committed.expire_ms != NO_EXPIRY:
        head = _INT16.pack(_OFFSET_VALUE_WITH_EXPIRY) + _INT64.pack(committed.offset)
        return key, head + metadata + commit_ms + _INT64.pack(committed.expire_ms)
    head = _INT16.pack(_OFFSET_VALUE) + _INT64.pack(committed.offset) + _INT32.pack(committed.leader_epoch)
    return key, head + metadata + commit_ms


def group_record(group_id: str, image: GroupImage | None) -> Record:
    key = _INT16.pack(KEY_GROUP) + _string(group_id)
    if image is None:
        return key, None
    parts = [
        _INT16.pack(_GROUP_VALUE),
        _string(image.protocol_type),
        _INT32.pack(image.generation),
        _string(image.protocol_name),
        _string(image.leader_id),
        _INT64.pack(image.state_since_ms),
        _INT32.pack(len(image.members)),
    ]
    for member in image.members:
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _INT32.pack(len(member.metadata)),
            member.metadata,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return key, b"".join(parts)


def snapshot_begin_record(snapshot_id: int) -> Record:
    return _INT16.pack(KEY_SNAPSHOT_BEGIN) + _INT64.pack(snapshot_id), _INT16.pack(_MARKER_VALUE)


def snapshot_end_record(snapshot_id: int, count: int) -> Record:
    key = _INT16.pack(KEY_SNAPSHOT_END) + _INT64.pack(snapshot_id)
    return key, _INT16.pack(_MARKER_VALUE) + _INT32.pack(count)


def is_snapshot_begin(key: bytes) -> bool:
    """For whoever trims: everything before this record may go once the snapshot is durable to its end."""
    return len(key) >= _INT16.size and _INT16.unpack_from(key)[0] == KEY_SNAPSHOT_BEGIN


def is_snapshot_end(key: bytes) -> bool:
    return len(key) >= _INT16.size and _INT16.unpack_from(key)[0] == KEY_SNAPSHOT_END


def fits_string(text: str | None) -> bool:
    return text is None or len(text) * 4 <= STRING_BYTES_MAX or len(text.encode()) <= STRING_BYTES_MAX


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    if len(data) > STRING_BYTES_MAX:
        raise JournalError(f"a string of {len(data)} bytes does not fit a record, which takes {STRING_BYTES_MAX}")
    return _INT16.pack(len(data)) + data


# Reading


def decode_key(data: bytes) -> Key:
    reader = _Reader(data, "key")
    kind = reader.number(_INT16)
    key: Key
    if kind == KEY_OFFSET:
        key = OffsetKey(reader.string(), (reader.string(), reader.number(_INT32)))
    elif kind == KEY_GROUP:
        key = GroupKey(reader.string())
    elif kind == KEY_SNAPSHOT_BEGIN:
        key = SnapshotBegin(reader.number(_INT64))
    elif kind == KEY_SNAPSHOT_END:
        key = SnapshotEnd(reader.number(_INT64))
    else:
        raise JournalError(f"key of unknown kind {kind}: written by a newer version, or no journal of groups")
    reader.finish()
    return key


def decode_offset(data: bytes) -> CommittedOffset:
    reader = _Reader(data, "offset")
    version = reader.number(_INT16)
    if version == _OFFSET_VALUE:
        offset, epoch = reader.number(_INT64), reader.number(_INT32)
        committed = CommittedOffset(offset, epoch, reader.string(), reader.number(_INT64))
    elif version == _OFFSET_VALUE_WITH_EXPIRY:
        offset, metadata = reader.number(_INT64), reader.string()
        committed = CommittedOffset(offset, -1, metadata, reader.number(_INT64), reader.number(_INT64))
    else:
        raise JournalError(f"offset of unknown version {version}: written by a newer version, or damaged")
    reader.finish()
    return committed


def decode_group(group_id: str, data: bytes) -> GroupImage:
    reader = _Reader(data, f"group {group_id!r}")
    version = reader.number(_INT16)
    if version != _GROUP_VALUE:
        raise JournalError(f"group {group_id!r} of unknown version {version}: written by a newer version, or damaged")
    protocol_type, generation = reader.string(), reader.number(_INT32)
    protocol_name, leader_id = reader.nullable_string(), reader.nullable_string()
    state_since_ms = reader.number(_INT64)
    count = reader.number(_INT32)
    if count < 0 or count > len(data):
        raise JournalError(f"group {group_id!r}: {count} members cannot be in {len(data)} bytes")
    members = tuple(_decode_member(reader) for _ in range(count))
    reader.finish()
    return GroupImage(group_id, protocol_type, generation, protocol_name, leader_id, state_since_ms, members)


def decode_snapshot_begin(data: bytes) -> None:
    reader = _marker(data)
    reader.finish()


def decode_snapshot_end(data: bytes) -> int:
    """How many records the snapshot has."""
    reader = _marker(data)
    count = reader.number(_INT32)
    reader.finish()
    return count


def _marker(data: bytes) -> "_Reader":
    reader = _Reader(data, "snapshot marker")
    version = reader.number(_INT16)
    if version != _MARKER_VALUE:
        raise JournalError(f"snapshot marker of unknown version {version}: written by a newer version, or damaged")
    return reader


def _decode_member(reader: "_Reader") -> MemberImage:
    return MemberImage(
        reader.string(),
        reader.nullable_string(),
        reader.string(),
        reader.string(),
        reader.number(_INT32),
        reader.number(_INT32),
        reader.data(),
        reader.data(),
    )


class _Reader:
    __slots__ = ("_data", "_position", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._position = 0
        self._what = what

    def number(self, layout: Struct) -> int:
        start = self._take(layout.size)
        return layout.unpack_from(self._data, start)[0]

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise JournalError(f"{self._what}: a string is null that must not be")
        return text

    def nullable_string(self) -> str | None:
        length = self.number(_INT16)
        if length == -1:
            return None
        start = self._take(length)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise JournalError(f"{self._what}: a string at byte {start} is not UTF-8") from error

    def data(self) -> bytes:
        length = self.number(_INT32)
        start = self._take(length)
        return bytes(self._data[start : start + length])

    def finish(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise JournalError(f"{self._what}: {left} bytes are left over at byte {self._position}")

    def _take(self, length: int) -> int:
        start = self._position
        if length < 0 or length > len(self._data) - start:
            raise JournalError(
                f"{self._what}: {length} bytes are wanted at byte {start}, {len(self._data) - start} are there"
            )
        self._position = start + length
        return start
