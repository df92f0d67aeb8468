"""What lies in the store: names, the packed index object of a segment, the manifest of a stream.

    <prefix>/<topic>-<topic id>/<partition>/<20-digit base offset>-<segment id>.log       record batches, in chunks
                                            <20-digit base offset>-<segment id>.indexes   all about the segment
                                            manifest.json                                 all there is to know of the
                                            stream

Ids are Kafka's: 16 bytes in base64url without padding. The `.log` of a segment that is not sealed is a plain Kafka
segment: Raft's own entries are left out. `.indexes` is put behind its `.log` and removed before it, so where it is,
the segment is whole.

The index object: magic `TIDETIX1`, a table of sections (count 1, then kind 1, position 4, length 4 each), the sections,
CRC-32C 4 of everything before. Sections:

| kind | content |
| --- | --- |
| 0 OFFSET | Kafka's `.index`: relative offset 4, position 4 of the first batch, then about every 64 KiB |
| 1 TIMESTAMP | Kafka's `.timeindex`: newest time so far 8 (signed), relative offset 4, of the same batches |
| 2 PRODUCER_SNAPSHOT | idempotent producers as of the segment's end (docs/formats.md, `application`) |
| 3 TRANSACTION | aborted transactions; always empty: there are none |
| 4 LEADER_EPOCH | Kafka's `leader-epoch-checkpoint`: text, `0`, the count, a line `epoch first-offset` each |
| 16 CHUNKS | chunk size 4, then of each chunk: bytes in the object 4, CRC-32C of those 4 |
| 17 SEAL | see `sealing` |
| 18 ABOUT | JSON: topic, topic id, partition, segment id, offsets, size, newest time |

Positions in OFFSET and the chunk size are of the batches before they are sealed.
"""

import base64
import binascii
import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from uuid import UUID

from crc32c import crc32c

from tidelog.tier.errors import LayoutError, ObjectDamagedError
from tidelog.tier.metadata import RemoteSegment, SegmentState

LOG, INDEXES = "log", "indexes"
MANIFEST = "manifest.json"
CHUNK_BYTES = 4 << 20
MANIFEST_FORMAT = 1

_MAGIC = b"TIDETIX1"
_NO_SEGMENTS = '"segments": []'
_TABLE_ROW = struct.Struct(">BII")
_OFFSET_ROW = struct.Struct(">II")
_TIME_ROW = struct.Struct(">qI")
_U32 = struct.Struct(">I")
_CHUNK_ROW = struct.Struct(">II")


class Section(IntEnum):
    """Those with a number below 16 have Kafka's meaning."""

    OFFSET = 0
    TIMESTAMP = 1
    PRODUCER_SNAPSHOT = 2
    TRANSACTION = 3
    LEADER_EPOCH = 4
    CHUNKS = 16
    SEAL = 17
    ABOUT = 18


# Names


def id_text(id_: UUID) -> str:
    return base64.urlsafe_b64encode(id_.bytes).rstrip(b"=").decode()


def id_of(text: str) -> UUID:
    try:
        content = base64.urlsafe_b64decode(text + "==")
        if len(text) != 22 or len(content) != 16:
            raise ValueError(text)
        return UUID(bytes=content)
    except (ValueError, binascii.Error):
        raise LayoutError(f"{text!r} is no id") from None


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A stream's folder in the store."""

    topic: str
    topic_id: UUID
    partition: int

    @property
    def topic_folder(self) -> str:
        return f"{self.topic}-{id_text(self.topic_id)}"

    @property
    def folder(self) -> str:
        return f"{self.topic_folder}/{self.partition}"

    @property
    def manifest(self) -> str:
        return f"{self.folder}/{MANIFEST}"

    def object_name(self, segment: RemoteSegment, kind: str) -> str:
        return f"{self.folder}/{segment.base_offset:020d}-{id_text(segment.id)}.{kind}"

    @classmethod
    def of_folder(cls, folder: str) -> "StreamPlace":
        """The stream of a folder's name, with or without a prefix before it."""
        try:
            topic_folder, partition = folder.rstrip("/").split("/")[-2:]
            topic, topic_id = topic_of_folder(topic_folder)
            return cls(topic, topic_id, int(partition))
        except ValueError:
            raise LayoutError(f"{folder!r} is no stream's folder") from None


def topic_of_folder(name: str) -> tuple[str, UUID]:
    """(topic, id) of a topic's folder, without what is before it. An id may hold a dash, but its length is known."""
    if len(name) < 24 or name[-23] != "-":
        raise LayoutError(f"{name!r} is no topic's folder")
    return name[:-23], id_of(name[-22:])


@dataclass(frozen=True, slots=True)
class ObjectName:
    """What an object's name says, apart from its folder."""

    base_offset: int
    segment: UUID
    kind: str  # with `#` and a number behind it: begun in a folder, and not, or never, finished

    @classmethod
    def parse(cls, name: str) -> "ObjectName | None":
        """None when it is no object of a segment."""
        stem, dot, kind = name.rsplit("/", 1)[-1].rpartition(".")
        known = dot and kind.partition("#")[0] in (LOG, INDEXES)
        if not known or len(stem) != 43 or stem[20] != "-" or not stem[:20].isdecimal():
            return None
        try:
            return cls(int(stem[:20]), id_of(stem[21:]), kind)
        except LayoutError:
            return None


# The packed index


@dataclass(frozen=True, slots=True)
class ChunkRow:
    position: int  # in the object
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class PackedIndex:
    base_offset: int
    size: int  # of the batches
    offsets: bytes
    times: bytes
    producers: bytes
    epochs: tuple[tuple[int, int], ...]
    chunk_bytes: int
    chunks: tuple[ChunkRow, ...]
    seal: bytes
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    # Searching

    @property
    def rows(self) -> int:
        return len(self.offsets) // _OFFSET_ROW.size

    def _offset_row(self, number: int) -> tuple[int, int]:
        return _OFFSET_ROW.unpack_from(self.offsets, number * _OFFSET_ROW.size)

    def position_of(self, offset: int) -> int:
        """Where a batch begins that lies at or before the offset: read on from there."""
        delta = offset - self.base_offset
        number = bisect_right(range(self.rows), delta, key=lambda row: self._offset_row(row)[0]) - 1
        return self._offset_row(max(0, number))[1] if self.rows else 0

    def boundary_before(self, position: int) -> int:
        """The last position at or before `position` where a batch is known to begin or the segment ends."""
        if position >= self.size:
            return self.size
        number = bisect_right(range(self.rows), position, key=lambda row: self._offset_row(row)[1]) - 1
        return self._offset_row(number)[1] if number >= 0 else 0

    def position_at_time(self, timestamp: int) -> int:
        """Where to begin to read for the first record at or after a time."""
        rows = len(self.times) // _TIME_ROW.size
        number = bisect_right(range(rows), timestamp - 1, key=self._time_at)  # the first whose newest time reaches it
        return self._offset_row(max(0, number - 1))[1] if self.rows else 0

    def _time_at(self, number: int) -> int:
        return _TIME_ROW.unpack_from(self.times, number * _TIME_ROW.size)[0]

    def chunk_size(self, number: int) -> int:
        """Bytes of a chunk before it was sealed."""
        return min(self.chunk_bytes, self.size - number * self.chunk_bytes)

    # As bytes

    def encode(self) -> bytes:
        sections = {
            Section.OFFSET: self.offsets,
            Section.TIMESTAMP: self.times,
            Section.PRODUCER_SNAPSHOT: self.producers,
            Section.TRANSACTION: b"",
            Section.LEADER_EPOCH: _encode_epochs(self.epochs),
            Section.CHUNKS: _U32.pack(self.chunk_bytes)
            + b"".join(_CHUNK_ROW.pack(chunk.length, chunk.crc) for chunk in self.chunks),
            Section.SEAL: self.seal,
            Section.ABOUT: json.dumps(
                {**self.about, "base_offset": self.base_offset, "size": self.size}, sort_keys=True
            ).encode(),
        }
        position = len(_MAGIC) + 1 + len(sections) * _TABLE_ROW.size
        table = b""
        for kind, content in sections.items():
            table += _TABLE_ROW.pack(kind, position, len(content))
            position += len(content)
        body = _MAGIC + bytes((len(sections),)) + table + b"".join(sections.values())
        return body + _U32.pack(crc32c(body))

    @classmethod
    def decode(cls, content: bytes) -> "PackedIndex":
        """Checked; ObjectDamagedError when it is not whole and intact."""
        body = content[: -_U32.size]
        if not content.startswith(_MAGIC) or _U32.unpack_from(content, len(body))[0] != crc32c(body):
            raise ObjectDamagedError("an index object that is not whole and intact")
        try:
            at = len(_MAGIC) + 1
            rows = [_TABLE_ROW.unpack_from(content, at + n * _TABLE_ROW.size) for n in range(content[at - 1])]
            parts = {kind: content[position : position + length] for kind, position, length in rows}
            about = json.loads(parts[Section.ABOUT])
            (chunk_bytes,) = _U32.unpack_from(parts[Section.CHUNKS])
            chunks: list[ChunkRow] = []
            position = 0
            for length, crc in _CHUNK_ROW.iter_unpack(parts[Section.CHUNKS][_U32.size :]):
                chunks.append(ChunkRow(position, length, crc))
                position += length
            return cls(
                about["base_offset"], about["size"], parts[Section.OFFSET], parts[Section.TIMESTAMP],
                parts[Section.PRODUCER_SNAPSHOT], _decode_epochs(parts[Section.LEADER_EPOCH]), chunk_bytes,
                tuple(chunks), parts[Section.SEAL], about,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise LayoutError(f"an index object of an unknown form: {error!r}") from None


def about_segment(place: StreamPlace, segment: RemoteSegment) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "topic_id": id_text(place.topic_id),
        "partition": place.partition,
        "segment_id": id_text(segment.id),
        "last_offset": segment.last_offset,
        "newest_timestamp": segment.newest_timestamp,
    }


def segment_of(index: PackedIndex) -> RemoteSegment:
    """The segment that an index object describes, readable."""
    about = index.about
    try:
        return RemoteSegment(
            id_of(about["segment_id"]), _whole(index.base_offset, 62), _whole(about["last_offset"], 62),
            _whole(index.size), _whole(about["newest_timestamp"]), index.epochs, -1, 0, SegmentState.COPY_FINISHED,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise LayoutError(f"an index object of an unknown form: {error!r}") from None


def encode_offset_row(offset_delta: int, position: int) -> bytes:
    return _OFFSET_ROW.pack(offset_delta, position)


def encode_time_row(newest_timestamp: int, offset_delta: int) -> bytes:
    return _TIME_ROW.pack(newest_timestamp, offset_delta)


def _encode_epochs(epochs: Sequence[tuple[int, int]]) -> bytes:
    lines = ["0", str(len(epochs)), *(f"{epoch} {first}" for epoch, first in epochs)]
    return ("\n".join(lines) + "\n").encode()


def _decode_epochs(content: bytes) -> tuple[tuple[int, int], ...]:
    version, count, *lines = content.decode().split("\n")
    if version != "0" or int(count) != len(lines) - 1:
        raise ValueError("leader epochs of an unknown form")
    pairs = (line.split(" ") for line in lines[:-1])
    return tuple((int(epoch), int(first)) for epoch, first in pairs)


# The manifest


def segment_text(segment: RemoteSegment) -> str:
    """As a manifest names it."""
    return json.dumps(
        {
            "id": id_text(segment.id),
            "base_offset": segment.base_offset,
            "last_offset": segment.last_offset,
            "size": segment.size,
            "newest_timestamp": segment.newest_timestamp,
            "epochs": segment.epochs,
            "node": segment.node,
            "event_ms": segment.event_ms,
        },
        sort_keys=True,
    )


@dataclass(frozen=True, slots=True)
class StreamManifest:
    """What a stream's leader last knew: enough to make the stream again, with the objects that it names."""

    cluster_id: str
    place: StreamPlace
    start_offset: int
    configs: Mapping[str, str]
    partitions: int  # of the topic
    segments: tuple[RemoteSegment, ...]  # the readable ones, by offset
    deleted: bool = False  # with its topic: what is, or comes to be, in the folder is to go

    def encode(self, text_of: Callable[[RemoteSegment], str] | None = None) -> bytes:
        """`text_of` may remember what `segment_text` gives: of ten thousand segments that is most of the work."""
        value: dict[str, Any] = {
            "format": MANIFEST_FORMAT,
            "cluster_id": self.cluster_id,
            "topic": self.place.topic,
            "topic_id": id_text(self.place.topic_id),
            "partition": self.place.partition,
            "partitions": self.partitions,
            "start_offset": self.start_offset,
            "configs": dict(self.configs),
            "segments": [],
        }
        if self.deleted:
            value["deleted"] = True
        before, empty, behind = json.dumps(value, sort_keys=True).partition(_NO_SEGMENTS)
        assert empty, "settings are texts, so nothing else looks like it"
        segments = ", ".join(map(text_of or segment_text, self.segments))
        text = f"{before}{_NO_SEGMENTS[:-1]}{segments}]{behind}".encode()
        return b"%s\n%08x\n" % (text, crc32c(text))

    @classmethod
    def decode(cls, content: bytes) -> "StreamManifest":
        line, _, rest = content.partition(b"\n")
        if rest != b"%08x\n" % crc32c(line):
            raise ObjectDamagedError("a manifest whose checksum does not fit")
        try:
            return cls._of(json.loads(line))
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # the checksum is right all the same
            raise LayoutError(f"a manifest of an unknown form: {error!r}") from None

    @classmethod
    def _of(cls, value: Any) -> "StreamManifest":
        if value.get("format") != MANIFEST_FORMAT:
            raise LayoutError(f"a manifest of format {value.get('format')}; this version reads {MANIFEST_FORMAT}")
        place = StreamPlace(_text(value["topic"]), id_of(_text(value["topic_id"])), _whole(value["partition"], 31))
        segments = tuple(
            RemoteSegment(
                id_of(each["id"]), _whole(each["base_offset"], 62), _whole(each["last_offset"], 62),
                _whole(each["size"]), _whole(each["newest_timestamp"]),
                tuple((_whole(epoch, 31), _whole(first, 62)) for epoch, first in each["epochs"]),
                _whole(each["node"], 31), _whole(each["event_ms"]), SegmentState.COPY_FINISHED,
            )
            for each in value["segments"]
        )  # fmt: skip
        configs = {_text(name): _text(setting) for name, setting in value["configs"].items()}
        return cls(
            _text(value["cluster_id"]), place, _whole(value["start_offset"], 62), configs,
            _whole(value["partitions"], 31), segments, bool(value.get("deleted", False)),
        )  # fmt: skip


def _whole(value: object, bits: int = 63) -> int:
    """A number that others wrote, if it fits where such numbers go: offsets leave room for the one behind them."""
    if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"{value!r} is no number of {bits} bits")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
