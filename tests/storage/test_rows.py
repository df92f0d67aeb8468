"""The index's rows: lookup by index, offset, time and position, and the chain that ties each row to those before it."""

import pytest

from tidelog.raft.log import Entry, EntryKind
from tidelog.storage.rows import (
    ROW_BYTES,
    Row,
    chain_of,
    pack_row,
    row_at,
    row_of_offset,
    row_of_position,
    row_of_timestamp,
)
from tidelog.storage.segment import NO_LINK, Identity, Segment, SegmentShape
from tidelog.wire.batch import LENGTH_END

SHAPE = SegmentShape(1 << 16, 4096)
OWN = 1


def _segment(*entries: tuple[int, int, int], base_offset: int = 0) -> Segment:
    """(records, timestamp, kind) an entry; each takes 100 bytes."""
    segment = Segment(Identity(bytes(16), 0, 0, 1, base_offset, 0, 77, NO_LINK), SHAPE)
    for records, timestamp, kind in entries:
        assert _append(segment, 100, records, timestamp, kind=kind, crc=0xC0FFEE)
    return segment


def _append(
    segment: Segment, size: int, records: int, timestamp: int = 5, *, term: int = 1, crc: int = 7, kind: int = 0
) -> bool:
    """Whether there was room."""
    entry = Entry(segment.last_index + 1, term, EntryKind(kind), b"")
    facts = (size - LENGTH_END, crc, records - 1, timestamp)
    return segment.extend([(entry, b"", facts)], 0, 0) == 1


def _rows(segment: Segment) -> bytes:
    assert segment.rows is not None
    return bytes(segment.rows)


DATA_ONLY = [(1, 5, 0), (3, 5, 0), (2, 5, 0)]
OWN_FIRST = [(0, -1, OWN), (2, 5, 0), (1, 5, 0)]
OWN_IN_A_ROW = [(1, 5, 0), (0, -1, OWN), (0, -1, OWN), (0, -1, OWN), (2, 5, 0)]
OWN_LAST = [(2, 5, 0), (0, -1, OWN), (0, -1, OWN)]


@pytest.mark.parametrize(
    ("entries", "row_of_each_offset"),
    [
        (DATA_ONLY, [0, 1, 1, 1, 2, 2]),
        (OWN_FIRST, [1, 1, 2]),
        (OWN_IN_A_ROW, [0, 4, 4]),
        (OWN_LAST, [0, 0]),
    ],
)
def test_an_offset_is_found_in_the_entry_that_holds_it(
    entries: list[tuple[int, int, int]], row_of_each_offset: list[int]
) -> None:
    segment = _segment(*entries)
    rows = _rows(segment)
    assert [row_of_offset(rows, segment.count, offset) for offset in range(segment.next_offset)] == row_of_each_offset


@pytest.mark.parametrize(
    ("timestamps", "wanted", "row"),
    [
        ([10, 20, 30], 10, 0),
        ([10, 20, 30], 11, 1),
        ([10, 20, 30], 30, 2),
        ([10, 20, 30], 31, 3),  # none reaches
        ([10, 30, 20, 40], 20, 1),  # time ran backwards: the first that reaches, not the nearest
        ([10, 30, 20, 40], 31, 3),
        ([30, 10, 20], 15, 0),
        ([20, 20, 20], 20, 0),
        ([10, 20, 30], -5, 0),
    ],
)
def test_a_time_is_reached_first_by_the_entry_that_raised_the_maximum(
    timestamps: list[int], wanted: int, row: int
) -> None:
    segment = _segment(*[(1, timestamp, 0) for timestamp in timestamps])
    assert row_of_timestamp(_rows(segment), segment.count, wanted) == row


def test_an_entry_of_our_own_never_reaches_a_time() -> None:
    segment = _segment((0, -1, OWN), (1, 7, 0), (0, -1, OWN), (1, 9, 0))
    rows = _rows(segment)
    assert [row_of_timestamp(rows, 4, time) for time in (0, 7, 8, 9, 10)] == [1, 1, 3, 3, 4]


@pytest.mark.parametrize(("position", "row"), [(0, 0), (99, 0), (100, 1), (299, 2), (300, 2), (9999, 2)])
def test_a_position_belongs_to_the_last_row_that_begins_at_or_before_it(position: int, row: int) -> None:
    segment = _segment(*DATA_ONLY)
    assert row_of_position(_rows(segment), segment.count, position) == row


def test_an_empty_segment_has_no_row_for_anything() -> None:
    assert row_of_offset(b"", 0, 0) == -1
    assert row_of_timestamp(b"", 0, 0) == 0
    assert row_of_position(b"", 0, 0) == -1


def test_a_row_keeps_what_was_packed_into_it() -> None:
    packed, chain = pack_row(1, 0xFFFFFFFF, 0xFFFFFFFE, -1, 0x7FFFFFFF, 0xFFFFFFFD, 3, 0xFFFFFF)
    assert len(packed) == ROW_BYTES
    assert row_at(packed, 0) == Row(0xFFFFFFFF, 0xFFFFFFFE, -1, 0x7FFFFFFF, 0xFFFFFFFD, 3, 0xFFFFFF, chain)


def test_the_chain_covers_every_bit_of_a_row_but_its_note_of_what_was_synced() -> None:
    packed, chain = pack_row(99, 1, 2, 3, 4, 5, 1, 6)
    noted = {25, 26, 27}  # `synced`: a note of what was durable, which a row made again does not have
    for byte in range(ROW_BYTES):
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[byte] ^= 1 << bit
            genuine = chain_of(99, damaged, 0) == row_at(damaged, 0).chain
            assert genuine == (byte in noted), f"byte {byte}, bit {bit}"
    assert chain_of(99, packed, 0) == chain


def test_a_row_is_genuine_only_behind_the_rows_it_was_written_behind() -> None:
    one, two = _segment(*DATA_ONLY), _segment((2, 5, 0), *DATA_ONLY[1:])
    assert row_at(_rows(one), 2).chain != row_at(_rows(two), 2).chain


def test_the_same_entries_in_another_use_of_a_file_have_another_chain() -> None:
    def of_salt(salt: int) -> Segment:
        segment = Segment(Identity(bytes(16), 0, 0, 1, 0, 0, salt, NO_LINK), SHAPE)
        assert _append(segment, 100, 1)
        return segment

    assert of_salt(1).chain != of_salt(2).chain


def test_a_cut_segment_is_the_segment_that_never_had_more() -> None:
    entries = [(1, 5, 0), (0, -1, OWN), (3, 4, 0), (0, -1, OWN), (2, 9, 0)]
    for count in range(len(entries) + 1):
        cut, short = _segment(*entries), _segment(*entries[:count])
        cut.cut(_rows(cut), count)
        for name in ("chain", "controls", "count", "length", "newest_timestamp", "next_offset", "rows", "term_starts"):
            assert getattr(cut, name) == getattr(short, name), f"{name} after a cut to {count}"


def test_a_cut_forgets_the_terms_that_began_behind_it() -> None:
    segment = _segment()
    for term in (1, 1, 2, 5):
        assert _append(segment, 100, 1, term=term)
    assert segment.term_starts == [(1, 1, 0), (2, 3, 2), (5, 4, 3)]
    segment.cut(_rows(segment), 2)
    assert segment.term_starts == [(1, 1, 0)]
    assert segment.last_term == 1


def test_a_segment_is_full_when_data_rows_or_offsets_run_out() -> None:
    assert _append(_segment(), 1 << 16, 1)
    segment = _segment()
    assert not _append(segment, (1 << 16) + 1, 1)
    assert (segment.count, segment.rows) == (0, b"")
    for _ in range(128):
        assert _append(segment, 61, 1)
    assert not _append(segment, 61, 1)  # 128 rows fill 4096 bytes

    vast = _segment()
    for _ in range(2):
        assert _append(vast, 100, 1 << 31)
    assert not _append(vast, 100, 1)  # the next one's offset is 2^32 behind the segment's


def test_of_batches_that_come_together_a_segment_takes_those_that_fit() -> None:
    entries = [Entry(index, 1, EntryKind.DATA, b"") for index in range(1, 6)]
    placed = [(entry, b"", ((1 << 14) - LENGTH_END, 7, 0, 5)) for entry in entries]
    segment, one_by_one = _segment(), _segment()
    assert segment.extend(placed, 0, 0) == 4
    assert segment.extend(placed, 4, 0) == 0
    assert [_append(one_by_one, 1 << 14, 1) for _ in range(5)] == [True] * 4 + [False]
    assert (_rows(segment), segment.length, segment.chain) == (_rows(one_by_one), 1 << 16, one_by_one.chain)


@pytest.mark.parametrize("parts", [(0, 4096), (4096, 0), (4095, 4096), (4096, 5000), (1 << 32, 4096), (4096, 1 << 29)])
def test_a_shape_that_the_rows_cannot_describe_is_refused(parts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        SegmentShape(*parts)
