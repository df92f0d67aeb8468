"""Looking at a folder without changing it, and one checksum over a range of offsets."""

import random
import re
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.sim.disk import SimDisk, SimulatedCrash
from tests.storage.machine import Machine
from tests.storage.world import (
    DIRECTORY,
    TINY,
    EntryKind,
    batch,
    files_of,
    folder_of,
    killed,
    new_disk,
    open_store,
    overwrite,
    read_path,
    remove,
    replace,
    rest,
    settled,
    sized_batch,
)
from tidelog.storage import (
    CorruptDataError,
    DirectoryLockedError,
    RangeChecksum,
    Report,
    StorageError,
    Store,
    StoredVote,
    StreamLog,
    verify_directory,
)


def _node(disk: SimDisk) -> Store:
    store = open_store(disk)
    for stream in (5, 7):
        log = store.create_stream(stream, b"three nodes")
        for number in range(4):
            log.append_new(1 + number, EntryKind.CONFIGURATION, [b"members %d" % number])
            log.append_new(1 + number, EntryKind.DATA, [sized_batch(2000, bytes([65 + number])), batch(records=3)])
            log.roll()
        log.append_new(9, EntryKind.DATA, [batch(b"active"), batch(b"more")])
        store.save_vote(stream, StoredVote(9, 1))
    settled(store)
    store.streams[7].trim(8, 6)
    settled(store)
    return store


def _content(disk: SimDisk) -> dict[str, bytes]:
    paths = [path for stream in (5, 7) for path in files_of(disk, stream)]
    return {path: read_path(disk, path) for path in [*paths, f"{DIRECTORY}/votes", f"{DIRECTORY}/node.json"]}


def _reports(disk: SimDisk) -> dict[int | None, Report]:
    killed(disk)
    before = _content(disk)
    found = {report.stream: report for report in verify_directory(disk, DIRECTORY, TINY)}
    assert _content(disk) == before
    return found


def test_an_intact_folder_has_no_problems() -> None:
    disk = new_disk()
    store = _node(disk)
    expected = {stream: (log.first_index, log.start_offset, log.next_offset) for stream, log in store.streams.items()}
    sizes = {stream: log.size_bytes for stream, log in store.streams.items()}
    found = _reports(disk)
    assert list(found) == [None, 5, 7]
    assert [report.problems for report in found.values()] == [(), (), ()]
    for stream, place in expected.items():
        report = found[stream]
        assert (report.first_index, report.start_offset, report.next_offset) == place
        assert report.length == sizes[stream]
        assert report.pending == ()
    assert (found[5].segments, found[5].entries) == (5, 14)
    assert (found[7].segments, found[7].entries) == (3, 8)


def test_a_folder_in_use_and_one_that_is_none_are_refused() -> None:
    disk = new_disk()
    store = _node(disk)
    with pytest.raises(DirectoryLockedError):
        list(verify_directory(disk, DIRECTORY))
    store.close()
    assert len(list(verify_directory(disk, DIRECTORY, TINY, frozenset([7])))) == 2
    open_store(disk)  # the lock is free again
    with pytest.raises(StorageError, match="is no data folder"):
        list(verify_directory(disk, "/elsewhere"))


def test_every_flipped_bit_of_a_closed_segment_is_found() -> None:
    disk = new_disk()
    _node(disk)
    path = files_of(disk, 5, ".log")[1]
    for position in range(0, len(read_path(disk, path)), 7):
        disk.flip_bit(path, position, position % 8)
        found = _reports(disk)
        assert len(found[5].problems) >= 1, position
        assert path in found[5].problems[0]
        assert found[7].problems == ()
        disk.flip_bit(path, position, position % 8)
    assert _reports(disk)[5].problems == ()


def test_damage_in_several_segments_is_listed_whole() -> None:
    disk = new_disk()
    _node(disk)
    paths = files_of(disk, 5, ".log")
    for path in paths[1:3]:
        disk.flip_bit(path, 500, 3)
    assert [path in problem for path, problem in zip(paths[1:3], _reports(disk)[5].problems, strict=True)] == [True] * 2


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda disk: remove(disk, files_of(disk, 5, ".log")[1]), "a hole in the log|the next one follows"),
        (lambda disk: overwrite(disk, files_of(disk, 5, ".active")[0], 20, b"????"), "entry 13"),
        (lambda disk: overwrite(disk, f"{folder_of(5)}/stream.json", 5, b"?"), "checksum in its second line"),
    ],
)
def test_other_damage(harm: Callable[[SimDisk], None], problem: str) -> None:
    disk = new_disk()
    _node(disk)
    harm(disk)
    found = _reports(disk)
    assert any(re.search(problem, each) for each in found[5].problems), found[5].problems
    assert found[7].problems == ()


def test_damaged_votes_are_a_problem_of_the_directory() -> None:
    disk = new_disk()
    store = _node(disk)
    store.save_vote(5, StoredVote(10, 1))  # which knows that those before it are durable
    rest(store)
    overwrite(disk, f"{DIRECTORY}/votes", 40, b"?")
    found = _reports(disk)
    assert "is damaged" in found[None].problems[0]
    assert found[5].problems == found[7].problems == ()


def test_what_a_start_would_repair_is_pending_and_no_problem() -> None:
    disk = new_disk()
    _node(disk)
    index = files_of(disk, 5, ".index")[0]
    overwrite(disk, index, 100, b"\xff")
    replace(disk, f"{folder_of(5)}/stray.tmp", b"x")
    disk.make_directory(f"{DIRECTORY}/filling/9")
    disk.make_directory(folder_of(8))
    found = _reports(disk)
    assert found[5].problems == ()
    assert found[5].pending == (f"remove {folder_of(5)}/stray.tmp", f"replace {index}")
    assert found[None].pending == ("stream 9 is being filled",)
    assert "remove" in found[8].pending[0]
    assert found[8].problems == ()


def test_whatever_a_power_cut_leaves_is_no_problem() -> None:
    for seed in range(40):
        machine = Machine(seed)
        rng = random.Random(seed)
        machine.disk.crash_after(rng.randrange(100))
        with suppress(SimulatedCrash):
            for _ in range(60):
                machine.append(rng.choice([10, 900, 2500]))
                if rng.random() < 0.3:
                    machine.log.roll()
                if rng.random() < 0.5:
                    machine.write()
                machine.keep_house()
        machine.crash()
        for report in verify_directory(machine.disk, DIRECTORY, TINY):
            assert report.problems == ()


# One checksum over a range


def _checksum(log: StreamLog, start: int, end: int) -> tuple[int, int, int]:
    checksum = RangeChecksum(log, start, end, log.last_index)
    while (piece := checksum.next_piece()) is not None:
        checksum.take(piece)
    return checksum.crc, checksum.batches, checksum.bytes


def test_replicas_with_other_segments_have_the_same_checksum() -> None:
    first_store = _node(new_disk())
    first = first_store.streams[5]
    store = open_store(new_disk(2), seed=2)
    second = store.create_stream(5, b"three nodes")
    for index in range(1, first.last_index + 1):
        second.append_received(first.entries(index, index, 1))
        if index % 5 == 0:
            second.roll()
            rest(store)
    found = _checksum(first, 0, first.next_offset)
    assert found == _checksum(second, 0, second.next_offset)
    assert found[1] == 10  # entries of our own do not count
    assert _checksum(first, 3, 9) == _checksum(second, 3, 9) != found
    assert _checksum(first, 4, 4) == (0, 0, 0)
    assert _checksum(first, 1, 4) == _checksum(first, 2, 3)  # the batch that holds 1..3
    second.truncate_from(second.last_index)
    second.append_new(9, EntryKind.DATA, [batch(b"else")])
    assert found != _checksum(second, 0, second.next_offset)


def test_a_range_outside_the_log_and_one_that_is_deleted_meanwhile_are_refused() -> None:
    store = _node(new_disk())
    log = store.streams[5]
    for start, end in ((-1, 3), (3, 2), (0, log.next_offset + 1)):
        with pytest.raises(StorageError, match="is not within"):
            RangeChecksum(log, start, end, log.last_index)
    with pytest.raises(StorageError, match="is not within"):
        RangeChecksum(log, 0, log.next_offset, log.last_index - 1)
    checksum = RangeChecksum(log, 0, log.next_offset, log.last_index)
    piece = checksum.next_piece()
    assert piece is not None
    log.trim(8, log.last_index)
    rest(store)
    checksum.take(piece)  # what was found stays readable
    with pytest.raises(StorageError, match="was deleted meanwhile"):
        checksum.next_piece()


def test_damage_in_the_range_is_found() -> None:
    disk = new_disk()
    store = _node(disk)
    log = store.streams[5]
    disk.flip_bit(files_of(disk, 5, ".log")[2], 900, 1)
    assert _checksum(log, 0, 8)[1] == 4
    with pytest.raises(CorruptDataError, match="the batch at offset 8"):
        _checksum(log, 0, 12)
