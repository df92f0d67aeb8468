"""One writer at a time, and no write in doubt: each interleaving by itself, then all of them at random.

The log is in memory (`memory_log`): it loses, delays and reorders what a test tells it to. The rules that are tried
here are those of `tidelog/regionwal/fold.py`.
"""

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import pytest

from tidelog.regionwal import Bound, Fenced, RegionWalError, Settings, Timeout, WriteFailed, WriteUnknown
from tidelog.regionwal.fold import DataFold
from tidelog.regionwal.log import Log
from tidelog.regionwal.opening import Topics, open_to_write, take_data, take_meta
from tidelog.regionwal.region import Region
from tidelog.regionwal.snapshot_format import Snapshot
from tidelog.regionwal.writer import Batch, State

from .memory_log import Fate, InlineExecutor, LaterExecutor, MemoryBroker, MemoryLog

TOPICS = Topics(7, "wal_data_7", "wal_meta_7")
TIMEOUT_S = 1.0
SETTINGS = Settings(bootstrap="memory", write_timeout_s=TIMEOUT_S, entry_record_bytes_max=8)


class Process:
    """One process that may open the region."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.log = MemoryLog(broker)
        self._region: Region | None = None

    def open(self) -> Region:
        log = cast("Log", self.log)
        opened = open_to_write(log, TOPICS, TIMEOUT_S, accept_loss=False)
        self._region = Region(log, TOPICS, opened, SETTINGS, InlineExecutor())
        return self._region

    @property
    def region(self) -> Region:
        return self._region or self.open()

    def write(self, table: int, *payloads: bytes) -> int:
        return self.region.submit({table: payloads}).result(TIMEOUT_S)[table]

    def entries(self, table: int) -> list[tuple[int, bytes]]:
        chunks = self.region.read(table, Bound.min(), Bound.max())
        return [(entry.sequence, entry.payload) for chunk in chunks for stretch in chunk for entry in stretch]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def first(broker: MemoryBroker) -> Process:
    return Process(broker)


@pytest.fixture
def second(broker: MemoryBroker) -> Process:
    return Process(broker)


def fates(*those: Fate) -> Callable[[str], Fate]:
    """Of the next records for the data topic; then all is fine."""
    coming = list(those)
    return lambda topic: coming.pop(0) if coming and topic == TOPICS.data else Fate.FINE


# --- two processes ---------------------------------------------------------------------------------------------------


def test_second_opener_makes_the_first_ones_next_write_fail(first: Process, second: Process) -> None:
    first.write(1, b"a")
    second.open()

    with pytest.raises(Fenced, match=r"opened by another process.*epoch 2, ours is 1"):
        first.write(1, b"b")
    assert second.entries(1) == [(1, b"a")]


def test_fenced_region_stays_unusable_until_it_is_opened_again(first: Process, second: Process) -> None:
    first.write(1, b"a")
    second.open()
    with pytest.raises(Fenced):
        first.write(1, b"b")

    for use in (
        lambda: first.write(1, b"c"),
        lambda: first.region.mark_delete(1, 1),
        lambda: first.region.sequence_num(1),
        first.region.clean,
    ):
        with pytest.raises(Fenced):
            use()
    first.open()
    assert first.write(1, b"d") == 2


def test_fenced_write_is_not_taken_for_the_new_owners_entry_of_the_same_number(first: Process, second: Process) -> None:
    first.write(1, b"a")
    second.open()
    assert second.write(1, b"theirs") == 2

    with pytest.raises(Fenced):
        first.write(1, b"ours")
    assert second.entries(1) == [(1, b"a"), (2, b"theirs")]


def test_write_that_landed_before_the_other_opened_is_acknowledged_after_it(first: Process, second: Process) -> None:
    first.open()
    first.log.hold = True
    before = first.region.submit({1: [b"before"]})
    second.open()
    after = first.region.submit({1: [b"after"]})
    first.log.release()

    assert before.result(TIMEOUT_S) == {1: 1}
    with pytest.raises(Fenced):
        after.result(TIMEOUT_S)
    assert second.entries(1) == [(1, b"before")]


def test_new_owner_writes_on_over_what_a_fenced_one_still_gets_into_the_log(first: Process, second: Process) -> None:
    first.write(1, b"a")
    second.open()
    with pytest.raises(Fenced):
        first.write(1, b"zombie", b"zombie")

    assert second.write(1, b"b", b"c") == 3
    second.open()
    assert second.entries(1) == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_fenced_process_cannot_delete_with_marks_the_new_owner_does_not_know(
    first: Process, second: Process, broker: MemoryBroker
) -> None:
    first.write(1, b"a", b"b")
    second.open()
    first.region.mark_delete(1, 2)  # it does not know yet

    with pytest.raises(Fenced):
        first.region.clean()
    assert broker.earliest[TOPICS.data] == 0
    assert second.entries(1) == [(1, b"a"), (2, b"b")]
    assert first.region.state is State.FENCED


def test_deletion_that_comes_after_the_other_opened_deletes_nothing_it_needs(first: Process, second: Process) -> None:
    first.write(1, b"a", b"b", b"c")
    first.region.mark_delete(1, 2)
    first.log.before = lambda call: second.open() and None if call == "delete_before" and not opened() else None

    def opened() -> bool:
        return second._region is not None

    first.region.clean()

    assert second.entries(1) == [(3, b"c")]
    assert second.write(1, b"d") == 4


@pytest.mark.parametrize("step", range(1, 14))
def test_of_two_openers_at_once_exactly_one_stays(step: int, first: Process, second: Process) -> None:
    """The second opens while the first is at its n-th call to the log."""
    Process(first.log.broker).write(1, b"a")
    calls = 0

    def look(_call: str) -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            second.open()

    first.log.before = look
    first.open()
    first.log.before = lambda _call: None
    assert calls >= step

    wrote = []
    for process in (first, second):
        try:
            process.write(1, b"x")
            wrote.append(process)
        except Fenced:
            pass
    assert len(wrote) == 1
    assert Process(first.log.broker).entries(1) == [(1, b"a"), (2, b"x")]


@pytest.mark.parametrize("step", range(1, 12))
def test_opener_that_dies_on_the_way_leaves_a_region_that_opens(step: int, first: Process, second: Process) -> None:
    first.write(1, b"a", b"b")
    first.region.mark_delete(1, 1)
    first.region.save()
    calls = 0

    def die(_call: str) -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            raise KeyboardInterrupt

    second.log.before = die
    with pytest.raises(KeyboardInterrupt):
        second.open()

    third = Process(first.log.broker)
    assert third.entries(1) == [(2, b"b")]
    assert third.write(1, b"c") == 3


def test_epoch_record_that_arrives_late_fences_nobody(first: Process, second: Process, broker: MemoryBroker) -> None:
    first.log.fate = lambda topic: Fate.LATE if topic == TOPICS.meta else Fate.FINE
    with pytest.raises(Timeout):
        first.open()
    second.write(1, b"a")

    broker.arrive()

    assert second.write(1, b"b") == 2
    second.region.save()
    assert Process(broker).entries(1) == [(1, b"a"), (2, b"b")]


def test_late_snapshot_does_not_take_the_place_of_a_newer_one(first: Process, broker: MemoryBroker) -> None:
    first.write(1, b"a", b"b")
    first.region.mark_delete(1, 1)
    first.log.fate = lambda topic: Fate.LATE if topic == TOPICS.meta else Fate.FINE
    with pytest.raises(Timeout):
        first.region.save()
    first.log.fate = lambda _topic: Fate.FINE
    first.region.mark_delete(1, 2)
    first.region.clean()

    broker.arrive()

    assert Process(broker).region.sequence_num(1) == 2
    assert Process(broker).entries(1) == []
    first_again = Process(broker)
    assert first_again.write(1, b"c") == 3


def test_openers_that_take_the_same_epoch_are_told_apart_by_the_logs_order(first: Process, second: Process) -> None:
    first.log.ensure_topics([TOPICS.data, TOPICS.meta], 0.0)
    others: list[int] = []

    def tie(call: str) -> None:
        if call == "send" and not others:
            others.append(take_meta(cast("Log", second.log), TOPICS, 0, TIMEOUT_S).epoch)

    first.log.before = tie

    assert take_meta(cast("Log", first.log), TOPICS, 0, TIMEOUT_S).epoch > others[0]


def test_opener_that_finds_a_higher_epoch_writes_nothing_to_the_data_topic(
    first: Process, broker: MemoryBroker
) -> None:
    first.open()
    records = len(broker.records[TOPICS.data])
    late = DataFold.from_snapshot(Snapshot())

    with pytest.raises(Fenced):
        take_data(cast("Log", MemoryLog(broker)), TOPICS, late, 1 << 32, TIMEOUT_S)
    assert len(broker.records[TOPICS.data]) == records


def test_opener_is_overtaken_between_its_look_and_its_epoch_record(
    first: Process, second: Process, broker: MemoryBroker
) -> None:
    first.log.ensure_topics([TOPICS.data, TOPICS.meta], 0.0)

    def overtake(call: str) -> None:
        if call == "send" and second._region is None:
            second.write(1, b"theirs")

    first.log.before = overtake

    with pytest.raises(Fenced):
        take_data(cast("Log", first.log), TOPICS, DataFold.from_snapshot(Snapshot()), 1 << 32, TIMEOUT_S)


def test_process_that_was_fenced_so_long_ago_that_nothing_tells_is_fenced_all_the_same(
    first: Process, second: Process, broker: MemoryBroker
) -> None:
    """The new owner flushed and deleted everything, its epoch record too: the log looks like nobody's."""
    first.write(1, b"a")
    second.write(1, b"b")
    second.region.mark_delete(1, 2)
    second.region.clean()
    assert broker.earliest[TOPICS.data] == len(broker.records[TOPICS.data])

    with pytest.raises(WriteUnknown):
        first.write(1, b"c")
    with pytest.raises(Fenced, match="cleaned by another process"):
        first.write(1, b"d")
    assert second.write(1, b"e") == 3


def test_mark_that_is_in_no_snapshot_yet_deletes_nothing(first: Process, broker: MemoryBroker) -> None:
    first.write(1, b"a", b"b", b"c")
    first.region.mark_delete(1, 1)
    first.log.before = lambda call: first.region.mark_delete(1, 3) if call == "delete_before" else None

    first.region.clean()

    assert Process(broker).entries(1) == [(2, b"b"), (3, b"c")]


# --- writes in doubt -------------------------------------------------------------------------------------------------


def test_write_whose_answer_is_lost_succeeds_after_all(first: Process) -> None:
    first.open()
    first.log.fate = fates(Fate.ANSWER_LOST, Fate.ANSWER_LOST)

    assert first.write(1, b"a", b"b") == 2
    assert first.write(1, b"c") == 3
    assert first.entries(1) == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_write_that_never_landed_fails_and_its_numbers_go_to_the_next(first: Process) -> None:
    first.write(1, b"a")
    first.log.fate = fates(Fate.LOST)

    with pytest.raises(WriteFailed, match="nothing of it is there") as raised:
        first.write(1, b"b")
    assert raised.value.written == {}
    assert first.write(1, b"c") == 2
    assert first.entries(1) == [(1, b"a"), (2, b"c")]


def test_write_that_lands_after_it_failed_never_counts(first: Process, broker: MemoryBroker) -> None:
    first.open()
    first.log.fate = fates(Fate.LATE)
    with pytest.raises(WriteFailed):
        first.write(1, b"late")
    first.write(1, b"a")

    broker.arrive()

    assert first.write(1, b"b") == 2
    assert Process(broker).entries(1) == [(1, b"a"), (2, b"b")]


def test_late_write_that_lands_before_the_epoch_record_counts(first: Process, broker: MemoryBroker) -> None:
    first.open()
    first.log.fate = fates(Fate.LATE)
    first.log.before = lambda call: broker.arrive() if call == "watermarks" and broker.late else None

    assert first.write(1, b"a") == 1
    assert Process(broker).entries(1) == [(1, b"a")]


def test_write_of_which_only_the_beginning_landed_says_so(first: Process) -> None:
    first.open()
    first.log.fate = fates(Fate.FINE, Fate.FINE, Fate.LOST, Fate.FINE)

    with pytest.raises(WriteFailed) as raised:
        first.write(1, b"a", b"b", b"lost", b"behind the hole")
    assert raised.value.written == {1: 2}
    assert first.entries(1) == [(1, b"a"), (2, b"b")]
    assert first.write(1, b"c") == 3


def test_writes_behind_a_failed_one_of_the_same_table_fail_too_and_others_do_not(first: Process) -> None:
    first.open()
    first.log.fate = fates(Fate.LOST)
    first.log.hold = True
    lost = first.region.submit({1: [b"lost"]})
    behind = first.region.submit({1: [b"behind"]})
    other = first.region.submit({2: [b"other"]})
    first.log.release()

    for future in (lost, behind):
        with pytest.raises(WriteFailed):
            future.result(TIMEOUT_S)
    assert other.result(TIMEOUT_S) == {2: 1}
    assert first.write(1, b"a") == 1
    assert (first.entries(1), first.entries(2)) == ([(1, b"a")], [(1, b"other")])


def test_write_is_unknown_while_the_log_cannot_be_asked_and_known_before_the_next(
    first: Process, broker: MemoryBroker
) -> None:
    first.open()
    first.log.fate = fates(Fate.LATE, Fate.LOST)  # the write, and the epoch record that would have told
    with pytest.raises(WriteUnknown):
        first.write(1, b"a")
    assert first.region.state is State.BROKEN
    broker.arrive()

    assert first.region.sequence_num(1) == 1
    assert first.write(1, b"b") == 2
    assert first.entries(1) == [(1, b"a"), (2, b"b")]


def test_split_entry_of_which_a_part_is_missing_does_not_count(first: Process, broker: MemoryBroker) -> None:
    first.write(1, b"short")
    first.log.fate = fates(Fate.FINE, Fate.LOST)

    with pytest.raises(WriteFailed):
        first.write(1, b"much longer than a record may be")
    assert first.write(1, b"long enough for several records") == 2
    assert Process(broker).entries(1) == [(1, b"short"), (2, b"long enough for several records")]


def test_write_that_comes_just_when_another_fails_waits_until_that_is_known(broker: MemoryBroker) -> None:
    log, waiting = MemoryLog(broker), LaterExecutor()
    opened = open_to_write(cast("Log", log), TOPICS, TIMEOUT_S, accept_loss=False)
    region = Region(cast("Log", log), TOPICS, opened, SETTINGS, waiting)
    writer, looks = region._writer, []
    wait_until_open = writer.wait_until_open

    def look(deadline: float) -> None:
        """The first write's failure comes right after the second one saw that all is well."""
        looks.append(writer.state)
        if len(looks) == 2:
            waiting.run()
        wait_until_open(deadline)
        if len(looks) == 1:
            log.release()

    log.fate = fates(Fate.LOST)
    log.hold = True
    failed = region.submit({1: [b"lost"]})
    writer.wait_until_open = look
    later = region.submit({1: [b"a"]})

    assert looks == [State.OPEN, State.SUSPECT]
    with pytest.raises(WriteFailed):
        failed.result(TIMEOUT_S)
    assert later.result(TIMEOUT_S) == {1: 1}


# --- everything at once ----------------------------------------------------------------------------------------------

TABLES = (1, 2, 3)
STEPS = 40
CHAOS_SEEDS = 100


class Chaos:
    """Processes that open, write, mark, clean and die at random, on a log that fails at random; and what must hold."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.broker = MemoryBroker()
        self.processes = [Process(self.broker) for _ in range(3)]
        self.trouble = 0.0
        self.number = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.never: set[bytes] = set()  # payloads of writes that failed for certain
        self.owner: Process | None = None  # the last that opened the region and was told so
        self.deletable: dict[int, int] = dict.fromkeys(TABLES, 0)
        for process in self.processes:
            process.log.fate = self.fate
            process.log.before = self.before

    def fate(self, _topic: str) -> Fate:
        if self.dice.random() >= self.trouble:
            return Fate.FINE
        return self.dice.choice([Fate.ANSWER_LOST, Fate.LOST, Fate.LATE])

    def before(self, _call: str) -> None:
        if self.broker.late and self.dice.random() < 0.2:
            self.broker.arrive(self.dice.randrange(len(self.broker.late)))

    def step(self) -> None:
        self.trouble = self.dice.choice([0.0, 0.0, 0.05, 0.3])
        process = self.dice.choice(self.processes)
        doing = self.dice.choice([self.write, self.write, self.write, self.mark, self.clean, self.open, self.die])
        try:
            doing(process)
        except RegionWalError:
            process.log.release()

    def open(self, process: Process) -> None:
        process.open()
        self.owner = process

    def die(self, process: Process) -> None:
        process._region = None

    def opened(self, process: Process) -> Region:
        if process._region is None or process._region.state is State.FENCED:
            self.open(process)
        return process.region

    def write(self, process: Process) -> None:
        region = self.opened(process)
        region.sequence_num(1)  # whatever was in doubt is known, so that submitting does not wait for reports
        process.log.hold = True
        writes = []
        for _ in range(self.dice.randint(1, 3)):
            batch = {
                table: [self.payload() for _ in range(self.dice.randint(1, 3))]
                for table in self.dice.sample(TABLES, self.dice.randint(1, 2))
            }
            writes.append((batch, region.submit(batch)))
        process.log.release()
        for batch, future in writes:
            self.settle(batch, future)

    def payload(self) -> bytes:
        self.number += 1
        return f"{self.number:03}".encode() * self.dice.choice([1, 1, 1, 7])

    def settle(self, batch: Batch, future: "Future[dict[int, int]]") -> None:
        error = future.exception(TIMEOUT_S)
        assert error is None or isinstance(error, RegionWalError), error
        if isinstance(error, WriteUnknown):
            return
        lasts = future.result() if error is None else getattr(error, "written", {})
        for table, payloads in batch.items():
            # Only the end is told; where nothing is missing, it is counted back from there.
            if error is None:
                first = lasts[table] - len(payloads) + 1
                for sequence, payload in enumerate(payloads, first):
                    assert self.acknowledged.setdefault((table, sequence), payload) == payload
            elif table not in lasts:
                self.never.update(payloads)

    def mark(self, process: Process) -> None:
        region = self.opened(process)
        table = self.dice.choice(TABLES)
        last = region.sequence_num(table)
        up_to = self.dice.randint(0, last)
        region.mark_delete(table, up_to)
        if process is self.owner:
            self.deletable[table] = max(self.deletable[table], up_to)

    def clean(self, process: Process) -> None:
        self.opened(process).clean()

    def check(self) -> None:
        last = Process(self.broker)
        found = {(table, sequence): payload for table in TABLES for sequence, payload in last.entries(table)}
        for (table, sequence), payload in self.acknowledged.items():
            if sequence > self.deletable[table]:
                assert found.get((table, sequence)) == payload, f"table {table}, sequence {sequence}"
            else:
                assert found.get((table, sequence), payload) == payload
        assert not self.never & set(found.values())
        assert len(set(found.values())) == len(found)
        for table in TABLES:
            numbers = [sequence for known, sequence in found if known == table]
            end = last.region.sequence_num(table) + 1
            assert numbers == list(range(end - len(numbers), end))
            assert end > max((sequence for known, sequence in self.acknowledged if known == table), default=0)
        last.write(1, b"and on it goes")


@pytest.mark.parametrize("seed", range(CHAOS_SEEDS))
def test_no_acknowledged_write_is_lost_and_no_failed_one_comes_back(seed: int) -> None:
    chaos = Chaos(random.Random(seed))
    for _ in range(STEPS):
        chaos.step()
    chaos.trouble = 0.0
    chaos.check()
