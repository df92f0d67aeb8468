"""Bytes of what nodes say to each other.

A frame is a size (4 bytes, of what follows), a kind (2 bytes) and the content. An envelope of consensus becomes one or
more frames of kind ENVELOPE, each with some of its messages, so that none is much larger than FRAME_BYTES: a receiver
can act on the first while the rest is on its way.

    ENVELOPE  incarnation i64, count u16, then the messages, each: type u8, group i64, term i32, and
              AppendRequest      previous_index, previous_term, commit, round, count; a row (term, kind, size) for each
                                 entry; then the entries' data
              AppendResponse     match, accepting, round
              AppendRejected     previous_index, hint_index, hint_term, round
              Heartbeat          commit, round, sleep
              HeartbeatResponse  match, verified, accepting, sleeping, round
              VoteRequest        last_index, last_term, pre, forced
              VoteResponse       granted, pre
              TakeOver           index, log_term, configuration_index, round, two sizes; configuration, context
              TimeoutNow         nothing more
    others    JSON

Source and destination of a message are those of the connection. Nothing is copied on either side: what is sent are the
batches where they lie, what is received are views of the frame. Batches are checked when they are received, so that
what was damaged on the way is not stored.
"""

import json
import struct
from enum import IntEnum
from typing import Any

from tidelog.raft import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Buffer,
    Configuration,
    Entry,
    EntryKind,
    Envelope,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TakeOver,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tidelog.raft.errors import ConfigurationError
from tidelog.server.memory import COPIED_BYTES_MAX
from tidelog.wire.batch import is_intact

FRAME_BYTES = 1 << 20  # a frame that has reached this size takes no more messages
MESSAGES_MAX = 60_000  # of one frame


class FrameKind(IntEnum):
    HELLO = 1
    ENVELOPE = 2
    CALL = 3
    REPLY = 4


class PeerProtocolError(ValueError):
    """What the other node sent makes no sense: the connection ends."""


_HEAD = struct.Struct(">ih")
_ENVELOPE = struct.Struct(">ihqH")  # with the frame's head
_ENVELOPE_BODY = struct.Struct(">qH")
_COMMON = struct.Struct(">Bqi")
_APPEND = struct.Struct(">BqiqiqqH")
_APPEND_REST = struct.Struct(">qiqqH")
_ROW = struct.Struct(">iBI")
_APPENDED = struct.Struct(">q?q")
_REJECTED = struct.Struct(">qqiq")
_HEARTBEAT = struct.Struct(">qq?")
_ALIVE = struct.Struct(">qq??q")
_VOTE = struct.Struct(">qi??")
_VOTED = struct.Struct(">??")
_TAKE_OVER = struct.Struct(">qiqqII")

_T_APPEND, _T_APPENDED, _T_REJECTED, _T_HEARTBEAT, _T_ALIVE, _T_VOTE, _T_VOTED, _T_TAKE_OVER, _T_TIMEOUT = range(1, 10)
_KINDS = {kind.value: kind for kind in EntryKind}
_DATA = EntryKind.DATA.value


def encode_json(kind: FrameKind, content: object) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    return _HEAD.pack(len(body) + 2, kind) + body


def decode_json(body: Buffer) -> dict[str, Any]:
    try:
        content = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise PeerProtocolError(f"not JSON: {bytes(body[:40])!r}…") from error
    if not isinstance(content, dict):
        raise PeerProtocolError(f"not an object: {bytes(body[:40])!r}…")
    return content  # pyright: ignore[reportUnknownVariableType]


# Sending


def encode_envelope(envelope: Envelope) -> list[Buffer]:
    """One or more frames, as buffers in order."""
    out: list[Buffer] = []
    small = bytearray(_ENVELOPE.size)  # the frame's bytes that are not batches, up to the next batch
    head, size, count = small, 0, 0
    for message in envelope.messages:
        if size + len(small) >= FRAME_BYTES or count == MESSAGES_MAX:
            out.append(small)
            _ENVELOPE.pack_into(head, 0, size + len(small) - 4, FrameKind.ENVELOPE, envelope.incarnation, count)
            head = small = bytearray(_ENVELOPE.size)
            size = count = 0
        count += 1
        if type(message) is AppendRequest:
            entries = message.entries
            small += _APPEND.pack(
                _T_APPEND, message.group, message.term, message.previous_index, message.previous_term,
                message.commit, message.round, len(entries),
            )  # fmt: skip
            if entries:
                for entry in entries:
                    small += _ROW.pack(entry.term, entry.kind, len(entry.data))
                out.append(small)
                size += len(small)
                for entry in entries:
                    out.append(entry.data)
                    size += len(entry.data)
                small = bytearray()
        else:
            _ENCODERS[type(message)](message, small)
    out.append(small)
    _ENVELOPE.pack_into(head, 0, size + len(small) - 4, FrameKind.ENVELOPE, envelope.incarnation, count)
    return out


def _appended(message: AppendResponse, out: bytearray) -> None:
    out += _COMMON.pack(_T_APPENDED, message.group, message.term)
    out += _APPENDED.pack(message.match, message.accepting, message.round)


def _rejected(message: AppendRejected, out: bytearray) -> None:
    out += _COMMON.pack(_T_REJECTED, message.group, message.term)
    out += _REJECTED.pack(message.previous_index, message.hint_index, message.hint_term, message.round)


def _heartbeat(message: Heartbeat, out: bytearray) -> None:
    out += _COMMON.pack(_T_HEARTBEAT, message.group, message.term)
    out += _HEARTBEAT.pack(message.commit, message.round, message.sleep)


def _alive(message: HeartbeatResponse, out: bytearray) -> None:
    out += _COMMON.pack(_T_ALIVE, message.group, message.term)
    out += _ALIVE.pack(message.match, message.verified, message.accepting, message.sleeping, message.round)


def _vote(message: VoteRequest, out: bytearray) -> None:
    out += _COMMON.pack(_T_VOTE, message.group, message.term)
    out += _VOTE.pack(message.last_index, message.last_term, message.pre, message.forced)


def _voted(message: VoteResponse, out: bytearray) -> None:
    out += _COMMON.pack(_T_VOTED, message.group, message.term)
    out += _VOTED.pack(message.granted, message.pre)


def _take_over(message: TakeOver, out: bytearray) -> None:
    configuration = message.configuration.encode()
    out += _COMMON.pack(_T_TAKE_OVER, message.group, message.term)
    out += _TAKE_OVER.pack(
        message.index, message.log_term, message.configuration_index, message.round,
        len(configuration), len(message.context),
    )  # fmt: skip
    out += configuration
    out += message.context


def _timeout(message: TimeoutNow, out: bytearray) -> None:
    out += _COMMON.pack(_T_TIMEOUT, message.group, message.term)


_ENCODERS: dict[type, Any] = {
    AppendResponse: _appended,
    AppendRejected: _rejected,
    Heartbeat: _heartbeat,
    HeartbeatResponse: _alive,
    VoteRequest: _vote,
    VoteResponse: _voted,
    TakeOver: _take_over,
    TimeoutNow: _timeout,
}


# Receiving


def decode_envelope(body: memoryview, source: int, destination: int) -> Envelope:
    """The envelope, with views of `body`, which is what follows the frame's kind."""
    try:
        incarnation, count = _ENVELOPE_BODY.unpack_from(body)
        position = _ENVELOPE_BODY.size
        messages: list[Message] = []
        for _ in range(count):
            kind, group, term = _COMMON.unpack_from(body, position)
            position += _COMMON.size
            if kind == _T_APPEND:
                message, position = _read_append(body, position, group, source, destination, term)
            else:
                message, position = _DECODERS[kind](body, position, group, source, destination, term)
            messages.append(message)
    except (struct.error, KeyError, ConfigurationError) as error:
        raise PeerProtocolError(f"an envelope of {len(body)} bytes cannot be read: {error!r}") from error
    if position != len(body):
        raise PeerProtocolError(f"{len(body) - position} bytes behind an envelope")
    return Envelope(source, destination, incarnation, messages)


def _read_append(
    body: memoryview, position: int, group: int, source: int, destination: int, term: int
) -> tuple[AppendRequest, int]:
    previous_index, previous_term, commit, round_, count = _APPEND_REST.unpack_from(body, position)
    position += _APPEND_REST.size
    rows_end = position + count * _ROW.size
    if rows_end > len(body):
        raise PeerProtocolError(f"{count} entries in a frame of {len(body)} bytes")
    rows = body[position:rows_end]
    position = rows_end
    entries: list[Entry] = []
    index, body_bytes = previous_index, len(body)
    for entry_term, kind, size in _ROW.iter_unpack(rows):
        index += 1
        end = position + size
        if end > body_bytes:
            raise PeerProtocolError(f"an entry of {size} bytes in a frame of {body_bytes}")
        data = body[position:end]
        if kind == _DATA and not is_intact(data):
            raise PeerProtocolError(f"a batch of {size} bytes was damaged on its way")
        entries.append(Entry(index, entry_term, _KINDS[kind], bytes(data) if size <= COPIED_BYTES_MAX else data))
        position = end
    request = AppendRequest(group, source, destination, term, previous_index, previous_term, entries, commit, round_)
    return request, position


def _read_appended(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return AppendResponse(group, source, me, term, *_APPENDED.unpack_from(b, at)), at + _APPENDED.size


def _read_rejected(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return AppendRejected(group, source, me, term, *_REJECTED.unpack_from(b, at)), at + _REJECTED.size


def _read_heartbeat(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return Heartbeat(group, source, me, term, *_HEARTBEAT.unpack_from(b, at)), at + _HEARTBEAT.size


def _read_alive(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return HeartbeatResponse(group, source, me, term, *_ALIVE.unpack_from(b, at)), at + _ALIVE.size


def _read_vote(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return VoteRequest(group, source, me, term, *_VOTE.unpack_from(b, at)), at + _VOTE.size


def _read_voted(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return VoteResponse(group, source, me, term, *_VOTED.unpack_from(b, at)), at + _VOTED.size


def _read_take_over(b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    index, log_term, configuration_index, round_, first, second = _TAKE_OVER.unpack_from(b, at)
    at += _TAKE_OVER.size
    end = at + first + second
    if end > len(b):
        raise PeerProtocolError(f"a take-over of {first + second} bytes in a frame of {len(b)}")
    configuration = Configuration.decode(b[at : at + first])
    context = bytes(b[at + first : end])
    message = TakeOver(group, source, me, term, index, log_term, configuration_index, configuration, context, round_)
    return message, end


def _read_timeout(_b: memoryview, at: int, group: int, source: int, me: int, term: int) -> tuple[Message, int]:
    return TimeoutNow(group, source, me, term), at


_DECODERS: dict[int, Any] = {
    _T_APPENDED: _read_appended,
    _T_REJECTED: _read_rejected,
    _T_HEARTBEAT: _read_heartbeat,
    _T_ALIVE: _read_alive,
    _T_VOTE: _read_vote,
    _T_VOTED: _read_voted,
    _T_TAKE_OVER: _read_take_over,
    _T_TIMEOUT: _read_timeout,
}
