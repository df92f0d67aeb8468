"""A node with several folders: where streams go, that they are found again, and that none is ever silently missing."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.sim.disk import SimDisk, SimulatedCrash
from tests.storage.machine import TINY
from tests.storage.world import EntryKind, batch, killed, new_disk, power_cut, read_batches, read_path, remove, replace
from tidelog.storage import Folders, RealDisk, StorageError, StorageThreads, StoredVote, StreamLog, verify_directories
from tidelog.storage.node_file import NodeFile, read_node_file, write_node_file

A, B, C = "/a", "/b", "/c"
GIB = 1 << 30


class _Disks(SimDisk):
    """One simulated machine whose folders lie on disks of their own."""

    def __init__(self, **free: int) -> None:
        super().__init__(random.Random(1))
        self.free = free

    def space(self, path: str) -> tuple[int, int]:
        return self.free[path.strip("/")], 1000 * GIB


def _open(disk: SimDisk, *directories: str) -> Folders:
    return Folders(disk, directories or (A, B), TINY, random.Random(3))


def _rest(folders: Folders) -> None:
    for store in folders.stores:
        store.run_writer()
    folders.deliver()
    for store in folders.stores:
        while store.run_housekeeping():
            folders.deliver()


def _create(folders: Folders, streams: Sequence[int]) -> None:
    for stream in streams:
        folders.create_stream(stream, b"").append_new(1, EntryKind.DATA, [batch(b"%d" % stream)])
    _rest(folders)


def _streams(folders: Folders) -> list[list[int]]:
    return [sorted(folder.streams) for folder in folders.folders]


def _content(log: StreamLog) -> int:
    assert log.durable_index == log.last_index
    return len(read_batches(log, 0, log.last_index, 1 << 20))


def _move(disk: SimDisk, old: str, new: str, *, keep: bool = False) -> None:
    for name in disk.list_directory(old):
        disk.make_directory(new)
        replace(disk, f"{new}/{name}", read_path(disk, f"{old}/{name}"))
        if not keep:
            remove(disk, f"{old}/{name}")


def _made(streams: Sequence[int] = range(4)) -> SimDisk:
    """A node with two folders that was stopped."""
    disk = new_disk()
    folders = _open(disk)
    _create(folders, streams)
    killed(disk)
    return disk


# Where streams go


@pytest.mark.parametrize(
    ("free", "shares"),
    [
        ({"a": 100 * GIB, "b": 100 * GIB}, (3, 3)),
        ({"a": 100 * GIB, "b": 200 * GIB}, (2, 4)),
        ({"a": 10 * GIB, "b": 100 * GIB}, (0, 6)),
        ({"a": 0, "b": 1 * GIB}, (0, 6)),
    ],
)
def test_a_stream_goes_where_it_has_the_largest_share_of_the_free_room(
    free: dict[str, int], shares: tuple[int, int]
) -> None:
    folders = _open(_Disks(**free))
    _create(folders, range(6))
    assert tuple(map(len, _streams(folders))) == shares


def test_a_disk_that_is_short_is_the_last_to_get_a_stream_however_few_it_has() -> None:
    disk = _Disks(a=1 * GIB, b=1000)
    folders = _open(disk)
    _create(folders, range(5))
    assert _streams(folders) == [[0, 1, 2, 3, 4], []]
    assert [store.space.short for store in folders.stores] == [False, True]


def test_only_the_streams_of_a_short_folder_are_short_of_space() -> None:
    disk = _Disks(a=100 * GIB, b=100 * GIB)
    folders = _open(disk)
    _create(folders, (1, 2))
    disk.free["b"] = 1
    for log in folders.streams.values():
        log.append_new(1, EntryKind.DATA, [batch()])
    _rest(folders)
    assert {stream: log.short_of_space for stream, log in folders.streams.items()} == {1: False, 2: True}


def test_bytes_that_wait_for_a_disk_are_bounded_for_the_node_and_not_for_each_folder() -> None:
    folders = _open(new_disk())
    _create(folders, (1,))
    half = TINY.queue_bytes_max // 2
    folders.stores[0].writer.queued_bytes = half - 1
    assert folders.streams[1].accepting
    folders.stores[0].writer.queued_bytes = half
    assert not folders.streams[1].accepting


# Found again


def test_streams_and_votes_are_found_again_in_whichever_folder_they_lie() -> None:
    disk = new_disk()
    folders = _open(disk)
    _create(folders, range(4))
    for stream in range(4):
        folders.save_vote(stream, StoredVote(7, stream))
    _rest(folders)
    before = _streams(folders)
    assert before == [[0, 2], [1, 3]]
    node = folders.directory_id
    power_cut(disk)
    folders = _open(disk)
    assert folders.directory_id == node
    assert _streams(folders) == before
    assert [_content(folders.streams[stream]) for stream in range(4)] == [1, 1, 1, 1]
    assert [folders.vote(stream) for stream in range(4)] == [StoredVote(7, stream) for stream in range(4)]


def test_reports_of_all_folders_are_delivered() -> None:
    folders = _open(new_disk())
    logs = [folders.create_stream(stream, b"") for stream in (1, 2)]
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch()])
        folders.save_vote(log.stream, StoredVote(1, 1))
    for store in folders.stores:
        store.run_writer()
    delivered = folders.deliver()
    assert delivered.logs == logs
    assert sorted(delivered.votes) == [(1, StoredVote(1, 1)), (2, StoredVote(1, 1))]


def test_a_vote_whose_stream_was_never_made_still_counts_when_it_is_made_in_another_folder() -> None:
    disk = new_disk()
    folders = _open(disk)
    _create(folders, (1,))
    folders.create_stream(2, b"")  # in b, and its files are not made before the crash
    folders.stores[1].writer._waiting.clear()
    folders.save_vote(2, StoredVote(5, 3))
    folders.stores[1].run_writer()
    power_cut(disk)
    folders = _open(disk)
    assert _streams(folders) == [[1], []]
    folders.create_stream(3, b"")  # takes b's turn
    folders.create_stream(2, b"")
    assert _streams(folders) == [[1, 2], [3]]
    assert folders.vote(2) == StoredVote(5, 3)
    folders.save_vote(2, StoredVote(6, None))
    _rest(folders)
    power_cut(disk)
    assert _open(disk).vote(2) == StoredVote(6, None)


def test_a_deleted_stream_may_come_again_once_its_files_are_gone() -> None:
    folders = _open(new_disk())
    _create(folders, (1, 2))
    folders.delete_stream(2)
    assert folders.deleting == {2}
    with pytest.raises(StorageError, match="still being deleted"):
        folders.create_stream(2, b"")
    _rest(folders)
    assert folders.deleting == set()
    _create(folders, (2,))
    with pytest.raises(StorageError, match="there already"):
        folders.create_stream(2, b"")


def test_folders_may_change_their_paths_and_their_order_behind_the_first() -> None:
    disk = new_disk()
    folders = _open(disk, A, B, C)
    _create(folders, range(3))
    ids = [store.directory_id for store in folders.stores]
    killed(disk)
    folders = _open(disk, A, C, B)
    assert _streams(folders) == [[0], [2], [1]]
    assert folders.stores[0].node_file.folders == {ids[2]: C, ids[1]: B}


# Nothing is silently missing


def test_a_folder_may_be_added_to_a_node_that_has_one() -> None:
    disk = new_disk()
    folders = _open(disk, A)
    _create(folders, (1, 2))
    assert read_node_file(disk, A) == NodeFile(folders.directory_id)
    folders.remember_cluster("c")
    killed(disk)
    folders = _open(disk, A, B)
    assert _streams(folders) == [[1, 2], []]
    assert (folders.directory_id, folders.cluster_id) == (folders.stores[0].directory_id, "c")
    _create(folders, (3, 4))
    assert _streams(folders) == [[1, 2], [3, 4]]


def test_adding_a_folder_can_be_interrupted_anywhere() -> None:
    for step in range(200):
        disk = new_disk(step)
        folders = _open(disk, A)
        _create(folders, (1,))
        killed(disk)
        disk.crash_after(step)
        try:
            _open(disk, A, B)
        except SimulatedCrash:
            power_cut(disk)
            assert _streams(_open(disk, A, B)) == [[1], []]
        else:
            assert step > 5
            return
    pytest.fail("opening never ends")


def _lose(path: str) -> Callable[[SimDisk], Sequence[str]]:
    def lose(disk: SimDisk) -> Sequence[str]:
        _remove_all(disk, path)
        return A, B

    return lose


def _remove_all(disk: SimDisk, path: str) -> None:
    for name in disk.list_directory(path):
        below = f"{path}/{name}"
        if disk.list_directory(below) or name in ("streams", "pool", "filling"):
            _remove_all(disk, below)
            disk.remove_directory(below)
        elif name.isdecimal():
            disk.remove_directory(below)
        else:
            remove(disk, below)


def _another_node(disk: SimDisk) -> Sequence[str]:
    _create(Folders(disk, (C,), TINY, random.Random(9)), (9,))
    killed(disk)
    return A, B, C


def _of_another_node(disk: SimDisk) -> Sequence[str]:
    Folders(disk, (C, "/d"), TINY, random.Random(9))
    killed(disk)
    return A, B, "/d"


def _old_copy_of_the_first(disk: SimDisk) -> Sequence[str]:
    found = read_node_file(disk, A)
    assert found is not None
    write_node_file(disk, A, NodeFile(found.directory))
    return A, B


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda _: (A,), r"the folder /b \(id \w+\) of this node is not there, or empty: mount it"),
        (_lose(B), r"the folder /b \(id \w+\) of this node is not there, or empty"),
        (_lose(A), "/a is empty, and /b is a folder of a node: bring its first folder back"),
        (lambda _: (B, A), "/b is not the first folder of its node: name /a first"),
        (lambda _: (B,), "/b is not the first folder of its node: name the one with the id"),
        (lambda _: (A, B, B), "/a, /b, /b: a folder is named twice"),
        (_another_node, "/c is another node's, or a node of its own"),
        (_of_another_node, "/d is another node's, or a node of its own"),
        (_old_copy_of_the_first, "/b holds streams, and /a does not know of it"),
    ],
)
def test_a_node_does_not_start_without_all_its_folders_and_nothing_else(
    harm: Callable[[SimDisk], Sequence[str]], said: str
) -> None:
    disk = _made()
    directories = harm(disk)
    votes = {path: read_path(disk, f"{path}/votes") for path in (A, B) if disk.exists(f"{path}/votes")}
    with pytest.raises(StorageError, match=said):
        _open(disk, *directories)
    assert {path: read_path(disk, f"{path}/votes") for path in votes} == votes
    assert not disk.exists(f"{A}/streams/1")


def test_after_a_refusal_the_folders_are_free_again() -> None:
    disk = _made()
    with pytest.raises(StorageError):
        _open(disk, A)
    _open(disk)


def test_emptied_folders_are_another_disk() -> None:
    disk = new_disk()
    folders = _open(disk)
    _create(folders, (1, 2))
    killed(disk)
    for path in (A, B):
        _remove_all(disk, path)
    again = Folders(disk, (A, B), TINY, random.Random(4))
    assert again.directory_id != folders.directory_id
    assert again.streams == {}


def test_a_stream_in_two_folders_is_refused_by_name() -> None:
    disk = _made()
    _move(disk, f"{B}/streams/1", f"{A}/streams/1", keep=True)
    with pytest.raises(StorageError, match="stream 1 lies in /a/streams and in /b/streams: one of them is a copy"):
        _open(disk)


def test_a_version_that_knows_one_folder_only_cannot_open_one_of_several() -> None:
    disk = _made()
    assert [b'"format": 2' in read_path(disk, f"{path}/node.json") for path in (A, B)] == [True, True]
    alone = new_disk()
    _open(alone, A)
    assert b'"format": 1' in read_path(alone, f"{A}/node.json")


# Checking


def test_all_folders_are_verified_together() -> None:
    disk = _made()
    reports = list(verify_directories(disk, (A, B), TINY))
    assert [(report.path, report.stream) for report in reports] == [
        ("/a", None),
        ("/a/streams/0", 0),
        ("/a/streams/2", 2),
        ("/b", None),
        ("/b/streams/1", 1),
        ("/b/streams/3", 3),
    ]
    assert [report.problems for report in reports] == [()] * 6


def test_verifying_names_what_is_missing_and_what_is_there_twice() -> None:
    disk = _made()
    ((problem,), *rest) = [report.problems for report in verify_directories(disk, (A,), TINY)]
    assert "the folder /b (id" in problem
    assert rest == [(), ()]
    _move(disk, f"{B}/streams/1", f"{A}/streams/1", keep=True)
    problems = [problem for report in verify_directories(disk, (A, B), TINY) for problem in report.problems]
    assert len(problems) == 1
    assert problems[0].startswith("stream 1 lies in /a/streams and in /b/streams")


# Threads


def test_a_disk_that_hangs_holds_up_its_own_streams_only(tmp_path: Path) -> None:
    disk = RealDisk("none")
    folders = Folders(disk, [str(tmp_path / name) for name in "ab"], TINY, random.Random(1))
    folders.set_on_report(lambda: None)
    threads = [StorageThreads(store, lambda error: pytest.fail(str(error))) for store in folders.stores]
    one, two = folders.create_stream(1, b""), folders.create_stream(2, b"")
    hanging = next(store for store in folders.stores if 2 in store.streams)
    assert 1 not in hanging.streams
    deadline = time.monotonic() + 30
    with hanging.writer._syncing:  # as long as this is held, nothing there becomes durable
        one.append_new(1, EntryKind.DATA, [batch()])
        two.append_new(1, EntryKind.DATA, [batch()])
        while one.durable_index < 1:
            assert time.monotonic() < deadline
            folders.deliver()
        assert two.durable_index == 0
    for each in threads:
        each.stop()
    folders.deliver()
    assert two.durable_index == 1
    folders.close()
