"""The file for the next segment is written in pieces, as the present one fills; and what becomes of half a file."""

import pytest

from tests.sim.disk import SimDisk
from tests.storage.world import (
    DIRECTORY,
    EntryKind,
    files_of,
    new_disk,
    open_store,
    power_cut_at_every_step,
    read_all,
    read_path,
    reopened,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import Store
from tidelog.storage.segment import ACTIVE_SUFFIX

STREAM = 5
POOL = f"{DIRECTORY}/pool"
HALF, FILE_BYTES = 4096, 16384  # of TINY: 8192 of data, 4096 of rows, 4096 of trailer


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.storage.spare.PIECE_BYTES", 4096)


def _half_full(disk: SimDisk, more: int = 100) -> Store:
    """A store with a stream whose segment is that much longer than half."""
    store = open_store(disk)
    store.create_stream(STREAM, b"three nodes")
    rest(store)
    _append(store, HALF + more)
    return store


def _five_half_full(disk: SimDisk) -> Store:
    """A store with five such streams, each with a draft of its own."""
    store = open_store(disk)
    for stream in range(1, 6):
        log = store.create_stream(stream, b"")
        rest(store)
        log.append_new(1, EntryKind.DATA, [sized_batch(HALF + 100)])
        rest(store)
    assert len(_drafts(disk)) == 5
    return store


def _append(store: Store, size: int) -> None:
    store.streams[STREAM].append_new(1, EntryKind.DATA, [sized_batch(size)])
    rest(store)


def _drafts(disk: SimDisk) -> list[int]:
    """The sizes of what is in the pool."""
    return [len(read_path(disk, f"{POOL}/{name}")) for name in disk.list_directory(POOL)]


def test_it_grows_with_the_segment_and_is_whole_before_that_is_full() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(STREAM, b"")
    rest(store)
    _append(store, HALF)
    assert _drafts(disk) == []  # half full is not more than half full
    sizes: list[int] = []
    while len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 1:
        sizes += _drafts(disk)
        _append(store, 300)
    assert sizes == sorted(sizes)
    assert set(sizes) == {4096, 8192, 12288}
    assert log.segment_count == 1
    assert _drafts(disk) == []
    spare = files_of(disk, STREAM, ACTIVE_SUFFIX)[-1]
    assert read_path(disk, spare) == bytes(FILE_BYTES)
    _append(store, 2000)
    assert log.segment_count == 2
    assert any(read_path(disk, spare)), "it is in use"


def test_a_stream_at_rest_has_nothing_written_ahead() -> None:
    disk = new_disk()
    store = _half_full(disk)
    before = _drafts(disk)
    assert before == [4096]
    for _ in range(10):
        rest(store)
    assert _drafts(disk) == before


def test_one_append_that_fills_the_segment_has_it_made_at_once() -> None:
    disk = new_disk()
    _half_full(disk, more=3500)
    assert _drafts(disk) == []
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 2


def test_what_a_segment_left_half_made_the_next_one_goes_on_with() -> None:
    disk = new_disk()
    store = _half_full(disk)
    log = store.streams[STREAM]
    log.roll()
    rest(store)
    assert _drafts(disk) == [4096]
    _append(store, HALF + 100)
    assert _drafts(disk) == [4096]
    _append(store, 1000)
    assert _drafts(disk) == [8192]
    _append(store, 2000)
    assert _drafts(disk) == []
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 2


def test_a_disk_that_fills_up_gets_half_a_file_back_and_the_next_segment_tries_again() -> None:
    disk = new_disk()
    store = _half_full(disk)
    log = store.streams[STREAM]
    log.append_new(1, EntryKind.DATA, [sized_batch(1000)])
    write(store)
    disk.space_bytes = disk.used_bytes
    assert store.run_housekeeping()
    store.deliver()
    assert _drafts(disk) == []
    disk.space_bytes = None
    _append(store, 1500)
    assert _drafts(disk) == []  # not again in this segment
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 1
    _append(store, 5000)
    assert log.segment_count == 2
    assert _drafts(disk) == [8192]


def test_a_draft_whose_room_was_given_back_is_not_begun_anew_in_its_middle() -> None:
    disk = new_disk()
    store = _half_full(disk)
    other = store.create_stream(6, b"")
    rest(store)
    other.append_new(1, EntryKind.DATA, [sized_batch(3000)])
    disk.space_bytes = disk.used_bytes
    write(store)
    assert other.full
    store.mind_space()
    while store.run_housekeeping():
        store.deliver()
    assert _drafts(disk) == []
    disk.space_bytes = None
    _append(store, 2000)
    assert _drafts(disk) == []
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 1
    assert other.durable_index == 1
    for _ in range(2):  # and the next segments have theirs again
        _append(store, 7000)
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 2


def test_the_draft_of_a_deleted_stream_stays_for_others() -> None:
    disk = new_disk()
    store = _half_full(disk)
    store.delete_stream(STREAM)
    rest(store)
    assert _drafts(disk) == [4096]
    names = disk.list_directory(POOL)
    log = store.create_stream(6, b"")
    rest(store)
    log.append_new(1, EntryKind.DATA, [sized_batch(HALF + 100)])
    rest(store)
    assert disk.list_directory(POOL) == names, "it is taken again"


def test_drafts_of_deleted_streams_are_bounded_like_all_that_is_kept() -> None:
    disk = new_disk()
    store = _five_half_full(disk)
    for stream in range(1, 6):
        store.delete_stream(stream)
        rest(store)
    assert len(_drafts(disk)) == 2


def test_after_a_restart_half_a_file_is_used_and_completed() -> None:
    disk = new_disk()
    _half_full(disk)
    store = reopened(disk)
    assert _drafts(disk) == [4096]
    _append(store, 3000)
    assert _drafts(disk) == []
    spare = files_of(disk, STREAM, ACTIVE_SUFFIX)[-1]
    assert read_path(disk, spare) == bytes(FILE_BYTES)


def test_a_restart_keeps_no_more_drafts_than_the_pool_holds() -> None:
    disk = new_disk()
    _five_half_full(disk)
    reopened(disk)
    assert len(_drafts(disk)) == 2


def test_a_power_cut_at_any_step_of_a_piece_and_of_the_last() -> None:
    def prepare(store: Store) -> None:
        assert store.run_housekeeping()

    for more in (1000, 3000):
        found: dict[str, object] = {}

        def world(disk: SimDisk, more: int = more, found: dict[str, object] = found) -> Store:
            store = _half_full(disk)
            store.streams[STREAM].append_new(1, EntryKind.DATA, [sized_batch(more)])
            write(store)
            found["log"] = state_of(store.streams[STREAM])
            return store

        def check(store: Store, found: dict[str, object] = found) -> None:
            log = store.streams[STREAM]
            assert state_of(log) == found["log"]
            for _ in range(3):
                _append(store, 5000)
            read_all(log)

        assert power_cut_at_every_step(world, prepare, check) >= 1
