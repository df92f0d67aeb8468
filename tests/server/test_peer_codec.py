"""The bytes between nodes: what was said arrives, whatever it was; garbage is an error and nothing else."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.client import batch_of
from tidelog.raft import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
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
from tidelog.server.memory import CHUNK_BYTES, COPIED_BYTES_MAX, BufferPool
from tidelog.server.peer_codec import (
    FRAME_BYTES,
    FrameKind,
    PeerProtocolError,
    decode_envelope,
    decode_json,
    encode_envelope,
    encode_json,
)
from tidelog.server.peer_frames import PeerFrames
from tidelog.wire.errors import ProtocolError

SOURCE, DESTINATION = 3, 7
BATCH = bytes(batch_of("a", "b"))
LARGE = bytes(batch_of("x" * 300_000))

indexes = st.integers(0, 2**62)
terms = st.integers(0, 2**31 - 1)
ends = (st.just(SOURCE), st.just(DESTINATION))
flags = st.booleans()
configurations = st.lists(st.integers(1, 1000), min_size=1, max_size=5, unique=True).map(Configuration.of)


@st.composite
def appends(draw: st.DrawFn) -> AppendRequest:
    previous = draw(indexes)
    kinds = draw(st.lists(st.sampled_from(list(EntryKind)), max_size=6))
    entries = []
    for number, kind in enumerate(kinds):
        data = draw(st.sampled_from([BATCH, LARGE])) if kind is EntryKind.DATA else draw(st.binary(max_size=40))
        entries.append(Entry(previous + 1 + number, draw(terms), kind, data))
    return AppendRequest(
        draw(indexes), SOURCE, DESTINATION, draw(terms), previous, draw(terms), entries, draw(indexes), draw(indexes)
    )


messages = st.one_of(
    appends(),
    st.builds(AppendResponse, indexes, *ends, terms, indexes, flags, indexes),
    st.builds(AppendRejected, indexes, *ends, terms, indexes, indexes, terms, indexes),
    st.builds(Heartbeat, indexes, *ends, terms, indexes, indexes, flags),
    st.builds(HeartbeatResponse, indexes, *ends, terms, indexes, indexes, flags, flags, indexes),
    st.builds(VoteRequest, indexes, *ends, terms, indexes, terms, flags, flags),
    st.builds(VoteResponse, indexes, *ends, terms, flags, flags),
    st.builds(
        TakeOver, indexes, *ends, terms, indexes, terms, indexes, configurations, st.binary(max_size=99), indexes
    ),
    st.builds(TimeoutNow, indexes, *ends, terms),
)


def received(data: bytes, step: int) -> list[bytes]:
    """The contents of the frames in `data`, received `step` bytes at a time."""
    contents: list[bytes] = []
    frames = PeerFrames(64 << 20, BufferPool(16 * CHUNK_BYTES), lambda frame: contents.append(bytes(frame)))
    position = 0
    while position < len(data):
        room = frames.room()
        size = min(step, len(room), len(data) - position)
        room[:size] = data[position : position + size]
        frames.received(size)
        position += size
    return contents


@given(st.lists(messages, max_size=12), st.integers(1, 2**62), st.sampled_from([7, 1_000, 65_536, 1 << 22]))
def test_what_is_sent_arrives(sent: list[Message], incarnation: int, step: int) -> None:
    data = b"".join(encode_envelope(Envelope(SOURCE, DESTINATION, incarnation, sent)))
    arrived: list[Message] = []
    for content in received(data, step):
        assert content[:2] == struct.pack(">h", FrameKind.ENVELOPE)
        envelope = decode_envelope(memoryview(content)[2:], SOURCE, DESTINATION)
        assert (envelope.source, envelope.destination, envelope.incarnation) == (SOURCE, DESTINATION, incarnation)
        arrived += envelope.messages
    assert arrived == sent


def test_much_is_split_into_frames_which_stay_small() -> None:
    entries = [Entry(1, 1, EntryKind.DATA, LARGE)]
    sent = [AppendRequest(number, SOURCE, DESTINATION, 1, 0, 0, entries, 0, 0) for number in range(20)]
    contents = received(b"".join(encode_envelope(Envelope(SOURCE, DESTINATION, 1, sent))), 100_000)
    assert len(contents) > 3
    assert max(map(len, contents)) < FRAME_BYTES + 2 * len(LARGE)


def test_batches_are_sent_from_where_they_lie() -> None:
    batch = memoryview(bytearray(BATCH))
    request = AppendRequest(1, SOURCE, DESTINATION, 1, 0, 0, [Entry(1, 1, EntryKind.DATA, batch)], 0, 0)
    assert any(buffer is batch for buffer in encode_envelope(Envelope(SOURCE, DESTINATION, 1, [request])))


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_a_damaged_envelope_is_refused_or_read_as_another_and_never_more(
    sent: list[Message], data: st.DataObject
) -> None:
    content = bytearray(received(b"".join(encode_envelope(Envelope(SOURCE, DESTINATION, 1, sent))), 1 << 20)[0][2:])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, min(len(content), 200) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PeerProtocolError):
        decode_envelope(memoryview(content), SOURCE, DESTINATION)


@given(st.binary(max_size=300))
def test_garbage_is_an_error(content: bytes) -> None:
    with contextlib.suppress(PeerProtocolError):
        decode_envelope(memoryview(content), SOURCE, DESTINATION)


def test_a_batch_that_was_damaged_on_the_way_is_not_accepted() -> None:
    request = AppendRequest(1, SOURCE, DESTINATION, 1, 0, 0, [Entry(1, 1, EntryKind.DATA, BATCH)], 0, 0)
    content = bytearray(received(b"".join(encode_envelope(Envelope(SOURCE, DESTINATION, 1, [request]))), 9)[0][2:])
    content[-1] ^= 1
    with pytest.raises(PeerProtocolError, match="damaged"):
        decode_envelope(memoryview(content), SOURCE, DESTINATION)


@pytest.mark.parametrize("size", [-1, 0, 1, (64 << 20) + 1])
def test_a_frame_of_an_impossible_size_is_refused_before_memory_is_taken(size: int) -> None:
    with pytest.raises(ProtocolError, match="bytes between nodes"):
        received(struct.pack(">i", size) + b"xx", 6)


def test_json_frames_arrive_and_other_content_is_refused() -> None:
    [content] = received(encode_json(FrameKind.CALL, {"call": 1}), 5)
    assert decode_json(content[2:]) == {"call": 1}
    for bad in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(PeerProtocolError):
            decode_json(bad)


def test_small_entries_do_not_keep_the_memory_they_arrived_in() -> None:
    small, large = batch_of(b"x"), batch_of(b"x" * COPIED_BYTES_MAX)
    entries = [Entry(1, 1, EntryKind.DATA, small), Entry(2, 1, EntryKind.DATA, large)]
    message = AppendRequest(4, SOURCE, DESTINATION, 1, 0, 0, entries, 0, 0)
    content = b"".join(encode_envelope(Envelope(SOURCE, DESTINATION, 1, [message])))
    chunk = bytearray(content)
    (received,) = decode_envelope(memoryview(chunk)[6:], SOURCE, DESTINATION).messages
    assert isinstance(received, AppendRequest)
    assert [bytes(entry.data) for entry in received.entries] == [bytes(small), bytes(large)]
    chunk[:] = bytes(len(chunk))
    assert bytes(received.entries[0].data) == bytes(small)
    assert bytes(received.entries[1].data) == bytes(len(large)), "this one lies where it arrived"
