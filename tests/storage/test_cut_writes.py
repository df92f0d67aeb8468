"""One group commit's writes, recorded, and cut at every byte boundary that matters: what is recovered is a prefix.

A disk may have done any of the writes since the last sync, whole or in part, in any order. So the group's writes are
replayed onto the disk as it was before, with one of them cut at each boundary of a batch, a row, a header or a sector
and one byte either side, and the others done or not done at all.
"""

import itertools
from collections.abc import Iterator, Sequence

import pytest

from tests.sim.disk import SimDisk
from tests.storage.machine import State
from tests.storage.world import (
    TINY,
    EntryKind,
    RecordingDisk,
    files_of,
    killed,
    new_disk,
    open_store,
    overwrite,
    read_all,
    read_path,
    remove,
    replace,
    rest,
    settled,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import Store, StreamLog
from tidelog.storage.rows import ROW_BYTES

SECTOR = 512
Write = tuple[str, int, bytes]


class _Recording(RecordingDisk):
    """Also keeps the files as they were before the group, and where its batches end."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self.before: dict[str, bytes] = {}
        self.batch_ends: list[int] = []


def _boundaries(done: Write, batch_ends: Sequence[int]) -> list[int]:
    """Lengths to cut the write to: the boundaries in it, and a byte either side of each."""
    _, position, data = done
    end = position + len(data)
    at = {position, end}
    at.update(range(position - position % SECTOR, end, SECTOR))
    if position < TINY.segment_bytes:
        at.update(batch_ends)
        at.update(edge + field for edge in batch_ends for field in (8, 12, 16, 17, 21, 61))
    elif position < TINY.segment_bytes + TINY.rows_bytes:
        used = len(data.rstrip(b"\0")) + ROW_BYTES  # what is behind is padding
        at.update(range(position - position % ROW_BYTES, min(end, position + used), ROW_BYTES))
    near = {edge + shift - position for edge in at for shift in (-1, 0, 1)}
    return sorted(length for length in near if 0 <= length <= len(data))


def _cut_in_every_way(writes: Sequence[Write], batch_ends: Sequence[int]) -> Iterator[list[Write]]:
    """Each write cut at each of its boundaries, with the others before or behind it done, all done, or none."""
    for number, cut in enumerate(writes):
        path, position, data = cut
        others = [list(writes[:number]), list(writes[number + 1 :]), [*writes[:number], *writes[number + 1 :]], []]
        distinct = [list(group) for group, _ in itertools.groupby(sorted(others))]
        for length in _boundaries(cut, batch_ends):
            for done in distinct:
                yield [*done, (path, position, data[:length])]


def _check_every_cut(disk: SimDisk, recording: _Recording, log: StreamLog, before: State, after: State) -> int:
    """Replay the recorded writes cut in every way; returns how many ways there were."""
    ways = 0
    for replayed in _cut_in_every_way(recording.writes, recording.batch_ends):
        killed(disk)
        for path in files_of(disk, log.stream):
            if path not in recording.before:
                remove(disk, path)
        for path, content in recording.before.items():
            replace(disk, path, content)
        for path, position, data in replayed:
            overwrite(disk, path, position, data)
        found = open_store(disk).streams[log.stream]
        state = state_of(found)
        assert state == after.prefix(len(state.entries))
        assert len(state.entries) >= len(before.entries), "what was reported durable is gone"
        read_all(found)
        ways += 1
    return ways


def _group(
    recording: _Recording, disk: SimDisk, store: Store, log: StreamLog, sizes: Sequence[int]
) -> tuple[State, State]:
    before = state_of(log)
    start = log._segments.last.length  # pyright: ignore[reportPrivateUsage]
    recording.before = {path: read_path(disk, path) for path in files_of(disk, log.stream)}
    recording.clear()
    log.append_new(1, EntryKind.DATA, [sized_batch(size, bytes([97 + n])) for n, size in enumerate(sizes)])
    recording.batch_ends = [start, *[start + end for end in itertools.accumulate(sizes)]]
    store.run_write()
    return before, state_of(log)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("at_rest", [True, False])
def test_a_group_cut_anywhere_leaves_a_prefix(direct: bool, at_rest: bool) -> None:
    disk = new_disk(direct=direct)
    recording = _Recording(disk)
    store = open_store(recording)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(200, b"A"), sized_batch(300, b"B")])
    (settled if at_rest else rest)(store)
    before, after = _group(recording, disk, store, log, (150, 700, 90, 400))
    assert len(recording.writes) == 2
    assert _check_every_cut(disk, recording, log, before, after) > 100


def test_a_group_cut_anywhere_over_stale_bytes_of_the_same_shape_leaves_a_prefix() -> None:
    """The place was in use before: batches and rows of a truncated group of the same sizes lie there."""
    disk = new_disk(direct=False)
    recording = _Recording(disk)
    store = open_store(recording)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(200, b"A")])
    rest(store)
    log.append_new(1, EntryKind.DATA, [sized_batch(size, b"S") for size in (150, 700, 90, 400)])
    rest(store)
    log.truncate_from(2)
    rest(store)
    before, after = _group(recording, disk, store, log, (150, 700, 90, 400))
    assert _check_every_cut(disk, recording, log, before, after) > 100


@pytest.mark.parametrize("prepared", [True, False])
def test_the_first_group_of_a_new_segment_cut_anywhere_leaves_a_prefix(prepared: bool) -> None:
    """The header is one of the writes then, in a file that was prepared or is new and sparse."""
    disk = new_disk()
    recording = _Recording(disk)
    store = open_store(recording)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(7000, b"A")])
    (rest if prepared else write)(store)
    old = set(files_of(disk, 5))
    before, after = _group(recording, disk, store, log, (1500, 300))
    recording.batch_ends = [0, 1500, 1800]
    new = [path for path, _, _ in recording.writes]
    assert set(new) == {files_of(disk, 5, ".active")[-1]}
    if not prepared:
        recording.before[new[0]] = bytes(TINY.shape.file_bytes)
    assert prepared == (new[0] in old)
    assert _check_every_cut(disk, recording, log, before, after) > 100


def _groups_between_syncs(recording: RecordingDisk) -> list[list[Write]]:
    """The recorded writes: those of one list could be done in any order, all of a list before those of the next."""
    groups: list[list[Write]] = [[]]
    writes = iter(recording.writes)
    for what, _ in recording.operations:
        if what == "write":
            groups[-1].append(next(writes))
        elif what == "sync" and groups[-1]:
            groups.append([])
    return groups


@pytest.mark.parametrize("at_rest", [True, False])
def test_a_truncation_cut_anywhere_leaves_the_old_log_or_the_new_one_and_never_looks_like_damage(at_rest: bool) -> None:
    """The mark must be gone before the rows that it vouches for, and they before their batches are overwritten."""
    disk = new_disk()
    recording = _Recording(disk)
    store = open_store(recording)
    log = store.create_stream(5, b"")
    for number in range(8):
        log.append_new(1, EntryKind.DATA, [sized_batch(100, bytes([65 + number]))])
        write(store)
    (settled if at_rest else rest)(store)
    old = state_of(log)
    path = files_of(disk, 5, ".active")[-1]
    content = bytearray(read_path(disk, path))
    recording.clear()
    log.truncate_from(4)
    log.append_new(2, EntryKind.DATA, [sized_batch(90, b"x"), sized_batch(230, b"y")])
    new = state_of(log)
    write(store)
    groups = _groups_between_syncs(recording)
    assert sum(map(len, groups)) == 4
    for group in groups:
        for replayed in _cut_in_every_way(group, [300, 390, 620]):
            killed(disk)
            replace(disk, path, content)
            for _, position, data in replayed:
                overwrite(disk, path, position, data)
            found = state_of(open_store(disk).streams[5])
            if found.entries[-1].term == 1:
                assert found == old.prefix(len(found.entries))
                assert len(found.entries) >= 3
            else:
                assert found == new.prefix(len(found.entries))
        for _, position, data in group:
            content[position : position + len(data)] = data
