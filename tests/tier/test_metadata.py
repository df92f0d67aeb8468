"""The state machine of remote segments: which moves count, what is readable, what a snapshot keeps."""

from uuid import UUID

import pytest

from tests.tier.segments import remote
from tidelog.tier.errors import LayoutError
from tidelog.tier.metadata import (
    Outcome,
    RemoteLog,
    SegmentAdded,
    SegmentMoved,
    SegmentState,
    decode_event,
    encode_event,
)

STARTED, FINISHED, DELETING, DELETED = SegmentState


def with_segment(state: SegmentState) -> tuple[RemoteLog, UUID]:
    """A log with one segment that came to a state by legal moves, and lies before the log start."""
    log, segment = RemoteLog(), remote(0, 9)
    log.apply(SegmentAdded(segment, 0))
    log.move_start(10)
    ways = {STARTED: [], FINISHED: [FINISHED], DELETING: [DELETING], DELETED: [DELETING, DELETED]}
    for step in ways[state]:
        assert log.apply(SegmentMoved(segment.id, step, 1)) is Outcome.APPLIED
    return log, segment.id


def add(log: RemoteLog, first: int, last: int, *, finish: bool = True, **fields: object) -> UUID:
    segment = remote(first, last, **fields)
    assert log.apply(SegmentAdded(segment, 0)) is Outcome.APPLIED
    if finish:
        assert log.apply(SegmentMoved(segment.id, FINISHED, 1)) is Outcome.APPLIED
    return segment.id


@pytest.mark.parametrize(
    ("state", "move", "outcome"),
    [
        (STARTED, STARTED, Outcome.REPEATED),
        (STARTED, FINISHED, Outcome.APPLIED),
        (STARTED, DELETING, Outcome.APPLIED),
        (STARTED, DELETED, Outcome.REFUSED),
        (FINISHED, STARTED, Outcome.REFUSED),
        (FINISHED, FINISHED, Outcome.REPEATED),
        (FINISHED, DELETING, Outcome.APPLIED),
        (FINISHED, DELETED, Outcome.REFUSED),
        (DELETING, STARTED, Outcome.REFUSED),
        (DELETING, FINISHED, Outcome.REFUSED),
        (DELETING, DELETING, Outcome.REPEATED),
        (DELETING, DELETED, Outcome.APPLIED),
        (DELETED, STARTED, Outcome.REFUSED),
        (DELETED, FINISHED, Outcome.REFUSED),
        (DELETED, DELETING, Outcome.REFUSED),
        (DELETED, DELETED, Outcome.REPEATED),
    ],
)
def test_every_move_from_every_state(state: SegmentState, move: SegmentState, outcome: Outcome) -> None:
    log, id_ = with_segment(state)
    before = log.encode()
    assert log.apply(SegmentMoved(id_, move, 5)) is outcome
    if outcome is not Outcome.APPLIED:
        assert log.encode() == before, "a move that does not count changes nothing"


@pytest.mark.parametrize(("state", "readable"), [(STARTED, 0), (FINISHED, 1), (DELETING, 0), (DELETED, 0)])
def test_only_finished_segments_are_readable(state: SegmentState, readable: int) -> None:
    log, _ = with_segment(state)
    assert len(log.readable()) == readable
    assert (log.find(3) is not None) == bool(readable)


def test_a_segment_is_added_once_and_only_as_begun() -> None:
    log, segment = RemoteLog(), remote(0, 9)
    assert log.apply(SegmentAdded(segment, 0)) is Outcome.APPLIED
    assert log.apply(SegmentAdded(segment, 0)) is Outcome.REPEATED
    assert log.apply(SegmentAdded(remote(10, 19, state=FINISHED), 0)) is Outcome.REFUSED


def test_of_two_copies_of_the_same_records_the_first_to_finish_counts() -> None:
    log = RemoteLog()
    slow, fast = add(log, 0, 9, finish=False), add(log, 0, 5, finish=False)
    assert log.apply(SegmentMoved(fast, FINISHED, 1)) is Outcome.APPLIED
    assert log.apply(SegmentMoved(slow, FINISHED, 1)) is Outcome.REFUSED
    assert [segment.id for segment in log.readable()] == [fast]
    assert log.apply(SegmentMoved(slow, DELETING, 1)) is Outcome.APPLIED, "and the other can be cleaned up"


def test_a_readable_segment_is_deleted_only_when_the_log_start_lies_behind_it() -> None:
    log = RemoteLog()
    id_ = add(log, 0, 9)
    for start in (0, 9):
        log.move_start(start)
        assert log.apply(SegmentMoved(id_, DELETING, 1)) is Outcome.REFUSED
        assert log.find(9) is not None
    log.move_start(10)
    assert log.apply(SegmentMoved(id_, DELETING, 1)) is Outcome.APPLIED


def test_a_copy_that_was_given_up_while_its_end_was_under_way_stays() -> None:
    """A leader's proposal took too long; it then cleans up. Both are in the log, in this order."""
    log = RemoteLog()
    id_ = add(log, 0, 9, finish=False)
    assert log.apply(SegmentMoved(id_, FINISHED, 1)) is Outcome.APPLIED
    assert log.apply(SegmentMoved(id_, DELETING, 1)) is Outcome.REFUSED
    assert log.copied_until == 10
    assert log.find(0) is not None


def test_what_was_copied_is_not_copied_again_after_it_was_deleted() -> None:
    log = RemoteLog()
    id_ = add(log, 0, 9)
    log.move_start(10)
    log.apply(SegmentMoved(id_, DELETING, 1))
    log.apply(SegmentMoved(id_, DELETED, 1))
    assert len(log) == 0
    assert log.copied_until == 10
    assert not log.is_blank


def test_the_stream_begins_in_the_store_when_something_readable_is_there() -> None:
    log = RemoteLog()
    assert log.first_offset(local_start=50) == 50
    id_ = add(log, 10, 59)
    assert log.first_offset(local_start=50) == 10
    log.move_start(30)
    assert log.first_offset(local_start=50) == 30
    log.move_start(20)
    assert log.first_offset(local_start=50) == 30, "a start does not go back"
    log.move_start(60)
    log.apply(SegmentMoved(id_, DELETING, 1))
    assert log.first_offset(local_start=60) == 60


def test_a_copy_tells_where_the_log_began_so_that_no_replica_shows_an_earlier_start() -> None:
    log, segment = RemoteLog(), remote(0, 9)
    log.apply(SegmentAdded(segment, log_start=5))
    log.apply(SegmentMoved(segment.id, FINISHED, 1))
    assert log.first_offset(local_start=10) == 5


def test_lookup_by_offset_time_and_epoch() -> None:
    log = RemoteLog()
    a = add(log, 0, 9, newest_timestamp=100, epochs=((1, 0), (2, 5)))
    b = add(log, 10, 19, newest_timestamp=80, epochs=((2, 10),))
    c = add(log, 30, 39, newest_timestamp=200, epochs=((5, 30),))
    found = {offset: log.find(offset) for offset in (0, 9, 10, 19, 20, 29, 30, 39, 40)}
    assert {offset: each and each.id for offset, each in found.items()} == {
        0: a, 9: a, 10: b, 19: b, 20: None, 29: None, 30: c, 39: c, 40: None
    }  # fmt: skip
    assert [segment.id for segment in log.reaching(90)] == [a, c]
    assert [log.epoch_at(offset) for offset in (0, 4, 5, 12, 25, 33)] == [1, 1, 2, 2, None, 5]
    assert log.end_of_epoch(0) is None
    assert log.end_of_epoch(1) == (1, 5)
    assert log.end_of_epoch(2) == (2, 30)
    assert log.end_of_epoch(4) == (2, 30)
    assert log.end_of_epoch(9) == (5, 40)
    first = log.find(0)
    assert first is not None
    following = log.find_after(first)
    assert following is not None
    assert following.id == b


def test_what_lies_before_the_log_start_is_not_found_by_time() -> None:
    log = RemoteLog()
    add(log, 0, 9, newest_timestamp=100)
    later = add(log, 10, 19, newest_timestamp=100)
    log.move_start(10)
    assert [segment.id for segment in log.reaching(1)] == [later]


def test_a_snapshot_brings_everything_back() -> None:
    log = RemoteLog()
    add(log, 0, 9, epochs=((1, 0), (7, 3)))
    add(log, 10, 19)
    add(log, 20, 29, finish=False)
    log.move_start(4)
    again = RemoteLog()
    again.restore(log.encode())
    assert again.encode() == log.encode()
    assert again.readable() == log.readable()
    assert (again.start_offset, again.copied_until, len(again)) == (4, 20, 3)


def test_an_empty_snapshot_is_a_stream_that_was_never_copied() -> None:
    log = RemoteLog()
    add(log, 0, 9)
    log.restore(b"")
    assert log.is_blank


def test_events_survive_their_encoding() -> None:
    added = SegmentAdded(remote(3, 9, epochs=((1, 3), (4, 8))), log_start=2)
    moved = SegmentMoved(UUID(int=7), DELETING, 99)
    for event in (added, moved):
        assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("content", [b"", b"\x01", b"\x02\x00", b"\x01\x07", b"\x01\x01abc", b"\x01\x00" + bytes(20)])
def test_what_is_no_event_is_refused(content: bytes) -> None:
    with pytest.raises(LayoutError):
        decode_event(content)


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(LayoutError, match="version"):
        RemoteLog().restore(b"\x09" + bytes(20))


def test_leader_epochs_of_a_stream_that_was_made_again_may_fall() -> None:
    """Its new group begins to count anew."""
    log = RemoteLog()
    add(log, 0, 9, epochs=((5, 0),))
    add(log, 10, 19, epochs=((7, 10),))
    add(log, 20, 29, epochs=((1, 20), (2, 25)))
    assert log.newest_epoch() == 7
    assert [log.end_of_epoch(epoch) for epoch in (0, 1, 2, 6, 7, 9)] == [
        None, (1, 25), (2, 30), (5, 10), (7, 20), (7, 20)
    ]  # fmt: skip
