"""Any order of writes, marks, cleanings, reopenings and moves between two nodes gives what the plain model gives.

Few examples by default, for each step is a real request to a real broker; `HYPOTHESIS_PROFILE=search` tries many more.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tidelog.regionwal import DROPPED, Bound, Entry, Fenced, RegionWal, Settings, WriteUnknown
from tidelog.regionwal.log import Log as Queue

from .memory_log import MemoryBroker, MemoryLog
from .model import RegionModel, deleted_in
from .world import Log, World, contents

REGION = 1
RECORD_BYTES_MAX = 400
EXAMPLES = max(3, settings().max_examples // 30)
STEPS = 30

_numbers = itertools.count(1)

tables = st.integers(0, 7)
# Some are larger than a message may be, and are split.
payloads = st.lists(st.one_of(st.binary(max_size=20), st.binary(min_size=900, max_size=1_000)), min_size=1, max_size=5)
bounds = st.builds(
    lambda make, number: make(number), st.sampled_from([Bound.included, Bound.excluded]), st.integers(0, 25)
)


class MemoryWorld:
    """A log in memory: many more examples in the same time."""

    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._nodes: list[RegionWal] = []

    def node(self, **settings: Any) -> RegionWal:
        chosen = Settings(bootstrap="memory", clean_period_s=0, **settings)
        self._nodes.append(RegionWal(chosen, cast(Queue, MemoryLog(self._broker))))
        return self._nodes[-1]

    def close(self) -> None:
        for wal in self._nodes:
            wal.close()


class RegionMachine(RuleBasedStateMachine):
    """One region, two nodes; `holder` is the one that opened it last."""

    def __init__(self, new_world: "Callable[[], World | MemoryWorld]") -> None:
        super().__init__()
        self.world = new_world()
        self.nodes = [self._new_node(), self._new_node()]
        self.holder = 0
        self.fenced: set[int] = set()  # nodes that do not know yet that the region was taken from them
        self.model = RegionModel()
        self.wal.open_region(REGION)

    def _new_node(self) -> RegionWal:
        return self.world.node(entry_record_bytes_max=RECORD_BYTES_MAX)

    @property
    def wal(self) -> RegionWal:
        return self.nodes[self.holder]

    def teardown(self) -> None:
        self.world.close()

    # Changes

    @rule(table=tables, batch=payloads)
    def write(self, table: int, batch: list[bytes]) -> None:
        assert self.wal.write(REGION, table, batch) == self.model.write(table, batch)

    @rule(batches=st.dictionaries(tables, payloads, min_size=2, max_size=4))
    def write_batch(self, batches: dict[int, list[bytes]]) -> None:
        lasts = self.wal.write_batch(REGION, batches)
        assert lasts == {table: self.model.write(table, batch) for table, batch in batches.items()}

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(sorted(self.model.tables)))
        held = self.model.tables[table]
        up_to = data.draw(st.integers(held.deleted, held.last))
        self.wal.mark_delete(REGION, table, up_to)
        self.model.mark(table, up_to)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(sorted(self.model.tables)))
        self.wal.mark_delete(REGION, table, DROPPED)
        self.model.mark(table, DROPPED)

    @rule()
    def clean(self) -> None:
        self.wal.clean_region(REGION)
        self.model.save()

    # Lives

    @rule()
    def close_and_reopen(self) -> None:
        self.wal.close_region(REGION)
        self.model.save()
        self.wal.open_region(REGION)

    @rule()
    def close_and_move(self) -> None:
        self.wal.close_region(REGION)
        self.model.save()
        self._open_on_the_other()

    @rule()
    def move_without_closing(self) -> None:
        """As when a node is thought dead, and is not."""
        old = self.holder
        self._open_on_the_other()
        self.fenced.add(old)
        self._accept_forgotten_marks()

    def _accept_forgotten_marks(self) -> None:
        """Those that the former holder had made since its last snapshot."""
        assert self.model.recover(deleted_in(self.wal, REGION))

    def _open_on_the_other(self) -> None:
        self.holder = 1 - self.holder
        if self.holder in self.fenced:  # it lost the region and takes it back
            self.fenced.discard(self.holder)
            self.wal.close_region(REGION)
        self.wal.open_region(REGION)

    @rule()
    def replace_the_process(self) -> None:
        """A new one opens the region while the old one still stands there, and has not closed anything."""
        self.nodes[self.holder] = self._new_node()
        self.wal.open_region(REGION)
        self._accept_forgotten_marks()

    @precondition(lambda self: self.fenced)
    @rule(table=tables, batch=payloads)
    def write_of_the_one_that_lost_the_region_fails(self, table: int, batch: list[bytes]) -> None:
        """Where the new holder has cleaned the log meanwhile, it cannot know what became of this one write."""
        [loser] = self.fenced
        with pytest.raises((Fenced, WriteUnknown)):
            self.nodes[loser].write(REGION, table, batch)
        with pytest.raises(Fenced):
            self.nodes[loser].write(REGION, table, batch)

    # Looking

    @rule(table=tables, start=st.just(Bound.min()) | bounds, end=st.just(Bound.max()) | bounds)
    def read(self, table: int, start: Bound, end: Bound) -> None:
        held = self.model.table(table).live
        wanted = [(table, sequence, payload) for sequence, payload in held if holds(start, end, sequence)]
        assert contents(self.wal.read(REGION, table, start, end)) == wanted

    @rule()
    def scan(self) -> None:
        assert contents(self.wal.scan(REGION)) == self.model.scanned

    @rule(parallel=st.integers(1, 3))
    def replay(self, parallel: int) -> None:
        found: dict[int, list[tuple[int, bytes]]] = {}
        lock = threading.Lock()

        def handler(table: int) -> Callable[[Sequence[Entry]], None]:
            def take(entries: Sequence[Entry]) -> None:
                with lock:
                    found.setdefault(table, []).extend((entry.sequence, bytes(entry.payload)) for entry in entries)

            return take

        self.wal.replay(REGION, handler, parallel=parallel)
        assert found == self.model.content

    @invariant()
    def numbers_go_on(self) -> None:
        for table, held in self.model.tables.items():
            assert self.wal.sequence_num(REGION, table) == held.last


def holds(start: Bound, end: Bound, sequence: int) -> bool:
    after_start = start == Bound.min() or sequence > start.sequence or start == Bound.included(sequence)
    before_end = end == Bound.max() or sequence < end.sequence or end == Bound.included(sequence)
    return after_start and before_end


@pytest.mark.slow
def test_region_is_what_the_model_is(log: Log) -> None:
    few = settings(max_examples=EXAMPLES, stateful_step_count=STEPS)
    new_world = lambda: World(log, f"machine{next(_numbers)}")  # noqa: E731
    run_state_machine_as_test(partial(RegionMachine, new_world), settings=few)  # pyright: ignore[reportArgumentType]


def test_region_is_what_the_model_is_in_memory() -> None:
    many = settings(max_examples=settings().max_examples // 2, stateful_step_count=STEPS)
    run_state_machine_as_test(partial(RegionMachine, MemoryWorld), settings=many)  # pyright: ignore[reportArgumentType]
