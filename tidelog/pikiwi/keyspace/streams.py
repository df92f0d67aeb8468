"""Commands of streams. A stream without entries still exists, since it remembers its last id."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.pikiwi.keyspace.space import KeyspaceError, Space, integer

StreamId: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class Stream:
    entries: dict[StreamId, tuple[bytes, ...]] = field(default_factory=dict)
    """Fields and values in turn, by id; ids rise."""
    last_id: StreamId = (0, 0)
    max_deleted_id: StreamId = (0, 0)
    entries_added: int = 0


def xadd(space: Space, args: Sequence[bytes]) -> None:
    at, trim = 2, None
    while at < len(args) and args[at].upper() in {b"NOMKSTREAM", b"MAXLEN", b"MINID"}:
        if args[at].upper() == b"NOMKSTREAM":
            if space.existing("stream", args[1]) is None:
                return
            at += 1
        else:
            trim, at = _trim(args, at)
    if at >= len(args) or len(args) - at < 3 or (len(args) - at) % 2 == 0:
        raise KeyspaceError(f"XADD {args[1]!r}: an id and pairs of field and value are wanted")
    new_id = stream_id(args[at])
    stream: Stream = space.opened("stream", args[1], Stream).value
    if new_id <= stream.last_id:
        return  # it is there already: ids rise
    stream.entries[new_id] = tuple(args[at + 1 :])
    stream.last_id = new_id
    stream.entries_added += 1
    if trim is not None:
        _trimmed(stream, *trim)


def xdel(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("stream", args[1])
    if entry is not None:
        for text in args[2:]:
            gone = stream_id(text)
            if entry.value.entries.pop(gone, None) is not None:
                entry.value.max_deleted_id = max(entry.value.max_deleted_id, gone)


def xtrim(space: Space, args: Sequence[bytes]) -> None:
    trim, _ = _trim(args, 2)
    entry = space.existing("stream", args[1])
    if entry is not None:
        _trimmed(entry.value, *trim)


def xsetid(space: Space, args: Sequence[bytes]) -> None:
    stream: Stream = space.opened("stream", args[1], Stream).value
    stream.last_id = stream_id(args[2])
    for word, value in zip(args[3::2], args[4::2], strict=False):
        if word.upper() == b"ENTRIESADDED":
            stream.entries_added = integer(value)
        elif word.upper() == b"MAXDELETEDID":
            stream.max_deleted_id = stream_id(value)


def stream_id(text: bytes) -> StreamId:
    milliseconds, _, sequence = text.partition(b"-")
    return integer(milliseconds), integer(sequence or b"0")


def _trim(args: Sequence[bytes], at: int) -> tuple[tuple[bytes, bytes], int]:
    """What to trim by and to what, and where the words after it begin."""
    kind = args[at].upper() if at < len(args) else b""
    if kind not in {b"MAXLEN", b"MINID"}:
        raise KeyspaceError(f"a stream is trimmed by MAXLEN or MINID, not {kind!r}")
    at += 1
    if at < len(args) and args[at] in {b"=", b"~"}:  # a master trims exactly either way
        at += 1
    if at >= len(args):
        raise KeyspaceError(f"{kind!r} lacks its value")
    end = at + 1
    if end + 1 < len(args) and args[end].upper() == b"LIMIT":
        end += 2
    return (kind, args[at]), end


def _trimmed(stream: Stream, kind: bytes, value: bytes) -> None:
    ids = list(stream.entries)
    if kind == b"MAXLEN":
        gone = ids[: max(0, len(ids) - integer(value))]
    else:
        lowest = stream_id(value)
        gone = [each for each in ids if each < lowest]
    for each in gone:
        del stream.entries[each]
        stream.max_deleted_id = max(stream.max_deleted_id, each)
