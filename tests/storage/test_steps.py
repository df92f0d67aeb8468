"""A power cut in every single step of each operation on files: the log is then the one before, or the one after."""

import struct
from collections.abc import Callable

import pytest

from tests.sim.disk import SimDisk
from tests.storage.machine import State
from tests.storage.world import (
    EntryKind,
    batch,
    files_of,
    open_store,
    power_cut,
    power_cut_at_every_step,
    read_all,
    rest,
    settled,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import Store, StoredVote, StreamLog

STREAM = 5


def _segments(disk: SimDisk, count: int) -> Store:
    """A stream whose first `count` segments are full; the one behind holds two entries."""
    store = open_store(disk)
    log = store.create_stream(STREAM, b"three nodes")
    for number in range(count):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000, bytes([65 + number])), sized_batch(1000)])
        log.append_new(1, EntryKind.NOOP, [b""])
        log.append_new(1, EntryKind.DATA, [sized_batch(2500)])
        rest(store)
    log.append_new(1, EntryKind.DATA, [sized_batch(900), sized_batch(900)])
    rest(store)
    return store


def _check_usable(store: Store) -> StreamLog:
    """The log can be read to its end, goes on, and survives another rest and restart."""
    log = store.streams[STREAM]
    read_all(log)
    log.append_new(log.term_at(log.last_index) + 1, EntryKind.DATA, [batch(b"more")])
    rest(store)
    assert log.durable_index == log.last_index
    return log


def _one_of(*allowed: State) -> Callable[[Store], None]:
    def check(store: Store) -> None:
        found = state_of(store.streams[STREAM])
        assert any(found.agrees_with(state) for state in allowed), f"{found.floor}+{len(found.entries)}"
        _check_usable(store)

    return check


def test_closing_a_segment() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = _segments(disk, 0)
        log = store.streams[STREAM]
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        write(store)
        states["log"] = state_of(log)
        return store

    def close(store: Store) -> None:
        while store.run_housekeeping():
            store.deliver()

    def check(store: Store) -> None:
        _one_of(states["log"])(store)

    assert power_cut_at_every_step(world, close, check) >= 8


def test_rolling_to_the_next_segment_keeps_what_was_durable_and_loses_no_middle() -> None:
    states: list[State] = []

    def world(disk: SimDisk) -> Store:
        store = _segments(disk, 0)
        log = store.streams[STREAM]
        states[:] = [state_of(log)]
        for size in (5000, 4000, 200, 6000, 300):
            log.append_new(1, EntryKind.DATA, [sized_batch(size)])
            states.append(state_of(log))
        return store

    def check(store: Store) -> None:
        _one_of(*states)(store)

    assert power_cut_at_every_step(world, lambda store: store.run_writer(), check, seeds=6) >= 10


def test_preparing_a_spare_file() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        log = store.create_stream(STREAM, b"three nodes")
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        write(store)
        states["log"] = state_of(log)
        return store

    def prepare(store: Store) -> None:
        assert store.run_housekeeping()

    def check(store: Store) -> None:
        _one_of(states["log"])(store)
        log = store.streams[STREAM]
        log.append_new(9, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
        read_all(log)

    assert power_cut_at_every_step(world, prepare, check) >= 5


def test_trimming_never_deletes_a_segment_before_the_state_that_says_so_is_durable() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = _segments(disk, 3)
        states["before"] = state_of(store.streams[STREAM])
        return store

    def trim(store: Store) -> None:
        log = store.streams[STREAM]
        log.trim(4, log.last_index)
        rest(store)

    def check(store: Store) -> None:
        log = store.streams[STREAM]
        assert log.start_offset in (0, 4)
        assert log.first_index == 1 or log.start_offset == 4, "segments are gone that the log start still names"
        _one_of(states["before"])(store)

    assert power_cut_at_every_step(world, trim, check) >= 8


def test_truncating_into_an_earlier_segment() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = _segments(disk, 3)
        states["before"] = state_of(store.streams[STREAM])
        return store

    def truncate(store: Store) -> None:
        log = store.streams[STREAM]
        log.truncate_from(3)
        log.append_new(2, EntryKind.DATA, [sized_batch(700)])
        rest(store)

    def check(store: Store) -> None:
        before, found = states["before"], state_of(store.streams[STREAM])
        if found.entries[-1].term == 2:
            assert found.entries[:-1] == before.entries[:2]
        else:
            assert found == before.prefix(len(found.entries))
            assert len(found.entries) >= 2
        _check_usable(store)

    assert power_cut_at_every_step(world, truncate, check) >= 15


def test_truncating_where_a_segment_begins_with_a_spare_file_at_hand() -> None:
    """Nothing but the removals changes the folder then: they must be durable before new entries are reported."""
    states: dict[str, State] = {}
    reported: list[int] = []

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        log = store.create_stream(STREAM, b"three nodes")
        for _ in range(3):
            log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
            rest(store)
        assert len(files_of(disk, STREAM, ".active")) == 2
        states["before"] = state_of(log)
        reported.clear()
        return store

    def truncate(store: Store) -> None:
        log = store.streams[STREAM]
        log.truncate_from(2)
        log.append_new(2, EntryKind.DATA, [sized_batch(700)])
        write(store)
        reported.append(log.durable_index)

    def check(store: Store) -> None:
        before, found = states["before"], state_of(store.streams[STREAM])
        if found.entries[-1].term == 2:
            assert found.entries[:-1] == before.entries[:1]
        else:
            assert found == before.prefix(len(found.entries))
            assert reported != [2]
        _check_usable(store)

    assert power_cut_at_every_step(world, truncate, check, seeds=6) >= 5


def test_truncating_into_a_segment_whose_closing_still_waits() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        log = store.create_stream(STREAM, b"three nodes")
        for _ in range(3):
            log.append_new(1, EntryKind.DATA, [sized_batch(2000), sized_batch(4000)])
            write(store)
        states["before"] = state_of(log)
        return store

    def truncate(store: Store) -> None:
        log = store.streams[STREAM]
        log.truncate_from(2)
        log.append_new(2, EntryKind.DATA, [sized_batch(700)])
        rest(store)

    def check(store: Store) -> None:
        before, found = states["before"], state_of(store.streams[STREAM])
        if found.entries[-1].term == 2:
            assert found.entries[:-1] == before.entries[:1]
        else:
            assert found == before.prefix(len(found.entries))
        _check_usable(store)

    assert power_cut_at_every_step(world, truncate, check) >= 20


@pytest.mark.parametrize("at_rest", [False, True])
def test_truncating_within_the_newest_segment(at_rest: bool) -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        log = store.create_stream(STREAM, b"three nodes")
        for _ in range(40):  # rows in more than one sector
            log.append_new(1, EntryKind.DATA, [sized_batch(110)])
        (settled if at_rest else write)(store)
        states["before"] = state_of(log)
        return store

    def truncate(store: Store) -> None:
        log = store.streams[STREAM]
        log.truncate_from(6)
        log.append_new(2, EntryKind.DATA, [sized_batch(110), sized_batch(330), sized_batch(110)])
        write(store)

    def check(store: Store) -> None:
        before, found = states["before"], state_of(store.streams[STREAM])
        old = [entry for entry in found.entries if entry.term == 1]
        assert old == list(before.entries[: len(old)])
        assert len(old) == 5 or (len(old) > 5 and len(found.entries) == len(old))
        _check_usable(store)

    assert power_cut_at_every_step(world, truncate, check, seeds=8) >= 5


def test_taking_over_from_another_replica() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = _segments(disk, 2)
        states["before"] = state_of(store.streams[STREAM])
        return store

    def take_over(store: Store) -> None:
        log = store.streams[STREAM]
        log.take_over(6, 4, struct.pack(">BQQQQI", 1, 500, 510, 3, 8, 3) + b"new" + b"producers")
        log.append_new(4, EntryKind.DATA, [batch(b"taken over")])
        rest(store)

    def check(store: Store) -> None:
        log = store.streams[STREAM]
        found = state_of(log)
        if log.first_index == 1:
            assert found == states["before"]
            assert log.configurations() == [(0, b"three nodes")]
            assert log.application == (0, b"")
        else:
            assert (found.floor, log.start_offset) == (6, 500)
            assert len(found.entries) <= 1
            assert log.term_at(6) == 4
            assert log.configurations() == [(3, b"new")]
            assert log.application == (8, b"producers")
            assert log.learned_start == 510
        _check_usable(store)
        rest(store)

    assert power_cut_at_every_step(world, take_over, check) >= 10


def test_creating_a_stream() -> None:
    def check(store: Store) -> None:
        if STREAM not in store.streams:
            store.create_stream(STREAM, b"three nodes")
        log = store.streams[STREAM]
        assert (log.first_index, log.last_index, log.start_offset) == (1, 0, 0)
        assert log.configurations() == [(0, b"three nodes")]
        _check_usable(store)

    def create(store: Store) -> None:
        store.create_stream(STREAM, b"three nodes")
        rest(store)

    assert power_cut_at_every_step(open_store, create, check) >= 8


def test_deleting_a_stream() -> None:
    states: dict[str, State] = {}

    def world(disk: SimDisk) -> Store:
        store = _segments(disk, 2)
        states["before"] = state_of(store.streams[STREAM])
        return store

    def delete(store: Store) -> None:
        store.delete_stream(STREAM)
        rest(store)

    def check(store: Store) -> None:
        if STREAM in store.streams:
            _one_of(states["before"])(store)
            delete(store)
        store.create_stream(STREAM, b"again")
        assert _check_usable(store).last_index == 1

    assert power_cut_at_every_step(world, delete, check) >= 10


def test_making_a_data_directory() -> None:
    def check(store: Store) -> None:
        store.create_stream(STREAM, b"")
        _check_usable(store)

    assert power_cut_at_every_step(lambda disk: disk, lambda disk: rest(open_store(disk)), check) >= 8


def test_recovering_is_itself_a_thing_that_a_power_cut_may_interrupt() -> None:
    states: list[State] = []

    def world(disk: SimDisk) -> SimDisk:
        store = _segments(disk, 1)
        log = store.streams[STREAM]
        states[:] = [state_of(log)]
        for size in (5000, 4000, 200):
            log.append_new(1, EntryKind.DATA, [sized_batch(size)])
            states.append(state_of(log))
        store.run_write()
        power_cut(disk)
        return disk

    def check(store: Store) -> None:
        _one_of(*states)(store)

    assert power_cut_at_every_step(world, lambda disk: rest(open_store(disk)), check, seeds=3) >= 10


def test_votes_keep_the_last_durable_one_through_a_power_cut_at_every_step() -> None:
    votes = [StoredVote(term, term % 3) for term in range(1, 4)]
    reported: list[StoredVote] = []

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        store.create_stream(STREAM, b"")
        rest(store)
        reported[:] = [StoredVote(0, None)]
        return store

    def vote(store: Store) -> None:
        for each in votes:
            store.save_vote(STREAM, each)
            store.run_writer()
            reported.extend(durable for _, durable in store.deliver().votes)

    def check(store: Store) -> None:
        found = store.vote(STREAM)
        position = [StoredVote(0, None), *votes].index(reported[-1])
        assert found in [StoredVote(0, None), *votes][position : position + 2]

    assert power_cut_at_every_step(world, vote, check, seeds=6) >= 6


def test_replacing_the_full_journal_of_votes_keeps_every_stream_s_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.storage.hard_states.SLOTS_MIN", 4)
    monkeypatch.setattr("tidelog.storage.hard_states.SLOTS_PER_STREAM", 2)

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        for stream in (1, 2):
            store.create_stream(stream, b"")
            store.save_vote(stream, StoredVote(1, stream))
        rest(store)
        store.save_vote(1, StoredVote(2, 7))
        write(store)
        store.save_vote(1, StoredVote(3, 8))
        write(store)  # four slots are taken
        return store

    def vote(store: Store) -> None:
        store.save_vote(2, StoredVote(9, 9))
        write(store)

    def check(store: Store) -> None:
        assert store.vote(1) == StoredVote(3, 8)
        assert store.vote(2) in (StoredVote(1, 2), StoredVote(9, 9))

    assert power_cut_at_every_step(world, vote, check) >= 4
