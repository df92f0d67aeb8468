"""The log of one stream: record batches in segments, one index with two views, everything new in memory at once.

It is the `Log` that consensus works on, and what consumers read. Appends and truncations change memory at once; the
same calls queue operations for the group-commit writer, in the same order, and `deliver` takes its reports back.
Everything here runs on the loop's thread and never waits for a disk, apart from reads of what is no longer cached.

    first_index - 1 <= durable_index <= last_index      (one less while a take-over is not yet durable)
    start_offset <= next_offset, and offsets are dense: an entry's offset is the end of the one before

A report from before a truncation says nothing about what was appended after it, even at the same index. So each
truncation begins a new `generation`, and only reports of the current one count.

Cost: an append is some `struct` calls a batch and no copy; lookup by index is arithmetic, by offset or time a search.
"""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tidelog import faults
from tidelog.raft.log import Buffer, Entry, EntryKind
from tidelog.storage.disk import Disk
from tidelog.storage.errors import BatchTooLargeError, FormatVersionError, LogMismatchError
from tidelog.storage.housekeeping import Housekeeper, Leftover, close_segment, remove_leftovers
from tidelog.storage.index_file import encode_index
from tidelog.storage.operations import (
    Append,
    Begin,
    Close,
    Completion,
    Create,
    DropSuffix,
    Durable,
    SaveState,
    Settle,
    WipeRows,
)
from tidelog.storage.pool import FilePool
from tidelog.storage.readers import Chunk, SegmentReader, SegmentReaders
from tidelog.storage.rows import ROW_BYTES
from tidelog.storage.segment import NO_LINK, Facts, Identity, Placed, Segment, SegmentShape, active_name
from tidelog.storage.segment_view import SegmentView, view_of
from tidelog.storage.segments import Segments
from tidelog.storage.space import Space
from tidelog.storage.spare import Spare, SpareMaker
from tidelog.storage.stream_state import Floor, StreamState
from tidelog.storage.tail_cache import Tail, TailCache
from tidelog.storage.terms import TermHistory, TermStart
from tidelog.storage.writer import GroupCommitWriter
from tidelog.wire.batch import LENGTH_END, build_own_batch, read_facts, read_stamp, stamp, unpack_facts

CONTEXT_VERSION = 1
# version, offset, log start, configuration's index, application's index, configuration's bytes
_CONTEXT = struct.Struct(">BQQQQI")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all streams of a node share."""

    disk: Disk
    writer: GroupCommitWriter
    housekeeper: Housekeeper
    pool: FilePool
    readers: SegmentReaders
    cache: TailCache
    spares: SpareMaker
    shape: SegmentShape
    space: Space
    queue_bytes_max: int
    rng: random.Random
    on_loop: Callable[[Callable[[], None]], None]  # have the loop's thread run something, from any thread


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What recovery found in a stream's folder."""

    state: StreamState
    segments: Sequence[Segment]  # oldest first
    active: Segment | None  # the last of them, when it can be appended to
    active_settled: int  # how many of its rows the settled mark vouches for
    configurations: Sequence[tuple[int, bytes]]  # the membership entries in the segments
    next_sequence: int
    spare_sequence: int | None  # a file that was prepared and not used


class StreamLog:
    def __init__(
        self, folder: str, recovered: RecoveredLog, surroundings: Surroundings, *, new: bool = False
    ) -> None:  # fmt: skip
        """`new`: the stream has no files yet."""
        state, floor = recovered.state, recovered.state.floor
        self.stream = state.stream
        self.uuid = state.uuid
        self._folder = folder
        self._around = surroundings
        self._writer = surroundings.writer
        self._shape = surroundings.shape
        self._era = state.era
        self._floor = floor
        # The base, a committed one, then those of the log. The base may be newer than the log, if it was learned from
        # another replica; what the log has up to its index is history then.
        base = (state.configuration_index, state.configuration)
        self._configurations = [base, *(pair for pair in recovered.configurations if pair[0] > base[0])]
        self.application = (state.application_index, state.application)
        self._next_sequence = recovered.next_sequence
        self._spare = Spare(folder, surroundings.spares, self._take_sequence, recovered.spare_sequence)
        self._generation = 0
        self._full = False
        self._settled = recovered.active_settled
        self._segments = Segments(folder, recovered.segments, surroundings.readers)
        self._terms = TermHistory(TermStart(floor.term, floor.index, floor.offset))
        for segment in recovered.segments:
            for start in segment.term_starts:
                self._terms.add(*start)
        self.first_index = floor.index + 1
        self.start_offset = state.start_offset
        self.learned_start = state.learned_start
        """The log start of the replica that this one has its beginning from; it may lie behind the end.

        The entry that moved it there counts as applied there, and `application` says so here too. So whoever applies
        entries must trim to it as soon as that much is committed.
        """
        self.last_index = recovered.segments[-1].last_index if recovered.segments else floor.index
        self.next_offset = recovered.segments[-1].next_offset if recovered.segments else floor.offset
        self.durable_index = self.last_index
        self._tail = Tail(self.last_index + 1)
        self._writer.add_stream(self.stream, folder, recovered.active)
        for segment in recovered.segments[:-1]:
            self._closing(segment)()
        if new:
            self._writer.submit(self.stream, Create(state.encode(), active_name(self._next_sequence), self._shape))
        if recovered.active is None:
            self._begin_segment()

    # Appending.

    @property
    def accepting(self) -> bool:
        return not self._full and self._writer.queued_bytes < self._around.queue_bytes_max

    @property
    def full(self) -> bool:
        """The disk has no room for what waits to be written."""
        return self._full

    @property
    def short_of_space(self) -> bool:
        """What is left of the disk is kept for other things than clients' records. Whoever takes those must ask."""
        return self._around.space.short

    def append_new(self, term: int, kind: EntryKind, data: Sequence[Buffer]) -> int:
        """The leader's append. A batch in writable memory is stamped where it lies."""
        if faults.ARMED:
            faults.hit("log.append")
        self._check_term(term, self._terms.last_term)
        index, offset = self.last_index, self.next_offset
        placed: list[Placed] = []
        for content in data:
            index += 1
            if kind is EntryKind.DATA:
                facts = self._facts_of(content)
                delta = facts[2]
                if delta < 0:
                    raise LogMismatchError(f"stream {self.stream}: a batch without records takes no offset")
                batch = bytearray(content) if isinstance(content, bytes) else content
                stamp(batch, offset, term)
                placed.append((Entry(index, term, kind, batch), batch, facts))
                offset += delta + 1
            else:
                batch = build_own_batch(kind, content, offset, term)
                placed.append((Entry(index, term, kind, content), batch, self._facts_of(batch)))
        self._take(placed)
        return self.last_index

    def append_received(self, entries: Sequence[Entry]) -> None:
        self._take(self._placed(entries))

    def _placed(self, entries: Sequence[Entry]) -> list[Placed]:
        """The entries with their batches, each checked to have the place that it is stamped with.

        All before the first is taken in: a bad one must not leave half an append.
        """
        placed: list[Placed] = []
        next_index, next_offset, term = self.last_index + 1, self.next_offset, self._terms.last_term
        for entry in entries:
            if entry.kind is EntryKind.DATA:
                batch = entry.data
            else:
                batch = build_own_batch(entry.kind, entry.data, next_offset, entry.term)
            place = (entry.index, *read_stamp(batch))
            if place != (next_index, next_offset, entry.term):
                raise LogMismatchError(
                    f"stream {self.stream}: (index, offset, epoch) of an entry is {place}, "
                    f"its place is {(next_index, next_offset, entry.term)}"
                )
            if entry.term < term:
                self._check_term(entry.term, term)
            facts = self._facts_of(batch)
            placed.append((entry, batch, facts))
            next_index, term = next_index + 1, entry.term
            next_offset += facts[2] + 1
        return placed

    def _check_term(self, term: int, before: int) -> None:
        if term < before:
            raise LogMismatchError(f"stream {self.stream}: an entry of term {term} behind one of term {before}")

    def _facts_of(self, batch: Buffer) -> Facts:
        facts = unpack_facts(batch)
        size = len(batch)
        if facts[0] + LENGTH_END != size:
            raise LogMismatchError(f"stream {self.stream}: a batch of {size} bytes says it has {facts[0] + LENGTH_END}")
        if size > self._shape.data_bytes_max:
            raise BatchTooLargeError(f"a batch of {size} bytes; a segment holds {self._shape.data_bytes_max}")
        return facts

    def _take(self, placed: Sequence[Placed]) -> None:
        """Give the entries their place in memory, and their bytes to the writer: a run for each segment."""
        taken = 0
        while taken < len(placed):
            segment = self._segments.last
            terms, own = len(segment.term_starts), len(segment.controls)
            count = segment.extend(placed, taken, self._rows_synced(segment))
            for start in segment.term_starts[terms:]:
                self._terms.add(*start)
            run = placed if count == len(placed) else placed[taken : taken + count]
            if len(segment.controls) > own:
                self._learn_configurations(run)
            self._submit_run(segment, run)
            taken += count
            if taken < len(placed):
                if segment.count:
                    self._begin_segment()
                else:  # made when segments were smaller: two segments must not begin at one index
                    self._drop_suffix(segment.first_index)
        self._around.cache.extend(self._tail, [entry for entry, _, _ in placed])
        if self._segments.last.length > self._spare.due:
            self._spare.filled(self._segments.last.length)

    def _learn_configurations(self, run: Sequence[Placed]) -> None:
        for entry, _, _ in run:
            if entry.kind is EntryKind.CONFIGURATION and entry.index > self._configurations[0][0]:
                self._configurations.append((entry.index, bytes(entry.data)))

    def _rows_synced(self, segment: Segment) -> int:
        return max(0, self.durable_index - segment.identity.first_index + 1)

    def _submit_run(self, segment: Segment, run: Sequence[Placed]) -> None:
        """What the last segment has just taken goes to the writer."""
        self.last_index, self.next_offset = segment.last_index, segment.next_offset
        if not run:
            return
        assert segment.rows is not None, "a segment that is appended to has its rows"
        data = [batch for _, batch, _ in run]
        size = sum(map(len, data))
        rows_position = (segment.count - len(run)) * ROW_BYTES
        append = Append(
            segment, segment.length - size, data, size, rows_position, bytes(segment.rows[rows_position:]),
            self._generation, self.last_index,
        )  # fmt: skip
        self._writer.submit(self.stream, append)

    def settle(self) -> None:
        """The stream is at rest: mark what is durable, so that damage to it cannot pass for an unfinished write."""
        active = self._segments.last
        if active.count != self._settled and self.durable_index == self.last_index:
            self._settled = active.count
            self._writer.submit(self.stream, Settle(active, active.count, active.chain))

    # Truncating, trimming, beginning anew.

    def truncate_from(self, index: int) -> None:
        if index > self.last_index:
            return
        if index < self.first_index:
            raise LogMismatchError(
                f"stream {self.stream}: truncation from {index}, the log begins at {self.first_index}"
            )
        self._generation += 1
        self.last_index = index - 1
        self.durable_index = min(self.durable_index, self.last_index)
        self._around.cache.cut_from(self._tail, index)
        self._terms.cut_from(index)
        while len(self._configurations) > 1 and self._configurations[-1][0] >= index:
            self._configurations.pop()
        active = self._segments.last
        if index >= active.first_index:
            count_before = active.count
            active.cut(self._segments.rows(active), index - active.first_index)
            self._settled = 0
            durable = Durable(self._generation, self.last_index)
            self._writer.submit(self.stream, WipeRows(active, active.count, count_before, durable))
        else:
            self._drop_suffix(index)
        self.next_offset = self._segments.last.next_offset

    def _drop_suffix(self, index: int) -> None:
        """Whole segments go, the one that holds the entry before is cut, and a new one is begun behind it."""
        removed = self._segments.take_from(index)
        for segment in removed:
            self._around.readers.forget(segment)
        kept = self._segments.last if self._segments else None
        durable = Durable(self._generation, index - 1)
        if kept is None or kept.last_index < index:
            self._writer.submit(self.stream, DropSuffix(removed, None, 0, b"", durable))
        else:
            rows = bytes(self._segments.rows(kept))
            kept.cut(rows, index - kept.first_index)
            self._writer.submit(self.stream, DropSuffix(removed, kept, kept.length, encode_index(kept, rows), durable))
        self._begin_segment()

    def trim(self, start_offset: int, committed_index: int) -> None:
        """Move the log start, and delete the segments that lie before it and hold only committed entries."""
        if start_offset < self.start_offset:
            return
        if start_offset > self.next_offset:
            raise LogMismatchError(f"stream {self.stream}: log start {start_offset} behind the end {self.next_offset}")
        if faults.ARMED:
            faults.hit("log.trim")
        moved, self.start_offset = start_offset > self.start_offset, start_offset
        deletable = 0
        for segment in self._segments:
            if segment is self._segments.last or segment.next_offset > start_offset:
                break
            if segment.last_index > min(committed_index, self.durable_index):
                break
            deletable += 1
        dropped = self._segments.take_first(deletable)
        if dropped:
            last = dropped[-1]
            self._floor = Floor(last.last_index, last.last_term, last.next_offset)
            self.first_index = last.last_index + 1
            self._terms.drop_before(TermStart(last.last_term, last.last_index, last.next_offset))
            while len(self._configurations) > 1 and self._configurations[1][0] <= last.last_index:
                del self._configurations[0]
        if moved or dropped:
            self._save_state(dropped)

    def takeover_context(self) -> bytes:
        """What a replica that begins anew behind our floor must know: docs/formats.md."""
        index, configuration = self._configurations[0]
        application_index, application = self.application
        start_offset = max(self.start_offset, self.learned_start)
        places = (self._floor.offset, start_offset, index, application_index)
        return _CONTEXT.pack(CONTEXT_VERSION, *places, len(configuration)) + configuration + application

    def take_over(self, index: int, term: int, context: bytes) -> None:
        """Begin anew behind (index, term). `application` may then belong to a later index than the log has yet."""
        version, offset, learned_start, configuration_index, application_index, size = _CONTEXT.unpack_from(context)
        if version != CONTEXT_VERSION:
            raise FormatVersionError(f"a take-over's context has version {version}; this one reads {CONTEXT_VERSION}")
        application_at = _CONTEXT.size + size
        dropped = self._segments.take_first(len(self._segments))
        self._generation += 1
        self._era += 1
        self._floor = Floor(index, term, offset)
        self._configurations = [(configuration_index, context[_CONTEXT.size : application_at])]
        self._terms = TermHistory(TermStart(term, index, offset))
        self._around.cache.cut_from(self._tail, 0)
        self._tail = Tail(index + 1)
        self.first_index, self.last_index = index + 1, index
        self.start_offset = max(self.start_offset, offset)
        self.learned_start = max(self.learned_start, learned_start)
        self.next_offset = offset
        self.application = (application_index, context[application_at:])
        self.durable_index = index - 1  # until the new state is on disk
        self._save_state(dropped, Durable(self._generation, index))
        self._begin_segment()

    def _save_state(self, dropped: Sequence[Segment], durable: Durable | None = None) -> None:
        around, folder = self._around, self._folder
        leftovers = [Leftover(s.active_name, s.closed_name, around.readers.forget(s)) for s in dropped]

        def remove_dropped() -> None:
            if leftovers:
                around.housekeeper.submit(folder, lambda: remove_leftovers(around.disk, around.pool, folder, leftovers))

        self._writer.submit(self.stream, SaveState(self.state().encode(), remove_dropped, durable))

    def state(self) -> StreamState:
        index, configuration = self._configurations[0]
        return StreamState(
            self.stream,
            self.uuid,
            self._era,
            self._floor,
            self.start_offset,
            index,
            configuration,
            *self.application,
            self.learned_start,
        )

    def save_application(self, index: int, content: bytes) -> None:
        """Keep what the log's user has made of the entries up to `index`, which must be committed and durable."""
        self.application = (index, content)
        self._save_state(())

    def remove(self, then: Callable[[], None]) -> None:
        """The stream is deleted: nothing more is written, and `then` runs once that is so."""
        self._around.cache.cut_from(self._tail, 0)
        for segment in self._segments:
            self._around.readers.forget(segment)
        self._spare.abandon()
        self._writer.submit(self.stream, Close(then))

    # Segments.

    def roll(self) -> None:
        """Go on in a new segment, so that retention may delete the one before; nothing happens while it is empty."""
        if self._segments.last.count:
            self._begin_segment()

    def segments_view(self) -> list[SegmentView]:
        """The segments as they are now, oldest first; the last one is written to. No file is touched."""
        return [view_of(segment) for segment in self._segments]

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def closed_segments(self) -> Iterator[Segment]:
        """Those from the first on whose files have the form and the names that they keep."""
        return takewhile(lambda segment: segment.rows is None, iter(self._segments))

    def reader_of(self, segment: Segment) -> SegmentReader:
        return self._around.readers.reader(self._folder, segment)

    def _begin_segment(self) -> None:
        previous = self._segments.last if self._segments else None
        sequence = self._spare.take()
        self._settled = 0
        identity = Identity(
            stream_uuid=self.uuid,
            era=self._era,
            sequence=self._take_sequence() if sequence is None else sequence,
            first_index=self.last_index + 1,
            base_offset=previous.next_offset if previous else self._floor.offset,
            previous_term=previous.last_term if previous else self._floor.term,
            salt=self._around.rng.getrandbits(32),
            link=previous.link if previous else NO_LINK,
        )
        segment = Segment(identity, self._shape)
        self._segments.append(segment)
        self._writer.submit(self.stream, Begin(segment, self._closing(previous)))

    def _closing(self, segment: Segment | None) -> Callable[[], None]:
        """What closes the segment before, once it is complete on disk."""
        if segment is None or segment.rows is None:
            return _nothing
        around, folder = self._around, self._folder
        active, closed, length = segment.active_name, segment.closed_name, segment.length
        index = encode_index(segment, segment.rows)

        def close() -> None:
            close_segment(around.disk, folder, active, closed, index, length)
            around.on_loop(segment.forget_rows)

        return lambda: around.housekeeper.submit(folder, close)

    def _take_sequence(self) -> int:
        self._next_sequence += 1
        return self._next_sequence - 1

    def deliver(self, completion: Completion) -> bool:
        """Take a report of the writer in; true when `durable_index` moved."""
        if completion.full is not None:
            self._full = completion.full
        durable = completion.durable
        if durable is None or durable.generation != self._generation or durable.index <= self.durable_index:
            return False
        self.durable_index = durable.index
        self._around.cache.durable(self._tail, durable.index)
        return True

    # Looking up and reading.

    def term_at(self, index: int) -> int:
        if faults.ARMED:
            faults.hit("log.term")
        if not self.first_index - 1 <= index <= self.last_index:
            raise LogMismatchError(
                f"stream {self.stream}: no term for index {index}, {self.first_index}..{self.last_index} are held"
            )
        return self._terms.term_at(index)

    def last_index_of_term_at_most(self, index: int, term: int) -> int:
        return self._terms.last_index_of_term_at_most(index, term)

    def term_of_offset(self, offset: int) -> int:
        """Term of the entry that holds `offset`; behind the last one, the last entry's."""
        if not self.start_offset <= offset < self.next_offset:
            return self._terms.last_term
        return self._terms.term_at(self._segments.index_of_offset(offset))

    def end_of_term(self, term: int) -> tuple[int, int]:
        """(largest term <= `term`, the offset where it ends), or (-1, -1)."""
        return self._terms.end_of(term, self.next_offset)

    def offset_after(self, index: int) -> int:
        """The offset behind the entry at `index`: the high watermark when `index` is the commit index."""
        if index >= self.last_index:
            return self.next_offset
        return self._segments.offset_of(index + 1) if index >= self.first_index else self._floor.offset

    def index_at_time(self, timestamp: int) -> int | None:
        """Index of the first entry from the log start on with a record at or after `timestamp`."""
        if self.start_offset >= self.next_offset:
            return None
        index = self._segments.index_at_time(timestamp, self._segments.index_of_offset(self.start_offset))
        while index is not None and not self._reaches(index, timestamp):
            index = self._segments.index_at_time(timestamp, index + 1)
        return index

    def _reaches(self, index: int, timestamp: int) -> bool:
        """Whether the entry itself does; its row may only say that one before it did, before the log start."""
        entry = self.entries(index, index, 1)[0]
        return entry.kind is EntryKind.DATA and read_facts(entry.data)[3] >= timestamp

    def configurations(self) -> list[tuple[int, bytes]]:
        """(index, content) of a committed membership, at or before the floor if not learned, and of all later ones."""
        return list(self._configurations)

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        if self._tail.holds(first):
            return _cut_to_bytes(self._tail.entries_from(first, last), bytes_max)
        if faults.ARMED:
            faults.hit("log.entries")
        return self._segments.entries(first, min(last, self._tail.first_index - 1), bytes_max)

    def own_entries(self, first: int, last: int, kind: EntryKind | None = None) -> list[Entry]:
        """The entries first..last that are not records, in order: all, or those of one kind."""
        newest = self._segments.last
        if first >= newest.first_index + (newest.controls[-1] + 1 if newest.controls else 0):
            return []  # asked with every commit, of entries that are nearly always records
        return [self.entries(index, index, 1)[0] for index in self._segments.own_indexes(first, last, kind)]

    def batch_headers(self, first: int, last: int) -> Iterator[tuple[int, Buffer]]:
        """(index, header and maybe more) of the record batches first..last; of those in files only headers are read."""
        while first <= last and not self._tail.holds(first):
            end = min(last, self._tail.first_index - 1)
            segment = self._segments.of_index(first)
            yield from self._segments.batch_headers(segment, first, end)
            first = min(end, segment.last_index) + 1
        for entry in self._tail.entries_from(first, last) if first <= last else ():
            if entry.kind is EntryKind.DATA:
                yield entry.index, entry.data

    def read(self, offset: int, committed_index: int, bytes_max: int) -> Sequence[Chunk]:
        """Record batches from the one that holds `offset` on, in order, as memory or as ranges of a file.

        Nothing behind `committed_index` is given out. At most `bytes_max` bytes, but one batch in any case when there
        is one; and of one segment at most, so fewer bytes do not mean the end.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise ValueError(f"offset {offset} is not between {self.start_offset} and {self.next_offset}")
        if offset == self.next_offset:
            return []
        if faults.ARMED:
            faults.hit("log.read")
        segment, number = self._segments.locate(offset)
        index = segment.first_index + number
        last = min(committed_index, self.last_index)
        if self._tail.holds(index):
            return _data_within(self._tail.entries_from(index, last), bytes_max)
        return self._segments.file_ranges(segment, number, min(last, self._tail.first_index - 1), bytes_max)

    def index_of_offset(self, offset: int) -> int:
        """Index of the entry that holds `offset`; of the next one to come, at the end."""
        return self.last_index + 1 if offset >= self.next_offset else self._segments.index_of_offset(offset)

    def newest_timestamp(self, last_index: int) -> int:
        """The newest time in the segments up to an index; -1 when there is none."""
        return self._segments.newest_timestamp(last_index)

    @property
    def size_bytes(self) -> int:
        return sum(segment.length for segment in self._segments)


def _nothing() -> None:
    pass


def _cut_to_bytes(entries: Sequence[Entry], bytes_max: int) -> Sequence[Entry]:
    """The first entries with at most `bytes_max` bytes of data, but one in any case."""
    size = 0
    for number, entry in enumerate(entries):
        size += len(entry.data)
        if size > bytes_max and number:
            return entries[:number]
    return entries


def _data_within(entries: Sequence[Entry], bytes_max: int) -> list[Chunk]:
    """The record batches among `entries`, up to `bytes_max` bytes, but one in any case."""
    chunks: list[Chunk] = []
    size = 0
    for entry in entries:
        if entry.kind is EntryKind.DATA:
            size += len(entry.data)
            if size > bytes_max and chunks:
                break
            chunks.append(entry.data)
    return chunks
