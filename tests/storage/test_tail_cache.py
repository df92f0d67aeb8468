"""The tail cache: a budget of bytes over all streams, and never a byte less than what is not yet durable."""

import dataclasses
import random

from tests.storage.world import TINY, EntryKind, batch, new_disk, open_store, rest, sized_batch, write
from tidelog.raft.log import Entry
from tidelog.storage import FileRange
from tidelog.storage.tail_cache import ENTRY_BYTES, Tail, TailCache

SIZE = 1_000  # of an entry, as the budget has it


def _entry(index: int, size: int = SIZE) -> Entry:
    return Entry(index, 1, EntryKind.DATA, bytes(size - ENTRY_BYTES))


def _size(entry: Entry) -> int:
    return len(entry.data) + ENTRY_BYTES


def _held(tail: Tail) -> list[int]:
    return [entry.index for entry in tail.entries_from(tail.first_index, tail.next_index - 1)]


def test_entries_that_became_durable_first_go_first_over_all_streams() -> None:
    cache = TailCache(5 * SIZE)
    one, two = Tail(1), Tail(1)
    for index in (1, 2, 3):
        cache.extend(one, [_entry(index)])
        cache.extend(two, [_entry(index)])
    cache.durable(two, 2)
    assert cache.bytes == 5 * SIZE
    assert (_held(one), _held(two)) == ([1, 2, 3], [2, 3])
    cache.extend(one, [_entry(4)])
    cache.extend(one, [_entry(5)])
    cache.durable(one, 2)
    assert (_held(one), _held(two)) == ([2, 3, 4, 5], [3])
    assert cache.bytes == 5 * SIZE


def test_what_is_not_durable_is_never_let_go_whatever_the_budget_says() -> None:
    cache = TailCache(1)
    tail = Tail(1)
    for index in range(1, 11):
        cache.extend(tail, [_entry(index)])
    cache.durable(tail, 4)
    assert _held(tail) == [5, 6, 7, 8, 9, 10]
    assert cache.bytes == 6 * SIZE


def test_a_stream_that_is_held_up_does_not_keep_the_others_entries_in_memory() -> None:
    """Its disk is full, say: its first entry stays the oldest of all for a long time."""
    cache = TailCache(10 * SIZE)
    stuck, busy = Tail(1), Tail(1)
    cache.extend(stuck, [_entry(1)])
    for index in range(1, 500):
        cache.extend(busy, [_entry(index)])
        cache.durable(busy, index)
        assert cache.bytes <= 10 * SIZE
    assert _held(stuck) == [1]


def test_a_truncated_entry_s_bytes_are_given_back_and_its_successor_counts_anew() -> None:
    cache = TailCache(10_000)
    tail = Tail(1)
    for index in range(1, 6):
        cache.extend(tail, [_entry(index)])
    cache.durable(tail, 5)
    cache.cut_from(tail, 3)
    assert (cache.bytes, _held(tail)) == (2 * SIZE, [1, 2])
    for index in (3, 4):
        cache.extend(tail, [_entry(index, SIZE // 2)])
    assert (cache.bytes, _held(tail)) == (3 * SIZE, [1, 2, 3, 4])


def test_what_stands_in_a_durable_entry_s_place_after_a_truncation_is_not_durable() -> None:
    cache = TailCache(1)
    tail, other = Tail(1), Tail(1)
    cache.extend(other, [_entry(1)])
    cache.extend(tail, [_entry(1)])
    cache.extend(tail, [_entry(2)])
    cache.durable(tail, 2)
    cache.cut_from(tail, 2)
    cache.extend(tail, [_entry(2)])
    cache.durable(other, 1)
    assert _held(tail) == [2]
    cache.durable(tail, 2)
    assert cache.bytes == 0


def test_a_truncation_below_what_is_cached_empties_the_tail_and_it_goes_on_there() -> None:
    cache = TailCache(2 * SIZE)
    tail = Tail(1)
    for index in range(1, 9):
        cache.extend(tail, [_entry(index)])
    cache.durable(tail, 8)
    assert _held(tail) == [7, 8]
    cache.cut_from(tail, 3)
    assert (cache.bytes, tail.first_index, _held(tail)) == (0, 3, [])
    cache.extend(tail, [_entry(3)])
    assert _held(tail) == [3]


def test_a_range_that_ends_before_it_begins_is_empty() -> None:
    tail = Tail(101)
    for index in range(101, 201):
        tail.extend([_entry(index)])
    for last in (0, 1, 50, 99, 100):
        assert list(tail.entries_from(101, last)) == []
        assert list(tail.entries_from(150, last)) == []
    assert [entry.index for entry in tail.entries_from(150, 152)] == [150, 151, 152]


def test_the_accounts_hold_through_anything() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        cache = TailCache(20 * SIZE)
        tails = [Tail(rng.randrange(1, 50)) for _ in range(4)]
        durable = {id(tail): tail.first_index - 1 for tail in tails}
        for _ in range(400):
            tail = rng.choice(tails)
            match rng.randrange(6):
                case 0 | 1 | 2:
                    cache.extend(tail, [_entry(tail.next_index, rng.randrange(ENTRY_BYTES, 3 * SIZE))])
                case 3 | 4:
                    index = rng.randint(durable[id(tail)], tail.next_index - 1)
                    durable[id(tail)] = index
                    cache.durable(tail, index)
                    undurable = sum(
                        _size(e)
                        for t in tails
                        for e in t.entries_from(t.first_index, t.next_index)
                        if e.index > durable[id(t)]
                    )
                    assert cache.bytes <= max(20 * SIZE, undurable)
                case _ if tail.next_index - 1 > 0:
                    index = rng.randint(max(1, tail.next_index - 5), tail.next_index)
                    cache.cut_from(tail, index)
                    durable[id(tail)] = min(durable[id(tail)], index - 1)
                case _:
                    pass
            entries = [entry for each in tails for entry in each.entries_from(each.first_index, each.next_index)]
            assert cache.bytes == sum(map(_size, entries))
            for each in tails:
                assert each.first_index <= durable[id(each)] + 1


def test_the_budget_holds_for_many_streams_of_a_store() -> None:
    settings = dataclasses.replace(TINY, tail_cache_bytes=20_000)
    store = open_store(new_disk(), settings)
    logs = [store.create_stream(stream, b"") for stream in range(30)]
    cache = store._around.cache  # pyright: ignore[reportPrivateUsage]
    for round_number in range(6):
        for log in logs:
            log.append_new(1, EntryKind.DATA, [sized_batch(500)])
        write(store)
        assert cache.bytes <= 20_000, f"round {round_number}"
    store.delete_stream(0)
    logs[1].truncate_from(3)
    rest(store)
    held = sum(_size(entry) for log in logs[1:] for entry in log._tail.entries_from(log._tail.first_index, 99))  # pyright: ignore[reportPrivateUsage]
    assert cache.bytes == held


def test_the_newest_entries_are_served_from_memory_and_older_ones_from_files() -> None:
    settings = dataclasses.replace(TINY, tail_cache_bytes=3 * (500 + ENTRY_BYTES))
    store = open_store(new_disk(), settings)
    log = store.create_stream(1, b"")
    for _ in range(6):
        log.append_new(1, EntryKind.DATA, [sized_batch(500)])
        write(store)
    kinds = [isinstance(log.read(offset, 6, 1)[0], FileRange) for offset in range(6)]
    assert kinds == [True, True, True, False, False, False]


def test_a_batch_is_served_with_the_memory_that_it_arrived_in() -> None:
    store = open_store(new_disk(), dataclasses.replace(TINY, tail_cache_bytes=10_000))
    log = store.create_stream(1, b"")
    arrived = batch(b"not copied")
    log.append_new(1, EntryKind.DATA, [arrived])
    write(store)
    assert log.read(0, 1, 100)[0] is arrived


def test_the_memory_of_an_entry_that_is_let_go_is_free_at_once() -> None:
    """It belongs to whoever received it, who waits for it to be free."""
    buffers = [bytearray(100) for _ in range(10)]
    cache = TailCache(5 * (100 + ENTRY_BYTES))
    tail = Tail(1)
    for index, buffer in enumerate(buffers, 1):
        cache.extend(tail, [Entry(index, 1, EntryKind.DATA, memoryview(buffer))])
    cache.durable(tail, 10)
    for buffer in buffers[:5]:
        buffer.append(0)  # raises BufferError while a view of it is left
    assert _held(tail) == [6, 7, 8, 9, 10]
