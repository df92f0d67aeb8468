"""Random operations on several streams of one store, beside a model that is a list of entries for each of them."""

import dataclasses
import random
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.sim.disk import SimDisk
from tests.storage.world import TINY, Entry, EntryKind, batch, entries_of, power_cut, sized_batch
from tidelog.storage import Store, StreamLog, chunk_bytes
from tidelog.wire.batch import check_batch, read_stamp, split_batches, stamp

STREAMS = (1, 2, 3)
OWN_KINDS = (EntryKind.NOOP, EntryKind.CONFIGURATION, EntryKind.LOG_START)


@dataclass(frozen=True)
class ModelEntry:
    term: int
    kind: EntryKind
    data: bytes
    offset: int
    records: int
    timestamp: int


@dataclass
class Model:
    """One stream as it should be."""

    first_index: int = 1
    floor_term: int = 0
    floor_offset: int = 0
    start_offset: int = 0
    entries: list[ModelEntry] = field(default_factory=list[ModelEntry])
    configurations: list[tuple[int, bytes]] = field(default_factory=lambda: [(0, b"first members")])
    durable: int = 0  # index: what was reported durable and not truncated since
    committed: int = 0

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    @property
    def next_offset(self) -> int:
        return self.entries[-1].offset + self.entries[-1].records if self.entries else self.floor_offset

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.floor_term

    def at(self, index: int) -> ModelEntry:
        return self.entries[index - self.first_index]

    def term_at(self, index: int) -> int:
        return self.floor_term if index == self.first_index - 1 else self.at(index).term

    def offset_after(self, index: int) -> int:
        return self.floor_offset if index < self.first_index else self.at(index).offset + self.at(index).records

    def indexed(self) -> list[tuple[int, ModelEntry]]:
        return list(enumerate(self.entries, self.first_index))

    def truncate_from(self, index: int) -> None:
        del self.entries[index - self.first_index :]
        self.durable = min(self.durable, index - 1)
        self.configurations = [pair for pair in self.configurations if pair[0] < index]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk(random.Random(3))
        self.settings = dataclasses.replace(TINY, tail_cache_bytes=6000)
        self.store = self._open()
        self.models = {stream: Model() for stream in STREAMS}
        for stream in STREAMS:
            self.store.create_stream(stream, b"first members")

    def _open(self) -> Store:
        return Store(self.disk, "/data", self.settings, random.Random(4))

    def pair(self, stream: int) -> tuple[StreamLog, Model]:
        return self.store.streams[stream], self.models[stream]

    # ---- changes

    @rule(
        stream=st.sampled_from(STREAMS),
        sizes=st.lists(st.sampled_from([1, 20, 300, 1500, 4000, 8000]), min_size=1, max_size=4),
        records=st.integers(1, 3),
        timestamp=st.integers(0, 50),
        new_term=st.booleans(),
    )
    def append_new(self, stream: int, sizes: list[int], records: int, timestamp: int, new_term: bool) -> None:
        log, model = self.pair(stream)
        term = model.last_term + new_term
        batches: list[bytearray] = []
        for size in sizes:
            if size == 8000:
                batches.append(sized_batch(8000, timestamp=timestamp))
            else:
                batches.append(batch(bytes(size // records or 1), records=records, timestamp=timestamp))
        log.append_new(term, EntryKind.DATA, batches)
        for data in batches:
            self._model_append(model, term, EntryKind.DATA, bytes(data))

    @rule(stream=st.sampled_from(STREAMS), kind=st.sampled_from(OWN_KINDS), content=st.binary(max_size=40))
    def append_own(self, stream: int, kind: EntryKind, content: bytes) -> None:
        log, model = self.pair(stream)
        log.append_new(model.last_term, kind, [content])
        self._model_append(model, model.last_term, kind, content)

    @rule(
        stream=st.sampled_from(STREAMS), sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=5), own=st.booleans()
    )
    def append_received(self, stream: int, sizes: list[int], own: bool) -> None:
        log, model = self.pair(stream)
        entries: list[Entry] = []
        index, offset, term = model.last_index + 1, model.next_offset, model.last_term + 1
        for number, size in enumerate(sizes):
            if own and number % 2:
                entries.append(Entry(index + number, term, EntryKind.CONFIGURATION, b"received %d" % size))
                continue
            data = batch(bytes(size), timestamp=size)
            stamp(data, offset, term)
            offset += 1
            entries.append(Entry(index + number, term, EntryKind.DATA, bytes(data)))
        log.append_received(entries)
        for entry in entries:
            self._model_append(model, term, entry.kind, bytes(entry.data))

    def _model_append(self, model: Model, term: int, kind: EntryKind, data: bytes) -> None:
        header = check_batch(data) if kind is EntryKind.DATA else None
        if header is not None:
            assert read_stamp(data) == (model.next_offset, term)
        model.entries.append(
            ModelEntry(
                term,
                kind,
                data,
                model.next_offset,
                header.last_offset_delta + 1 if header else 0,
                header.max_timestamp if header else -1,
            )
        )
        if kind is EntryKind.CONFIGURATION:
            model.configurations.append((model.last_index, data))

    @rule(stream=st.sampled_from(STREAMS), count=st.integers(1, 30))
    def truncate(self, stream: int, count: int) -> None:
        log, model = self.pair(stream)
        index = max(model.committed + 1, model.first_index, model.last_index - count + 1)
        log.truncate_from(index)
        if index <= model.last_index:
            model.truncate_from(index)

    @rule(stream=st.sampled_from(STREAMS), part=st.floats(0, 1))
    def commit_and_trim(self, stream: int, part: float) -> None:
        log, model = self.pair(stream)
        model.committed = max(model.committed, model.durable)
        start = int(model.start_offset + part * (model.offset_after(model.committed) - model.start_offset))
        log.trim(start, model.committed)
        if start < model.start_offset:
            return
        model.start_offset = start
        assert log.first_index == model.first_index or log.offset_after(log.first_index - 1) <= start
        dropped = log.first_index - model.first_index
        assert log.first_index - 1 <= max(model.committed, model.first_index - 1)
        if dropped:
            last = model.entries[dropped - 1]
            model.floor_term, model.floor_offset = last.term, last.offset + last.records
            del model.entries[:dropped]
            model.first_index += dropped
            before = [pair for pair in model.configurations if pair[0] < model.first_index]
            model.configurations = before[-1:] + model.configurations[len(before) :]

    @rule(stream=st.sampled_from(STREAMS), ahead=st.integers(0, 40), offsets=st.integers(0, 40))
    @precondition(lambda self: any(model.entries for model in self.models.values()))
    def take_over(self, stream: int, ahead: int, offsets: int) -> None:
        log, model = self.pair(stream)
        index, term, offset = model.last_index + ahead, model.last_term + 1, model.next_offset + offsets
        start = max(offset, model.start_offset) + 7
        context = struct.pack(">BQQQQI", 1, offset, start, index, index + 5, 10) + b"taken over" + b"producers"
        log.take_over(index, term, context)
        self.models[stream] = Model(
            first_index=index + 1,
            floor_term=term,
            floor_offset=offset,
            start_offset=max(model.start_offset, offset),
            configurations=[(index, b"taken over")],
            durable=index - 1,
            committed=index,
        )
        assert log.takeover_context() == context
        assert log.learned_start == start
        assert log.application == (index + 5, b"producers")

    @rule(stream=st.sampled_from(STREAMS))
    def roll(self, stream: int) -> None:
        self.store.streams[stream].roll()

    @rule(stream=st.sampled_from(STREAMS))
    def settle(self, stream: int) -> None:
        self.store.streams[stream].settle()

    # ---- the other threads

    @rule()
    def write(self) -> None:
        self.store.run_write()

    @rule()
    def sync_and_deliver(self) -> None:
        self.store.run_sync()
        self._deliver()

    @rule()
    def keep_house(self) -> None:
        self.store.run_housekeeping()
        self._deliver()

    def _deliver(self) -> None:
        self.store.deliver()
        for stream, model in self.models.items():
            durable = self.store.streams[stream].durable_index
            assert model.durable <= durable <= model.last_index
            model.durable = durable

    # ---- restarts

    @rule()
    def stop_cleanly_and_start(self) -> None:
        self.store.run_writer()
        while self.store.run_housekeeping():
            self._deliver()
        self.store.run_writer()
        self._deliver()
        assert all(model.durable == model.last_index for model in self.models.values())
        self.store.close()
        self.store = self._open()

    @rule()
    def lose_power_and_start(self) -> None:
        """A power cut between group commits: what is durable is there, and nothing else (but see test_crashes)."""
        self.store.run_writer()
        self._deliver()
        power_cut(self.disk)
        self.store = self._open()

    @rule()
    def be_killed_and_start(self) -> None:
        self.store.run_writer()
        self._deliver()
        self.disk.kill()
        self.disk.restart()
        self.store = self._open()

    # ---- what must hold, whatever happened

    @invariant()
    def bounds_agree(self) -> None:
        for stream, model in self.models.items():
            log = self.store.streams[stream]
            assert (log.first_index, log.last_index) == (model.first_index, model.last_index)
            assert (log.start_offset, log.next_offset) == (model.start_offset, model.next_offset)
            assert log.configurations() == model.configurations
            assert log.accepting

    @rule(
        stream=st.sampled_from(STREAMS),
        first=st.integers(0, 60),
        count=st.integers(0, 30),
        bytes_max=st.integers(0, 9000),
    )
    def entries_agree(self, stream: int, first: int, count: int, bytes_max: int) -> None:
        log, model = self.pair(stream)
        if not model.entries:
            return
        first = model.first_index + first % len(model.entries)
        last = min(model.last_index, first + count)
        found = log.entries(first, last, bytes_max)
        assert 1 <= len(found) <= last - first + 1
        for entry in found:
            expected = model.at(entry.index)
            assert (entry.term, entry.kind, bytes(entry.data)) == (expected.term, expected.kind, expected.data)
        own = [index for index, entry in model.indexed() if first <= index <= last and entry.kind is not EntryKind.DATA]
        assert [entry.index for entry in log.own_entries(first, last)] == own

    @rule(
        stream=st.sampled_from(STREAMS),
        place=st.floats(0, 1),
        committed=st.floats(0, 1),
        bytes_max=st.integers(0, 20_000),
    )
    def reads_agree(self, stream: int, place: float, committed: float, bytes_max: int) -> None:
        log, model = self.pair(stream)
        if model.start_offset > model.next_offset:
            return
        offset = int(model.start_offset + place * (model.next_offset - model.start_offset))
        commit_index = int(model.first_index - 1 + committed * len(model.entries))
        data = chunk_bytes(log.read(offset, commit_index, bytes_max))
        visible = [
            entry
            for index, entry in model.indexed()
            if index <= commit_index and entry.kind is EntryKind.DATA and entry.offset + entry.records > offset
        ]
        found = [data[position : position + size] for position, size in split_batches(data)]
        assert found == [entry.data for entry in visible[: len(found)]]
        assert bool(found) == bool(visible)
        assert len(data) <= bytes_max or len(found) == 1

    @rule(
        stream=st.sampled_from(STREAMS), place=st.floats(0, 1), term=st.integers(-1, 12), timestamp=st.integers(0, 2100)
    )
    def lookups_agree(self, stream: int, place: float, term: int, timestamp: int) -> None:
        log, model = self.pair(stream)
        index = int(model.first_index - 1 + place * len(model.entries))
        assert log.term_at(index) == model.term_at(index)
        assert log.offset_after(index) == model.offset_after(index)
        held = range(model.first_index - 1, index + 1)
        lower = [i for i in held if model.term_at(i) <= term]
        assert log.last_index_of_term_at_most(index, term) == (lower[-1] if lower else model.first_index - 1)
        terms = [(model.floor_term, model.floor_offset), *[(e.term, e.offset + e.records) for e in model.entries]]
        at_most = [pair for pair in terms if pair[0] <= term]
        assert log.end_of_term(term) == (at_most[-1] if at_most else (-1, -1))
        reached = [
            i
            for i, entry in model.indexed()
            if entry.kind is EntryKind.DATA
            and entry.timestamp >= timestamp
            and entry.offset + entry.records > model.start_offset
        ]
        assert log.index_at_time(timestamp) == (reached[0] if reached else None)

    def teardown(self) -> None:
        for stream, model in self.models.items():
            found = entries_of(self.store.streams[stream])
            assert [(e.term, e.kind, bytes(e.data)) for e in found] == [(e.term, e.kind, e.data) for e in model.entries]


class TestStoreAgainstModel(StoreMachine.TestCase):
    settings = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.slow
class TestStoreAgainstModelForLonger(StoreMachine.TestCase):
    settings = settings(max_examples=150, stateful_step_count=100)
