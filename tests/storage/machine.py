"""A store over the simulated disk, beside a model of what it may and must hold after a power cut.

The model is the sequence of states that the log went through. The newest state whose durability was reported is the
least that a recovery must find; any later one is allowed, and so is each prefix of one append's entries, since a
group commit is not atomic.
"""

import random
from dataclasses import dataclass

from tests.sim.disk import SimDisk, SimulatedCrash
from tidelog.raft.log import Entry, EntryKind
from tidelog.storage import StorageSettings, Store, StoredVote, StreamLog, chunk_bytes
from tidelog.wire.batch import check_batch, read_stamp, split_batches
from tidelog.wire.records import Record, build_batch

STREAM = 5
TINY = StorageSettings(
    segment_bytes=8192, rows_bytes=4096, staging_bytes=4096, tail_cache_bytes=4096, readers_max=3, pool_files_max=2
)


@dataclass(frozen=True)
class Content:
    """One entry as a test compares it."""

    term: int
    kind: EntryKind
    offset: int
    data: bytes  # without the stamp, which the log gives


@dataclass(frozen=True)
class State:
    """The log at one moment: the index before it, and its entries."""

    floor: int
    entries: tuple[Content, ...]

    def prefix(self, count: int) -> "State":
        return State(self.floor, self.entries[:count])

    @property
    def last_index(self) -> int:
        return self.floor + len(self.entries)

    def agrees_with(self, other: "State") -> bool:
        """The same log, though one of the two may have lost more of its beginning."""
        floor = max(self.floor, other.floor)
        return self.last_index == other.last_index and self.behind(floor) == other.behind(floor)

    def behind(self, floor: int) -> tuple[Content, ...]:
        return self.entries[floor - self.floor :]


def batch_of(rng: random.Random, size: int, records: int = 1) -> bytearray:
    return build_batch([Record(rng.randbytes(size), timestamp=rng.randrange(1, 10**6)) for _ in range(records)])


def entries_of(log: StreamLog) -> list[Entry]:
    found: list[Entry] = []
    while log.first_index + len(found) <= log.last_index:
        found += log.entries(log.first_index + len(found), log.last_index, 3000)
    return found


def state_of(log: StreamLog) -> State:
    return State(log.first_index - 1, tuple(_content_of(log, entry) for entry in entries_of(log)))


def _content_of(log: StreamLog, entry: Entry) -> Content:
    data = bytes(entry.data)
    if entry.kind is EntryKind.DATA:
        assert read_stamp(data) == (log.offset_after(entry.index - 1), entry.term)
        data = data[8:12] + data[16:]
    return Content(entry.term, entry.kind, log.offset_after(entry.index - 1), data)


def read_all(log: StreamLog, bytes_max: int = 3000) -> list[bytes]:
    """Every record batch from the log start to the end, as a consumer gets them; offsets must be dense."""
    batches: list[bytes] = []
    offset = log.start_offset
    while offset < log.next_offset:
        data = chunk_bytes(log.read(offset, log.last_index, bytes_max))
        assert data, f"nothing to read at {offset}, the log ends at {log.next_offset}"
        for position, size in split_batches(data):
            header = check_batch(data[position : position + size])
            assert header.base_offset <= offset < header.next_offset
            offset = header.next_offset
            batches.append(data[position : position + size])
    return batches


class Machine:
    """One node's storage that can lose its power at any operation."""

    def __init__(self, seed: int, settings: StorageSettings = TINY, *, direct: bool = True) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.disk = SimDisk(random.Random(seed + 1), direct=direct)
        self.store = self._open()
        self.log = self.store.create_stream(STREAM, b"three nodes")
        self.term = 1
        self.states = [state_of(self.log)]  # the first one is reported durable, the last one is in memory
        self.vote = StoredVote(0, None)
        self.vote_pending: list[StoredVote] = []
        self.start_offsets = [0]
        self.committed_index = 0  # below it nothing is truncated

    def _open(self) -> Store:
        return Store(self.disk, "/data", self.settings, random.Random(self.rng.random()))

    def _changed(self) -> None:
        self.states.append(state_of(self.log))

    def append(self, *sizes: int, kind: EntryKind = EntryKind.DATA) -> None:
        before = self.states[-1]
        data = [batch_of(self.rng, size, 1 + size % 3) if kind is EntryKind.DATA else bytes(size) for size in sizes]
        self.log.append_new(self.term, kind, data)
        full = state_of(self.log)
        for count in range(len(before.entries) + 1, len(full.entries)):
            self.states.append(full.prefix(count))
        self.states.append(full)

    def truncate_from(self, index: int) -> None:
        """Only what was never committed is truncated, so on the way each shorter log is as good as the longer one."""
        self.term += 1
        before = self.states[-1]
        self.log.truncate_from(index)
        for count in reversed(range(index - self.log.first_index, len(before.entries))):
            self.states.append(before.prefix(count))

    def trim(self, start_offset: int) -> None:
        self.committed_index = max(self.committed_index, self.log.durable_index)
        self.log.trim(start_offset, self.committed_index)
        self.start_offsets.append(self.log.start_offset)
        self._changed()

    def take_over(self, index: int, offset: int) -> None:
        self.term += 1
        context = self.log.takeover_context()
        self.committed_index = index
        self.log.take_over(index, self.term, context[:1] + offset.to_bytes(8, "big") + context[9:])
        self._changed()

    def cast_vote(self, vote: StoredVote) -> None:
        self.store.save_vote(STREAM, vote)
        self.vote_pending.append(vote)

    def write(self) -> None:
        """One group commit, reported."""
        self.store.run_writer()
        self._deliver()

    def _deliver(self) -> None:
        delivered = self.store.deliver()
        for _, vote in delivered.votes:
            self.vote, self.vote_pending = vote, self.vote_pending[self.vote_pending.index(vote) + 1 :]
        if delivered.logs and self.log.durable_index >= self.log.first_index - 1:
            durable = self.states[-1].prefix(self.log.durable_index - self.states[-1].floor)
            newest = max(number for number, state in enumerate(self.states) if state.agrees_with(durable))
            del self.states[:newest]

    def keep_house(self) -> None:
        self.store.run_housekeeping()
        self._deliver()

    def rest(self) -> None:
        """Write and tidy up until nothing is left to do."""
        self.write()
        while self.store.run_housekeeping():
            self._deliver()
        self.write()
        assert self.log.durable_index == self.log.last_index

    def crash(self) -> None:
        if not self.disk.down:
            self.disk.crash()
        self.disk.restart()

    def recover(self) -> None:
        """Open what the crash left, again and again while opening it crashes too, and compare with the model."""
        self.store = self._open()
        # A stream that is not there was never durable: nothing of it may have been reported, as the check then finds.
        self.log = self.store.streams.get(STREAM) or self.store.create_stream(STREAM, b"three nodes")
        self._check_recovered()
        self.term += 1

    def _check_recovered(self) -> None:
        found = state_of(self.log)
        assert self.log.durable_index == self.log.last_index
        allowed = [(state.floor, len(state.entries)) for state in self.states]
        assert any(found.agrees_with(state) for state in self.states), (
            f"recovered {found.floor}+{len(found.entries)}, allowed: {allowed}"
        )
        assert self.log.start_offset in [*self.start_offsets, self.log.offset_after(found.floor)]
        assert self.store.vote(STREAM) in [self.vote, *self.vote_pending]
        read_all(self.log)
        self.committed_index = max(found.floor, min(self.committed_index, self.log.last_index))
        self.states = [found]
        self.start_offsets = [self.log.start_offset]
        self.vote, self.vote_pending = self.store.vote(STREAM), []


__all__ = ["STREAM", "TINY", "Machine", "SimulatedCrash", "batch_of", "entries_of", "read_all", "state_of"]
