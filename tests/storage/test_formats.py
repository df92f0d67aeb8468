"""Every small structure on disk reads back as it was written, and shows damage to any of its bytes."""

from collections.abc import Callable

import pytest
from crc32c import crc32c

from tests.storage.world import damage_found_by, new_disk, read_path, replace
from tidelog.raft.log import Entry, EntryKind
from tidelog.storage.errors import CorruptDataError, FormatVersionError
from tidelog.storage.hard_states import SLOT_BYTES, HardStates, StoredVote
from tidelog.storage.index_file import decode_index, encode_index
from tidelog.storage.rows import ROW_BYTES
from tidelog.storage.segment import (
    HEADER_COPY_AT,
    SETTLED_AT,
    TRAILER_BYTES,
    Identity,
    Link,
    Segment,
    SegmentShape,
    decode_header,
    decode_settled_mark,
    encode_header,
    encode_settled_mark,
)
from tidelog.storage.small_file import encode_json, read_json
from tidelog.storage.stream_state import Floor, StreamState, load_state
from tidelog.wire.batch import LENGTH_END

SHAPE = SegmentShape(1 << 16, 4096)
IDENTITY = Identity(b"0123456789abcdef", 3, 9, 1 << 40, 1 << 50, 6, 0xFEEDBEEF, Link(5, 6, 0xFFFFFFFF, 0x80000000))
STATE = StreamState(7, b"0123456789abcdef", 2, Floor(10, 3, 40), 41, 9, b"\x00three nodes\xff")


def _single_byte_damages(content: bytes) -> list[tuple[int, bytes]]:
    """(position, damaged content): each byte with one bit flipped, and each byte inverted."""
    damages = []
    for position in range(len(content)):
        for mask in (1 << position % 8, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= mask
            damages.append((position, bytes(damaged)))
    return damages


def _trailer(first: bytes = b"", copy: bytes = b"", mark: bytes = b"") -> bytes:
    trailer = bytearray(TRAILER_BYTES)
    for at, part in ((0, first), (HEADER_COPY_AT, copy), (SETTLED_AT, mark)):
        trailer[at : at + len(part)] = part
    return bytes(trailer)


def test_a_header_reads_back_from_either_copy() -> None:
    header = encode_header(IDENTITY, SHAPE)
    assert decode_header(_trailer(first=header)) == (IDENTITY, SHAPE)
    assert decode_header(_trailer(copy=header)) == (IDENTITY, SHAPE)
    assert decode_header(_trailer()) is None


def test_the_parts_of_a_trailer_lie_in_sectors_of_their_own() -> None:
    sector = 512
    header, mark = encode_header(IDENTITY, SHAPE), encode_settled_mark(1, 2)
    ends = [len(header), SETTLED_AT + len(mark), HEADER_COPY_AT + len(header)]
    assert len({at // sector for at in (0, SETTLED_AT, HEADER_COPY_AT)}) == 3
    assert [(end - 1) // sector for end in ends] == [at // sector for at in (0, SETTLED_AT, HEADER_COPY_AT)]


def test_any_damaged_byte_of_a_header_shows_and_the_copy_stands_in() -> None:
    header = encode_header(IDENTITY, SHAPE)
    for position, damaged in _single_byte_damages(header):
        assert decode_header(_trailer(first=damaged)) is None, f"byte {position}"
        assert decode_header(_trailer(first=damaged, copy=header)) == (IDENTITY, SHAPE), f"byte {position}"


def test_any_damaged_byte_of_a_settled_mark_shows() -> None:
    mark = encode_settled_mark(12345, 0xFFFFFFFF)
    assert decode_settled_mark(_trailer(mark=mark)) == (12345, 0xFFFFFFFF)
    assert decode_settled_mark(_trailer()) is None
    for position, damaged in _single_byte_damages(mark):
        assert decode_settled_mark(_trailer(mark=damaged)) is None, f"byte {position}"


def _closed_segment() -> tuple[Segment, bytes]:
    segment = Segment(IDENTITY, SHAPE)
    for term, kind, records in ((6, 1, 0), (6, 0, 3), (7, 0, 1), (9, 2, 0)):
        entry = Entry(segment.last_index + 1, term, EntryKind(kind), b"")
        facts = (100 + records - LENGTH_END, 7, records - 1, 1000 * records - 1)
        assert segment.extend([(entry, b"", facts)], 0, 2) == 1
    assert segment.rows is not None
    return segment, bytes(segment.rows)


def test_an_index_file_describes_its_segment() -> None:
    segment, rows = _closed_segment()
    content = encode_index(segment, rows)
    described = decode_index(content, SHAPE)
    assert described is not None
    for name in ("chain", "controls", "count", "identity", "length", "newest_timestamp", "next_offset", "term_starts"):
        assert getattr(described, name) == getattr(segment, name), name
    assert described.rows is None
    assert described.link == segment.link
    assert rows in content


def test_any_damaged_byte_of_an_index_file_shows_and_so_does_any_missing_end() -> None:
    segment, rows = _closed_segment()
    content = encode_index(segment, rows)
    for position, damaged in _single_byte_damages(content):
        assert decode_index(damaged, SHAPE) is None, f"byte {position}"
    for length in range(len(content)):
        assert decode_index(content[:length], SHAPE) is None, f"cut to {length} bytes"
    assert decode_index(content + b"\0", SHAPE) is None


def test_an_index_file_holds_only_the_rows_that_a_cut_left() -> None:
    segment, rows = _closed_segment()
    segment.cut(rows, 2)
    described = decode_index(encode_index(segment, rows), SHAPE)
    assert described is not None
    assert (described.count, described.next_offset, described.controls) == (2, IDENTITY.base_offset + 3, [0])
    assert len(encode_index(segment, rows)) == len(encode_index(*_closed_segment())) - 2 * ROW_BYTES - 2 * 20 - 4


def test_a_stream_state_reads_back() -> None:
    disk = new_disk()
    disk.make_directory("/s")
    replace(disk, "/s/stream.json", STATE.encode())
    assert load_state(disk, "/s") == STATE


@pytest.mark.parametrize("damage", ["bytes", "cuts"])
def test_any_damage_to_a_stream_state_shows(damage: str) -> None:
    disk = new_disk()
    disk.make_directory("/s")
    content = STATE.encode()
    damages = _single_byte_damages(content) if damage == "bytes" else [(n, content[:n]) for n in range(len(content))]
    for position, damaged in damages:
        replace(disk, "/s/stream.json", damaged)
        assert damage_found_by(lambda: load_state(disk, "/s")), f"byte {position}"


def test_a_stream_state_of_another_format_is_refused_by_name() -> None:
    disk = new_disk()
    disk.make_directory("/s")
    line = STATE.encode().partition(b"\n")[0].replace(b'"format": 1', b'"format": 2')
    replace(disk, "/s/stream.json", b"%s\n%08x\n" % (line, crc32c(line)))
    with pytest.raises(FormatVersionError, match=r"/s/stream\.json has format 2; this version reads 1"):
        load_state(disk, "/s")


def test_a_small_file_says_which_file_is_damaged() -> None:
    disk = new_disk()
    disk.make_directory("/s")
    replace(disk, "/s/node.json", encode_json({"format": 1})[:-2])
    with pytest.raises(CorruptDataError, match=r"/s/node\.json, byte 0: .*checksum"):
        read_json(disk, "/s/node.json")


def _votes_file() -> tuple[Callable[[bytes], dict[int, StoredVote]], bytes]:
    """What loads a journal from its bytes, and a journal: of three votes the first two are known to be durable."""
    disk = new_disk()
    disk.make_directory("/n")
    journal = HardStates(disk, "/n", new=True)
    for stream, vote in ((1, StoredVote(5, 2)), (2, StoredVote(6, None)), (3, StoredVote(7, 1))):
        journal.write({stream: vote})
    journal.close()

    def load(content: bytes) -> dict[int, StoredVote]:
        replace(disk, "/n/votes", content)
        return HardStates(disk, "/n", new=False).states()

    return load, read_path(disk, "/n/votes")


def test_votes_read_back() -> None:
    load, content = _votes_file()
    assert load(content) == {1: StoredVote(5, 2), 2: StoredVote(6, None), 3: StoredVote(7, 1)}


def test_any_damaged_byte_of_votes_that_were_durable_stops_the_node() -> None:
    load, content = _votes_file()
    magic_and_slots = 16
    known = [*range(magic_and_slots), *range(SLOT_BYTES, 3 * SLOT_BYTES)]
    for position in known:
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        found = damage_found_by(lambda content=bytes(damaged): load(content))
        assert found, f"byte {position}"
        assert found.path == "/n/votes"


def test_a_durable_vote_that_is_zeroed_stops_the_node() -> None:
    load, content = _votes_file()
    damaged = bytearray(content)
    damaged[SLOT_BYTES : 2 * SLOT_BYTES] = bytes(SLOT_BYTES)
    with pytest.raises(CorruptDataError, match="slot 0 is damaged"):
        load(bytes(damaged))


@pytest.mark.parametrize("length", [0, 7, 10, 15, 31, 32, 64, 65535])
def test_votes_that_are_cut_short_stop_the_node(length: int) -> None:
    load, content = _votes_file()
    with pytest.raises(CorruptDataError, match="/n/votes"):
        load(content[:length])


def test_a_vote_that_was_never_finished_is_dropped_and_the_others_stay() -> None:
    load, content = _votes_file()
    for position in range(3 * SLOT_BYTES, 4 * SLOT_BYTES):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        assert load(bytes(damaged)) == {1: StoredVote(5, 2), 2: StoredVote(6, None)}, f"byte {position}"
