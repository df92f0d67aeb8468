"""What is kept of the store's content: one load a name, budgets, files that cannot be trusted."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.world import until
from tidelog.tier.cache import PIECE_BYTES, Buffer, DiskCache, InFlight
from tidelog.tier.errors import StoreUnavailableError

MEMORY = 100


class Store:
    """Counts loads, and answers when it is told to."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    def load(self, name: str, size: int = 10) -> Callable[[], Awaitable[Buffer]]:
        async def fetch() -> Buffer:
            self.loaded.append(name)
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            return name.encode().ljust(size, b".")

        return fetch


@pytest.fixture
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


def cache_in(folder: Path, threads: ThreadPoolExecutor, bytes_max: int = 1_000, **options: int) -> DiskCache:
    in_flight = InFlight(options.get("in_flight", 1_000))
    keeps_first = bool(options.get("keeps_first", 1))
    memory = options.get("memory", MEMORY)
    return DiskCache(str(folder), bytes_max, memory, in_flight, threads, keeps_first=keeps_first)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def fetch(cache: DiskCache, store: Store, name: str, size: int = 10) -> bytes:
    return bytes(await cache.get(name, size, store.load(name, size)))


async def test_many_who_ask_at_once_cause_one_load(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache, store = cache_in(tmp_path, threads), Store()
    answers = await asyncio.gather(*(fetch(cache, store, "a") for _ in range(20)))
    assert store.loaded == ["a"]
    assert set(answers) == {b"a........."}
    await cache.close()


async def test_a_load_goes_on_when_the_one_who_asked_has_given_up(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache, store = cache_in(tmp_path, threads), Store()
    store.gate.clear()
    asking = asyncio.ensure_future(fetch(cache, store, "a"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    store.gate.set()
    assert await fetch(cache, store, "a") == b"a........."
    assert store.loaded == ["a"]
    await cache.close()


async def test_what_fell_out_of_memory_is_found_on_disk(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache, store = cache_in(tmp_path, threads, memory=10), Store()
    await fetch(cache, store, "a")
    await fetch(cache, store, "b")
    await cache.settled()
    assert await fetch(cache, store, "a") == b"a........."
    assert store.loaded == ["a", "b"]
    assert cache.counts.disk_hits == 1
    await cache.close()


async def test_the_next_process_finds_it_too(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache, store = cache_in(tmp_path, threads), Store()
    await fetch(cache, store, "a")
    await cache.settled()
    (tmp_path / "b.tmp").write_bytes(b"half")
    again = cache_in(tmp_path, threads)
    assert await fetch(again, store, "a") == b"a........."
    assert store.loaded == ["a"]
    assert not (tmp_path / "b.tmp").exists()
    await again.close()


async def test_the_disk_budget_holds_and_the_least_recently_used_goes(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store = cache_in(tmp_path, threads, bytes_max=30, memory=1), Store()
    for name in ("a", "b"):
        await fetch(cache, store, name)
        await cache.settled()
    await fetch(cache, store, "a")
    await fetch(cache, store, "c")
    await cache.settled()
    await asyncio.sleep(0)
    assert names_in(tmp_path) == ["a", "c"]
    assert cache.bytes == 28
    cache.set_budget(14)
    assert names_in(tmp_path) == ["c"]
    await cache.close()


async def test_what_is_evicted_while_it_is_about_to_be_read_is_served_all_the_same(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store = cache_in(tmp_path, threads, memory=10), Store()
    await fetch(cache, store, "a")
    await fetch(cache, store, "b")  # "a" is on disk alone
    await cache.settled()
    gate = threading.Event()
    busy = threads.submit(gate.wait)
    await until(busy.running)
    asked = asyncio.ensure_future(fetch(cache, store, "a"))
    await until(lambda: threads._work_queue.qsize() == 1)  # it waits for the thread
    cache.set_budget(1)
    gate.set()
    assert await asked == b"a........."
    assert (names_in(tmp_path), cache.bytes) == ([], 0)
    await cache.close()


async def test_what_is_read_once_is_not_written_to_disk_and_what_is_read_again_is(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store = cache_in(tmp_path, threads, memory=1, keeps_first=0), Store()
    for name in ("a", "b", "c"):
        await fetch(cache, store, name)
    assert names_in(tmp_path) == []
    await fetch(cache, store, "a")
    await cache.settled()
    assert names_in(tmp_path) == ["a"]
    await fetch(cache, store, "b")
    await fetch(cache, store, "a")
    assert store.loaded == ["a", "b", "c", "a", "b"]
    await cache.close()


async def test_a_budget_that_is_given_later_is_used(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache, store = cache_in(tmp_path / "cache", threads, bytes_max=0, memory=1), Store()
    await fetch(cache, store, "a")
    cache.set_budget(100)
    await fetch(cache, store, "b")
    await cache.settled()
    assert names_in(tmp_path / "cache") == ["b"]
    await cache.close()


async def test_something_larger_than_the_budget_is_served_and_not_kept(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store = cache_in(tmp_path, threads, bytes_max=5), Store()
    assert len(await fetch(cache, store, "a")) == 10
    assert names_in(tmp_path) == []
    await cache.close()


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
async def test_a_file_that_was_harmed_is_loaded_again(tmp_path: Path, threads: ThreadPoolExecutor, harm: str) -> None:
    cache, store = cache_in(tmp_path, threads), Store()
    await fetch(cache, store, "a")
    await cache.settled()
    path = tmp_path / "a"
    content = path.read_bytes()
    match harm:
        case "flip":
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        case "cut":
            path.write_bytes(content[:3])
        case _:
            pass
    again = cache_in(tmp_path, threads)
    if harm == "remove":
        path.unlink()
    assert await fetch(again, store, "a") == b"a........."
    assert store.loaded == ["a", "a"]
    await again.close()


async def test_an_error_reaches_all_who_asked_and_the_next_one_tries_again(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store = cache_in(tmp_path, threads), Store()
    store.error = StoreUnavailableError("down")
    answers = await asyncio.gather(*(fetch(cache, store, "a") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailableError) for answer in answers)
    store.error = None
    assert await fetch(cache, store, "a") == b"a........."
    assert store.loaded == ["a", "a"]
    await cache.close()


async def test_loads_under_way_are_bounded_and_those_ahead_are_turned_away(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store = cache_in(tmp_path, threads, in_flight=20), Store()
    store.gate.clear()
    asking = [asyncio.ensure_future(fetch(cache, store, name)) for name in "abc"]
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.loaded == ["a", "b"]
    cache.prefetch("d", 10, store.load("d"))
    store.gate.set()
    await asyncio.gather(*asking)
    assert store.loaded == ["a", "b", "c"]
    cache.prefetch("d", 10, store.load("d"))
    await fetch(cache, store, "d")
    assert store.loaded == ["a", "b", "c", "d"]
    assert cache._in_flight.bytes == 0
    await cache.close()


async def test_who_gives_up_waiting_for_room_leaves_it_to_the_others() -> None:
    budget = InFlight(10)
    await budget.take(10)
    first, second = (asyncio.ensure_future(budget.take(10)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    budget.give_back(10)
    await second
    budget.give_back(10)
    assert budget.bytes == 0


async def test_something_larger_than_all_the_room_goes_alone() -> None:
    budget = InFlight(10)
    await budget.take(50)
    assert not budget.has_room(1)
    budget.give_back(50)
    assert budget.has_room(50)


async def test_what_is_forgotten_is_gone_from_memory_and_disk(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache, store = cache_in(tmp_path, threads), Store()
    for name in ("x-0", "x-1", "y-0"):
        await fetch(cache, store, name)
    await cache.settled()
    await asyncio.sleep(0)
    cache.forget("x-")
    assert names_in(tmp_path) == ["y-0"]
    await fetch(cache, store, "x-0")
    assert store.loaded.count("x-0") == 2
    await cache.close()


async def test_a_folder_that_cannot_be_written_makes_the_cache_useless_and_nothing_else(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache, store = cache_in(tmp_path / "file" / "cache", threads), Store()
    assert await fetch(cache, store, "a") == b"a........."
    assert await fetch(cache, store, "a") == b"a........."
    await cache.close()
    assert cache.bytes == 0


async def test_files_are_written_one_at_a_time_and_what_comes_meanwhile_is_not_kept(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store, busy = cache_in(tmp_path, threads, keeps_first=0, memory=1), Store(), threading.Event()
    threads.submit(busy.wait)
    for name in ("a", "b", "a", "b"):
        await fetch(cache, store, name)
    assert store.loaded == ["a", "b", "a", "b"]
    busy.set()
    await cache.settled()
    assert names_in(tmp_path) == ["a"]
    await cache.close()


async def test_what_is_loaded_again_while_it_is_written_is_written_once(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    cache, store, busy = cache_in(tmp_path, threads, memory=1), Store(), threading.Event()
    threads.submit(busy.wait)
    for name in ("a", "b", "a", "b"):
        await fetch(cache, store, name)
    busy.set()
    await cache.settled()
    assert (await fetch(cache, store, "a"), cache.counts.disk_hits) == (b"a.........", 1)
    await cache.close()


async def test_a_file_is_written_in_small_pieces_each_of_them_to_the_disk_before_the_next(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log on the same disk is synced between them; the pauses are as long as the disk is slow."""
    synced: list[int] = []
    pauses: list[float] = []
    size = 2 * PIECE_BYTES + 7
    cache, store = cache_in(tmp_path, threads, 1 << 20, keeps_first=0, memory=1, in_flight=1 << 20), Store()
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    monkeypatch.setattr("tidelog.tier.cache.PAUSES", 1_000_000)
    monkeypatch.setattr("tidelog.tier.cache.PAUSE_S_MAX", 0.001)
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    for name in ("a", "b", "a"):
        await fetch(cache, store, name, size)
    monkeypatch.setattr("asyncio.sleep", pause)
    await cache.settled()
    assert synced == [PIECE_BYTES, 2 * PIECE_BYTES, size, size + 4]
    assert pauses == [0.001] * 3
    await fetch(cache, store, "b", size)
    assert await fetch(cache, store, "a", size) == b"a".ljust(size, b".")
    assert cache.counts.disk_hits == 1
    await cache.close()


async def test_one_who_is_stopped_while_it_writes_leaves_nothing_that_is_taken_up(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.tier.cache.PAUSES", 1_000_000)
    cache, store = cache_in(tmp_path, threads, keeps_first=0, memory=1), Store()
    for name in ("a", "b", "a"):
        await fetch(cache, store, name)
    await until(lambda: names_in(tmp_path) == ["a.tmp"])
    await cache.close()
    assert cache_in(tmp_path, threads).bytes == 0
    assert names_in(tmp_path) == []
