"""Filling a blank replica from another one's closed segments: complete and checked, or not there at all."""

import dataclasses
import json
import random
from contextlib import suppress

import pytest

from tests.sim.disk import SimDisk, SimulatedCrash
from tests.storage.world import (
    DIRECTORY,
    EntryKind,
    batch,
    files_of,
    folder_of,
    killed,
    new_disk,
    open_store,
    overwrite,
    power_cut,
    read_all,
    read_path,
    reopened,
    rest,
    sized_batch,
    state_of,
)
from tidelog.storage import (
    Filling,
    Manifest,
    StorageError,
    Store,
    StreamLog,
    SyncFailedError,
    TransferError,
    manifest_of,
    segment_piece,
)
from tidelog.storage import transfer as transfer_module

STREAM = 5


def _source(seed: int = 1, segments: int = 4) -> tuple[Store, StreamLog]:
    """A log of several closed segments, with terms and memberships in them, and more entries in the active one."""
    store = open_store(new_disk(seed), seed=seed)
    log = store.create_stream(STREAM, b"base members")
    rng = random.Random(7)
    for number in range(segments):
        log.append_new(1 + number, EntryKind.NOOP, [b""])
        if number == 1:
            log.append_new(1 + number, EntryKind.CONFIGURATION, [b"second members"])
        for _ in range(5):
            log.append_new(1 + number, EntryKind.DATA, [batch(rng.randbytes(rng.randrange(10, 900)), records=2)])
        log.roll()
    log.append_new(1 + segments, EntryKind.DATA, [batch(b"in the active one")])
    rest(store)
    log.save_application(log.last_index, b"producers")
    rest(store)
    return store, log


def _manifest(log: StreamLog) -> Manifest:
    """As it comes over the network."""
    return Manifest.from_json(json.loads(json.dumps(manifest_of(log, log.last_index).to_json())))


def _pull(filling: Filling, source: StreamLog, pieces_max: int = 10**6, size: int = 700) -> int:
    """Take pieces until nothing is wanted or `pieces_max` have come; returns how many bytes those were."""
    taken = 0
    for _ in range(pieces_max):
        wanted = filling.wanted()
        if wanted is None:
            break
        first_index, position, length = wanted
        data = segment_piece(source, first_index, 0, position, min(size, length)).read()
        filling.take(first_index, position, data)
        taken += len(data)
    return taken


def _fill(store: Store, source: StreamLog) -> StreamLog:
    filling = store.fill_stream(_manifest(source))
    filling.begin()
    _pull(filling, source)
    filling.finish()
    return store.adopt_stream(filling)


def _catch_up(log: StreamLog, source: StreamLog) -> None:
    while log.last_index < source.last_index:
        log.append_received(source.entries(log.last_index + 1, source.last_index, 5000))


def _filling_files(disk: SimDisk) -> list[str]:
    return disk.list_directory(f"{DIRECTORY}/filling/{STREAM}")


def test_a_filled_stream_is_an_ordinary_one() -> None:
    source_store, source = _source()
    disk = new_disk()
    store = open_store(disk)
    log = _fill(store, source)
    manifest = _manifest(source)
    assert len(manifest.segments) == 4
    assert log.last_index == log.durable_index == manifest.segments[-1].last_index == source.last_index - 1
    assert log.configurations() == source.configurations() == [(0, b"base members"), (8, b"second members")]
    assert log.application == source.application == (source.last_index, b"producers")
    assert store.fillings == []
    rest(store)
    _catch_up(log, source)
    rest(store)
    assert state_of(log) == state_of(source)
    assert read_all(log) == read_all(source)
    for name in (".log",):
        assert [read_path(disk, path) for path in files_of(disk, STREAM, name)] == [
            read_path(source_store._disk, path)  # pyright: ignore[reportPrivateUsage]
            for path in files_of(source_store._disk, STREAM, name)  # pyright: ignore[reportPrivateUsage]
        ]
    for _ in range(2):
        store = reopened(disk)
        log = store.streams[STREAM]
        assert state_of(log) == state_of(source)
        assert log.application == (source.last_index, b"producers")
        assert not [name for name in disk.list_directory(folder_of(STREAM)) if name.endswith(".tmp")]
    log.trim(21, log.last_index)
    rest(store)
    log.truncate_from(log.first_index + 1)
    rest(store)
    assert log.durable_index == log.last_index


def test_the_index_of_a_filled_segment_is_made_again_when_it_is_lost() -> None:
    _, source = _source()
    disk = new_disk()
    store = open_store(disk)
    _catch_up(_fill(store, source), source)
    rest(store)
    for path in files_of(disk, STREAM, ".index"):
        overwrite(disk, path, 100, b"\xff\xff")
    assert state_of(reopened(disk).streams[STREAM]) == state_of(source)


def test_only_committed_entries_are_given_out() -> None:
    _, source = _source()
    ends = [segment.last_index for segment in manifest_of(source, source.last_index).segments]
    assert [len(manifest_of(source, index).segments) for index in (0, ends[0] - 1, ends[0], ends[2], 10**6)] == [
        *(0, 0, 1, 3, 4)
    ]


def test_a_segment_whose_closing_is_not_finished_is_not_given_out() -> None:
    store = open_store(new_disk())
    log = store.create_stream(STREAM, b"")
    log.append_new(1, EntryKind.DATA, [batch()])
    log.roll()
    store.run_writer()
    store.deliver()
    assert manifest_of(log, 1).segments == ()
    with pytest.raises(TransferError, match="no closed segment at index 1"):
        segment_piece(log, 1, 0, 0, 100)
    rest(store)
    assert len(manifest_of(log, 1).segments) == 1


def test_pieces_are_the_files_bytes() -> None:
    store, source = _source()
    segment = manifest_of(source, source.last_index).segments[1]
    disk = store._disk  # pyright: ignore[reportPrivateUsage]
    for part, suffix, length in ((0, ".log", segment.length), (1, ".index", segment.index_length)):
        content = read_path(disk, f"{folder_of(STREAM)}/{segment.name}{suffix}")
        assert len(content) == length
        assert segment_piece(source, segment.first_index, part, 0, 1 << 20).read() == content
        assert segment_piece(source, segment.first_index, part, 10, 20).read() == content[10:30]
        assert segment_piece(source, segment.first_index, part, length - 3, 20).read() == content[-3:]
        assert segment_piece(source, segment.first_index, part, length + 3, 20).read() == b""
    for part, position, length in ((2, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, (1 << 20) + 1)):
        with pytest.raises(TransferError):
            segment_piece(source, segment.first_index, part, position, length)


def test_a_piece_that_was_found_can_be_read_though_its_segment_is_trimmed_and_its_file_wanted() -> None:
    store, source = _source()
    segment = manifest_of(source, source.last_index).segments[0]
    content = segment_piece(source, 1, 0, 0, 1 << 20).read()
    index = segment_piece(source, 1, 1, 0, 1 << 20)
    piece = segment_piece(source, 1, 0, 0, 1 << 20)
    source.trim(segment.next_offset, source.last_index)
    rest(store)
    for _ in range(10):  # whatever becomes of files that are free
        source.append_new(9, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    assert piece.read() == content
    assert len(index.read()) == segment.index_length
    with pytest.raises(TransferError, match=r"no closed segment at index 1 \(any more\)"):
        segment_piece(source, 1, 0, 0, 100)


# Crashes


def _resumed(disk: SimDisk, source: StreamLog) -> tuple[Store, Filling | None]:
    store = open_store(disk)
    if STREAM in store.streams:
        return store, None
    filling = store.fill_stream(_manifest(source))
    filling.begin()
    return store, filling


@pytest.mark.parametrize("dies", ["power cut", "killed"])
def test_death_at_every_step_leaves_a_filling_that_goes_on_or_the_whole_stream(dies: str) -> None:
    _, source = _source(segments=2)
    steps = 0
    whole_before = 0
    while True:
        for seed in range(3):
            disk = new_disk(100 * steps + seed)
            store = open_store(disk)
            (disk.crash_after if dies == "power cut" else disk.kill_after)(steps)
            died = False
            try:
                _fill(store, source)
                disk.disarm()
            except SimulatedCrash:
                died = True
            if dies == "power cut":
                power_cut(disk)
            else:
                killed(disk)
            store, filling = _resumed(disk, source)
            if filling is not None:
                assert died
                assert store.streams == {}
                _pull(filling, source)
                filling.finish()
                store.adopt_stream(filling)
            elif died:
                whole_before += 1
            log = store.streams[STREAM]
            assert log.configurations() == source.configurations()
            assert log.application == source.application
            _catch_up(log, source)
            rest(store)
            power_cut(disk)
            store = open_store(disk)
            assert state_of(store.streams[STREAM]) == state_of(source)
            assert store.fillings == []
        if not died:
            break
        steps += 1
    assert steps > 20
    assert whole_before > 0


def test_a_filling_goes_on_where_it_was() -> None:
    _, source = _source()
    total = _manifest(source).length
    disk = new_disk()
    store = open_store(disk)
    filling = store.fill_stream(_manifest(source))
    filling.begin()
    _pull(filling, source, pieces_max=12)
    before = filling.filled_bytes
    assert 0 < before < total
    killed(disk)
    store, filling = _resumed(disk, source)
    assert filling is not None
    assert store.fillings == [STREAM]
    assert filling.filled_bytes == before
    assert _pull(filling, source) == total - before
    filling.finish()
    assert state_of(store.adopt_stream(filling)).entries == state_of(source).entries[:-1]


def test_a_source_that_trims_meanwhile_costs_what_it_trimmed() -> None:
    source_store, source = _source()
    disk = new_disk()
    store = open_store(disk)
    filling = store.fill_stream(_manifest(source))
    filling.begin()
    segments = filling.manifest.segments
    while filling.wanted() and filling.wanted()[0] < segments[2].first_index:  # pyright: ignore[reportOptionalSubscript]
        _pull(filling, source, pieces_max=1)
    source.trim(segments[0].next_offset, source.last_index)
    rest(source_store)
    filling.close()
    filling = store.fill_stream(_manifest(source))
    filling.begin()
    assert filling.filled_bytes == segments[1].length
    assert _pull(filling, source) == segments[2].length + segments[3].length
    filling.finish()
    log = store.adopt_stream(filling)
    _catch_up(log, source)
    rest(store)
    assert log.start_offset == segments[0].next_offset
    assert log.configurations() == source.configurations()
    assert state_of(reopened(disk).streams[STREAM]) == state_of(source)


def test_another_source_with_the_same_segments_goes_on_where_the_first_stopped() -> None:
    _, first = _source(seed=1)
    _, second = _source(seed=2)
    assert _manifest(first).segments[0].salt != _manifest(second).segments[0].salt
    disk = new_disk()
    store = open_store(disk)
    filling = store.fill_stream(_manifest(first))
    filling.begin()
    while filling.wanted()[0] == 1 or filling.wanted()[1] == 0:  # type: ignore[index] # pyright: ignore[reportOptionalSubscript]
        _pull(filling, first, pieces_max=1)
    before = filling.filled_bytes
    assert before > _manifest(first).segments[0].length
    filling.close()
    filling = store.fill_stream(_manifest(second))
    filling.begin()
    assert filling.filled_bytes == before
    _pull(filling, second)
    filling.finish()
    log = store.adopt_stream(filling)
    _catch_up(log, second)
    rest(store)
    assert state_of(reopened(disk).streams[STREAM]) == state_of(first)


def test_another_source_with_other_segments_begins_anew_where_they_differ() -> None:
    _, first = _source(seed=1)
    other_store = open_store(new_disk(2), seed=2)
    other = other_store.create_stream(STREAM, b"base members")
    for entry in first.entries(1, 6, 10**6) + first.entries(7, 9, 10**6):  # type: ignore[operator]
        other.append_received([entry])
        if entry.index == 6:
            other.roll()
    other.roll()
    _catch_up(other, first)
    other.roll()
    rest(other_store)
    disk = new_disk()
    store = open_store(disk)
    filling = store.fill_stream(_manifest(first))
    filling.begin()
    _pull(filling, first)
    filling.close()
    filling = store.fill_stream(_manifest(other))
    filling.begin()
    assert filling.filled_bytes == _manifest(first).segments[0].length
    _pull(filling, other)
    filling.finish()
    assert state_of(store.adopt_stream(filling)) == state_of(other) == state_of(first)


def test_an_empty_list_makes_a_stream_that_begins_behind_the_floor() -> None:
    source_store, source = _source()
    source.trim(source.next_offset - 1, source.last_index)
    rest(source_store)
    manifest = _manifest(source)
    assert manifest.segments == ()
    disk = new_disk()
    store = open_store(disk)
    log = _fill(store, source)
    assert (log.first_index, log.last_index) == (source.first_index, source.first_index - 1)
    assert log.configurations() == source.configurations()
    _catch_up(log, source)
    rest(store)
    assert state_of(reopened(disk).streams[STREAM]) == state_of(source)


def test_the_log_start_is_the_source_s_as_far_as_it_is_filled() -> None:
    source_store, source = _source()
    end = _manifest(source).segments[-1].next_offset
    source.trim(5, source.last_index)
    rest(source_store)
    filled = _fill(open_store(new_disk()), source)
    assert (filled.start_offset, filled.learned_start) == (5, 5)
    manifest = _manifest(source)
    beyond = Manifest.from_json({**manifest.to_json(), "start_offset": end + 1})
    store = open_store(new_disk())
    filling = store.fill_stream(beyond)
    filling.begin()
    _pull(filling, source)
    filling.finish()
    log = store.adopt_stream(filling)
    assert (log.start_offset, log.learned_start) == (end, end + 1)
    rest(store)
    log.trim(min(log.learned_start, log.next_offset), log.last_index)
    assert log.start_offset == end
    _catch_up(log, source)
    rest(store)
    log.trim(min(log.learned_start, log.next_offset), log.last_index)
    assert log.start_offset == end + 1


def test_a_membership_that_is_newer_than_what_is_filled_stays_the_base() -> None:
    """The segments' own ones may give this replica a vote that it has lost with its disk."""
    _, source = _source()
    newer = source.last_index
    learned = dataclasses.replace(_manifest(source), configuration_index=newer, configuration=b"without me")
    disk = new_disk()
    store = open_store(disk)
    filling = store.fill_stream(learned)
    filling.begin()
    _pull(filling, source)
    filling.finish()
    log = store.adopt_stream(filling)
    assert log.configurations() == [(newer, b"without me")]
    log.append_new(9, EntryKind.CONFIGURATION, [b"of a leader that is none any more"])  # at `newer` itself
    assert log.configurations() == [(newer, b"without me")]
    log.truncate_from(newer)
    assert log.configurations() == [(newer, b"without me")]
    _catch_up(log, source)
    log.append_new(9, EntryKind.CONFIGURATION, [b"with me"])
    rest(store)
    log.trim(21, newer)
    rest(store)
    assert log.first_index > 8
    for each in (log, reopened(disk).streams[STREAM]):
        assert each.configurations() == [(newer, b"without me"), (newer + 1, b"with me")]
        assert each.state().configuration_index == newer


# What does not fit


def _begun(source: StreamLog, disk: SimDisk | None = None) -> Filling:
    filling = open_store(disk or new_disk()).fill_stream(_manifest(source))
    filling.begin()
    return filling


def test_a_damaged_piece_is_refused_and_wanted_again() -> None:
    _, source = _source()
    length = _manifest(source).segments[0].length
    content = segment_piece(source, 1, 0, 0, length).read()
    for position in range(0, length, 3):
        filling = _begun(source)
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(TransferError):
            filling.take(1, 0, bytes(damaged))
        if not filling.ready:
            filling.begin()  # every batch was intact, but not those that the source names
        assert filling.wanted() == (1, 0, length)
        filling.take(1, 0, content)
        _pull(filling, source)
        filling.finish()


def test_an_epoch_that_no_checksum_covers_is_caught_by_the_chain() -> None:
    """The last batch of a term may get a later one's epoch without breaking any order."""
    _, source = _source()
    second = _manifest(source).segments[1]
    filling = _begun(source)
    while filling.wanted()[0] == 1:  # type: ignore[index] # pyright: ignore[reportOptionalSubscript]
        _pull(filling, source, pieces_max=1)
    content = bytearray(segment_piece(source, second.first_index, 0, 0, second.length).read())
    last = 0
    while (size := 12 + int.from_bytes(content[last + 8 : last + 12], "big")) + last < len(content):
        last += size
    content[last + 12 : last + 16] = (2 + 1).to_bytes(4, "big")
    with pytest.raises(TransferError, match="not the one that its source names"):
        filling.take(second.first_index, 0, bytes(content))
    with pytest.raises(StorageError, match="begin it again"):
        filling.wanted()
    filling.begin()
    assert filling.wanted() == (second.first_index, 0, second.length)


def test_batches_that_fit_but_give_another_chain_are_refused() -> None:
    _, source = _source()
    manifest = _manifest(source)
    first = dataclasses.replace(manifest.segments[0], chain=manifest.segments[0].chain ^ 1)
    filling = open_store(new_disk()).fill_stream(dataclasses.replace(manifest, segments=(first,)))
    filling.begin()
    with pytest.raises(TransferError, match="not the one that its source names"):
        _pull(filling, source)
    assert not filling.ready


def test_pieces_that_nobody_asked_for_are_refused() -> None:
    _, source = _source()
    content = segment_piece(source, 1, 0, 0, 1 << 20).read()
    filling = _begun(source)
    for first_index, position, data in ((2, 0, content), (1, 1, content[1:]), (1, 0, b""), (1, 0, content + b"x")):
        with pytest.raises(TransferError):
            filling.take(first_index, position, data)
    filling.take(1, 0, content[:1000])
    with pytest.raises(TransferError):
        filling.take(1, 0, content)
    filling.take(1, 1000, content[1000:])


def test_lists_with_holes_are_refused() -> None:
    _, source = _source()
    good = _manifest(source).to_json()
    for change in (
        {"segments": good["segments"][1:]},
        {"segments": [good["segments"][0], good["segments"][2]]},
        {"segments": [{**good["segments"][0], "base_offset": 1}]},
        {"segments": [{**good["segments"][0], "last_index": 0}]},
        {"segments": [{**good["segments"][0], "length": 0}]},
        {"segments": [{**good["segments"][0], "last_term": -1}]},
        {"segments": [{**good["segments"][0], "next_offset": -1}]},
        {"floor": {"index": 1, "term": 0, "offset": 0}},
        {"floor": {}},
        {"configuration": "zz"},
    ):
        with pytest.raises(TransferError):
            Manifest.from_json({**good, **change})


def test_nothing_is_finished_before_it_is_complete_or_over_a_stream_that_is_there() -> None:
    _, source = _source()
    store = open_store(new_disk())
    filling = store.fill_stream(_manifest(source))
    with pytest.raises(StorageError, match="begin it again"):
        filling.finish()
    filling.begin()
    with pytest.raises(StorageError, match="is not filled yet"):
        filling.finish()
    with pytest.raises(StorageError, match="is not filled yet"):
        store.adopt_stream(filling)
    _pull(filling, source)
    store.create_stream(STREAM, b"")
    rest(store)
    with pytest.raises(StorageError, match="is there already"):
        filling.finish()
    with pytest.raises(StorageError, match="is there already"):
        store.fill_stream(_manifest(source))


def test_a_stream_that_was_finished_and_not_adopted_is_filled_again() -> None:
    _, source = _source()
    disk = new_disk()
    store = open_store(disk)
    filling = store.fill_stream(_manifest(source))
    filling.begin()
    _pull(filling, source)
    filling.finish()
    with pytest.raises(StorageError, match="still being deleted"):
        store.fill_stream(_manifest(source))
    rest(store)
    store.deliver()
    assert store.deleting == set()
    assert not disk.exists(folder_of(STREAM))
    assert _fill(store, source).last_index == source.last_index - 1


def test_a_full_disk_stops_the_filling_where_it_is() -> None:
    _, source = _source()
    for left in range(0, 4096 * 6, 512):
        disk = new_disk()
        store = open_store(disk)
        filling = store.fill_stream(_manifest(source))
        filling.begin()
        disk.space_bytes = disk.used_bytes + left
        for _ in range(3):
            with suppress(OSError, StorageError):
                _pull(filling, source)
            with suppress(OSError):
                if not filling.ready:
                    filling.begin()
        disk.space_bytes = None
        if not filling.ready:
            filling.begin()
        wanted = filling.wanted()
        assert wanted is not None
        _pull(filling, source)
        filling.finish()
        assert state_of(store.adopt_stream(filling)).entries == state_of(source).entries[:-1]


def test_a_failed_sync_is_no_reason_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "SYNC_BYTES", 2000)
    _, source = _source()
    disk = new_disk()
    filling = _begun(source, disk)
    disk.fail_next_sync()
    with pytest.raises(SyncFailedError):
        _pull(filling, source)
    killed(disk)  # what the page cache shows now may not be on disk, and must be written again
    store, resumed = _resumed(disk, source)
    assert resumed is not None
    _pull(resumed, source)
    resumed.finish()
    power_cut(disk)
    store = open_store(disk)
    assert state_of(store.streams[STREAM]).entries == state_of(source).entries[:-1]


def test_an_abandoned_filling_leaves_nothing() -> None:
    _, source = _source()
    disk = new_disk()
    filling = _begun(source, disk)
    _pull(filling, source, pieces_max=9)
    store = reopened(disk)
    assert store.fillings == [STREAM]
    store.abandon_filling(STREAM)
    store.abandon_filling(77)
    rest(store)
    assert store.fillings == []
    assert not disk.exists(f"{DIRECTORY}/filling/{STREAM}")
    assert _fill(store, source).last_index == source.last_index - 1


def test_what_lies_in_the_folder_without_an_identity_is_not_trusted() -> None:
    _, source = _source()
    disk = new_disk()
    filling = _begun(source, disk)
    _pull(filling, source)
    marker = f"{DIRECTORY}/filling/{STREAM}/filling.tmp"
    overwrite(disk, marker, 3, b"?")
    killed(disk)
    _, resumed = _resumed(disk, source)
    assert resumed is not None
    assert resumed.filled_bytes == 0
    assert len(_filling_files(disk)) == 2
