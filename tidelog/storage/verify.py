"""Checking a data folder that no process uses, without changing it: is everything there that should be, and intact?

Recovery decides whether a node would start (see `recovery`), on a disk where its repairs are only imagined. It reads
the newest segment whole, but closed ones by their index, so here every batch of those is read too and held against its
row.

One report for each directory itself (its version, the journal of votes, whether it belongs with the others) and one for
each stream. What a crash may leave and a start puts in order is no damage; it is listed as `pending`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidelog.storage.disk import Disk, File
from tidelog.storage.dry_disk import DryDisk
from tidelog.storage.errors import CorruptDataError, DirectoryLockedError, StorageError
from tidelog.storage.folders import folder_problems, two_places
from tidelog.storage.hard_states import HardStates
from tidelog.storage.index_file import ROWS_AT, decode_index
from tidelog.storage.node_file import NAME, NodeFile, read_node_file
from tidelog.storage.recovery import recover_stream
from tidelog.storage.rows import ROW_BYTES, row_at
from tidelog.storage.scan import Window, take_batch
from tidelog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, SegmentShape
from tidelog.storage.settings import StorageSettings
from tidelog.storage.small_file import read_file
from tidelog.storage.stream_log import RecoveredLog
from tidelog.storage.stream_state import STATE_NAME
from tidelog.wire.batch import CorruptBatchError


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one folder. Without problems all that it holds is intact."""

    path: str
    stream: int | None  # None: the directory itself
    segments: int = 0
    entries: int = 0
    length: int = 0  # bytes of all batches
    first_index: int = 0
    start_offset: int = 0
    next_offset: int = 0
    absent: bool = False  # what is there is a leftover, and no stream
    problems: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()  # what the next start would put in order


def verify_directories(
    disk: Disk,
    directories: Sequence[str],
    settings: StorageSettings | None = None,
    streams: frozenset[int] | None = None,
) -> Iterator[Report]:
    """All folders of one node. What is wrong with them together is in the first report."""
    files = [_node_file(disk, directory) for directory in directories]
    together = [] if None in files else folder_problems(directories, files)
    seen: dict[int, str] = {}
    for directory in directories:
        for report in verify_directory(disk, directory, settings, streams):
            problems = list(report.problems)
            if report.stream is None:
                problems, together = problems + together, []
            elif not report.absent:
                other = seen.setdefault(report.stream, directory)
                problems += [two_places(report.stream, other, directory)] if other != directory else []
            yield replace(report, problems=tuple(problems))


def _node_file(disk: Disk, directory: str) -> NodeFile | None:
    """None: it is damaged, which the folder's own report says."""
    try:
        return read_node_file(disk, directory)
    except StorageError:
        return None


def verify_directory(
    disk: Disk, directory: str, settings: StorageSettings | None = None, streams: frozenset[int] | None = None
) -> Iterator[Report]:
    """Reports, as they are made: the directory's first, then one for each stream, or for those of `streams`."""
    if not disk.exists(os.path.join(directory, NAME)):
        raise StorageError(f"{directory} is no data folder: it has no {NAME}")
    lock = _lock(disk, directory)
    try:
        yield _verify_node(disk, directory)
        shape = (settings or StorageSettings()).shape
        folder = os.path.join(directory, "streams")
        for stream in sorted(int(name) for name in disk.list_directory(folder) if name.isdecimal()):
            if streams is None or stream in streams:
                yield verify_stream(disk, os.path.join(folder, str(stream)), stream, shape)
    finally:
        lock.close()


def _lock(disk: Disk, directory: str) -> File:
    try:
        return disk.lock(os.path.join(directory, "lock"))
    except BlockingIOError:
        raise DirectoryLockedError(f"{directory} is in use by another process: stop that one first") from None


def _verify_node(disk: Disk, directory: str) -> Report:
    dry = DryDisk(disk)
    problems: list[str] = []
    try:
        read_node_file(disk, directory)
        HardStates(dry, directory, new=False).close()
    except StorageError as error:
        problems.append(str(error))
    filling = disk.list_directory(os.path.join(directory, "filling"))
    pending = [f"stream {name} is being filled" for name in filling if name.isdecimal()]
    return Report(directory, None, problems=tuple(problems), pending=tuple(pending))


def verify_stream(disk: Disk, folder: str, stream: int, shape: SegmentShape) -> Report:
    if not disk.exists(os.path.join(folder, STATE_NAME)):
        return Report(
            folder, stream, absent=True, pending=(f"remove {folder}: the stream was not created, or is deleted",)
        )
    dry = DryDisk(disk)
    problems: dict[str, None] = {}  # in order, each once: recovery and the reading below may find the same
    recovered: RecoveredLog | None = None
    try:
        recovered = recover_stream(dry, folder, shape)
        if recovered.state.stream != stream:
            problems[f"{folder} holds stream {recovered.state.stream}"] = None
    except StorageError as error:
        problems[str(error)] = None
    for name in disk.list_directory(folder):
        path = os.path.join(folder, name)
        if name.endswith(LOG_SUFFIX) and dry.exists(path):
            try:
                _verify_closed(dry, path, shape)
            except StorageError as error:
                problems[str(error)] = None
    if recovered is None:
        return Report(folder, stream, problems=tuple(problems), pending=tuple(dry.intentions))
    segments, floor = recovered.segments, recovered.state.floor
    next_offset = segments[-1].next_offset if segments else floor.offset
    if not floor.offset <= recovered.state.start_offset <= next_offset:
        problems[f"{folder}: log start {recovered.state.start_offset} lies outside {floor.offset}..{next_offset}"] = (
            None
        )
    return Report(
        folder,
        stream,
        segments=len(segments),
        entries=sum(segment.count for segment in segments),
        length=sum(segment.length for segment in segments),
        first_index=floor.index + 1,
        start_offset=recovered.state.start_offset,
        next_offset=next_offset,
        problems=tuple(problems),
        pending=tuple(dry.intentions),
    )


def _verify_closed(disk: Disk, path: str, shape: SegmentShape) -> None:
    """Read every batch of a closed segment and hold it against its row."""
    index_path = path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX
    content = read_file(disk, index_path) if disk.exists(index_path) else b""
    described = decode_index(content, shape)
    if described is None:
        return  # recovery had no batch to go by, and has said so
    rows = content[ROWS_AT : ROWS_AT + described.count * ROW_BYTES]
    segment = Segment(described.identity, shape)
    file = disk.open_read(path)
    try:
        window = Window(file, described.length)
        for number in range(described.count):
            try:
                take_batch(segment, window.batch(segment.length), row_at(rows, number))
            except CorruptBatchError as error:
                raise CorruptDataError(path, segment.length, f"entry {segment.last_index + 1}: {error}") from error
    finally:
        file.close()
    found = (segment.length, segment.next_offset, segment.chain, segment.term_starts, segment.controls)
    if found != (described.length, described.next_offset, described.chain, described.term_starts, described.controls):
        raise CorruptDataError(index_path, 0, "it does not describe the batches that are there")
