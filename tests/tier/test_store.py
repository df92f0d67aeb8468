"""The object store: the same promises of a folder and of S3, and what happens when the way there is bad."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.tier.s3 import BUCKET, Fault, FaultProxy, s3_options, s3_server
from tidelog.tier.backends import Backend, StoredObject
from tidelog.tier.errors import (
    LayoutError,
    ObjectMissingError,
    StoreRefusedError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from tidelog.tier.store import Patience, RetriedStore, open_store, parse_options

QUICK = Patience(call_s=5.0, tries_max=3, pause_s=0.001)


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RetriedStore:
    if request.param == "file":
        return open_store(f"file://{tmp_path}/store", {}, QUICK, random.Random(1))
    port = request.getfixturevalue("s3_port")
    return s3_store(port, tmp_path.name)


def s3_store(port: int, prefix: str, patience: Patience = QUICK) -> RetriedStore:
    return open_store(f"s3://{BUCKET}/{prefix}", s3_options(port), patience, random.Random(1))


async def halves() -> AsyncIterator[bytes]:
    yield b"first half, "
    yield b"second half"


async def test_what_was_put_can_be_read_whole_and_in_part(store: RetriedStore) -> None:
    await store.put("t/0/a", b"0123456789")
    assert await store.read_all("t/0/a") == b"0123456789"
    assert await store.read("t/0/a", 3, 4) == b"3456"


async def test_parts_become_one_object(store: RetriedStore) -> None:
    await store.put_parts("t/0/a", halves)
    assert await store.read_all("t/0/a") == b"first half, second half"


async def test_putting_again_replaces(store: RetriedStore) -> None:
    await store.put("a", b"1")
    await store.put("a", b"22")
    assert await store.read_all("a") == b"22"


async def test_deleting_what_is_not_there_is_done_already(store: RetriedStore) -> None:
    await store.put("a", b"1")
    await store.delete(["a", "never-was"])
    await store.delete(["a"])
    with pytest.raises(ObjectMissingError):
        await store.read_all("a")


async def test_objects_and_folders_are_listed_without_what_is_before_them(store: RetriedStore) -> None:
    for name in ("t-x/0/b", "t-x/0/a", "t-x/1/c", "u-y/0/d"):
        await store.put(name, name.encode())
    assert [(each.name, each.size) for each in await store.objects("t-x/")] == [
        ("t-x/0/a", 7), ("t-x/0/b", 7), ("t-x/1/c", 7)
    ]  # fmt: skip
    assert await store.folders("") == ["t-x", "u-y"]
    assert await store.folders("t-x/") == ["0", "1"]
    assert await store.objects("nowhere/") == []


async def test_more_bytes_than_there_are_is_an_error(store: RetriedStore) -> None:
    await store.put("a", b"12345")
    with pytest.raises(StoreUnavailableError):
        await store.read("a", 3, 5)


async def faulty(s3_port: int, plan: list[Fault | None], method: str, patience: Patience = QUICK) -> FaultProxy:
    """The first requests of a method meet what is planned."""

    def fault(asked: str, _path: str) -> Fault | None:
        return plan.pop(0) if asked == method and plan else None

    return FaultProxy(s3_port, fault)


@pytest.mark.parametrize("fault", ["503", "reset", "truncate", "lose-answer"])
async def test_a_read_that_fails_twice_is_tried_a_third_time(s3_port: int, fault: Fault) -> None:
    await s3_store(s3_port, fault).put("a", b"0123456789")
    async with await faulty(s3_port, [fault, fault], "GET") as proxy:
        assert await s3_store(proxy.port, fault).read("a", 2, 6) == b"234567"
        assert len(proxy.seen) == 3


@pytest.mark.parametrize("fault", ["503", "reset", "truncate", "lose-answer"])
async def test_a_put_that_fails_twice_is_tried_a_third_time(s3_port: int, fault: Fault) -> None:
    async with await faulty(s3_port, [fault, fault], "PUT") as proxy:
        await s3_store(proxy.port, "p" + fault).put("a", b"content")
    assert await s3_store(s3_port, "p" + fault).read_all("a") == b"content"


async def test_a_delete_whose_answer_is_lost_is_repeated(s3_port: int) -> None:
    await s3_store(s3_port, "d").put("a", b"1")
    async with await faulty(s3_port, ["lose-answer"], "DELETE") as proxy:
        await s3_store(proxy.port, "d").delete(["a"])
    assert await s3_store(s3_port, "d").objects("") == []


async def test_tries_are_bounded(s3_port: int) -> None:
    async with await faulty(s3_port, ["503"] * 99, "GET") as proxy:
        with pytest.raises(StoreUnavailableError):
            await s3_store(proxy.port, "b").read_all("a")
        assert len(proxy.seen) == QUICK.tries_max


async def test_a_store_that_does_not_answer_is_given_up(s3_port: int) -> None:
    patience = Patience(call_s=0.05, tries_max=2, pause_s=0.001)
    async with await faulty(s3_port, ["delay"] * 99, "GET") as proxy:
        with pytest.raises(StoreTimeoutError):
            await s3_store(proxy.port, "b", patience).read_all("a")


async def test_a_source_that_hangs_is_given_up_too(tmp_path: Path) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"beginning"
        await asyncio.Event().wait()

    patience = Patience(source_s=0.05, tries_max=2, pause_s=0.001)
    store = open_store(f"file://{tmp_path}", {}, patience, random.Random(1))
    with pytest.raises(StoreTimeoutError):
        await store.put_parts("a", stuck)
    with pytest.raises(ObjectMissingError):
        await store.read_all("a")


async def test_what_is_put_slowly_on_purpose_is_not_given_up(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        for _ in range(4):
            await asyncio.sleep(0.02)  # together longer than any single wait may be
            yield bytes(10)

    patience = Patience(call_s=0.05, bytes_per_second_min=1 << 60, source_s=0.05, tries_max=1)
    store = open_store(f"file://{tmp_path}", {}, patience, random.Random(1))
    await store.put_parts("a", slow)
    assert len(await store.read_all("a")) == 40


class Pages:
    """A store of which only listing and deleting is used."""

    def __init__(self, page_s: float = 0.0) -> None:
        self._page_s = page_s
        self.deleting = 0
        self.many_deleting = asyncio.Event()

    async def pages(self, _prefix: str) -> AsyncIterator[list[StoredObject]]:
        for number in range(4):
            await asyncio.sleep(self._page_s)
            yield [StoredObject(f"{number}", 1, 0)]

    async def delete(self, name: str) -> None:
        if name == "never":
            raise StoreUnavailableError("refused")
        self.deleting += 1
        if self.deleting == 3:
            self.many_deleting.set()
        await self.many_deleting.wait()

    def kind_of(self, _error: BaseException) -> None:
        return None


async def test_a_listing_of_many_pages_has_time_for_each(tmp_path: Path) -> None:
    patience = Patience(call_s=0.05, tries_max=1)
    store = RetriedStore(cast(Backend, Pages(page_s=0.02)), patience, random.Random(1))
    assert [each.name for each in await store.objects("")] == ["0", "1", "2", "3"]


async def test_many_objects_are_deleted_at_a_time_and_one_that_cannot_be_keeps_no_other() -> None:
    backend = Pages()
    store = RetriedStore(cast(Backend, backend), Patience(tries_max=1), random.Random(1))
    with pytest.raises(StoreUnavailableError):
        await store.delete(["never", "a", "b", "c"])
    assert backend.deleting == 3


async def test_what_was_begun_in_a_folder_and_never_finished_is_listed_and_deleted(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", {}, QUICK, random.Random(1))
    await store.put("t/0/a.log", b"whole")
    (tmp_path / "t/0/b.log#1").write_bytes(b"half")
    assert [(each.name, each.size) for each in await store.objects("t/")] == [("t/0/a.log", 5), ("t/0/b.log#1", 4)]
    await store.delete(["t/0/b.log#1", "t/0/c.log#1"])
    assert [each.name for each in await store.objects("")] == ["t/0/a.log"]


async def test_an_upload_that_hangs_is_given_up(s3_port: int) -> None:
    patience = Patience(call_s=0.05, bytes_per_second_min=1 << 60, tries_max=2, pause_s=0.001)
    async with await faulty(s3_port, ["delay"] * 99, "POST") as proxy:
        with pytest.raises(StoreTimeoutError):
            await s3_store(proxy.port, "h", patience).put_parts("a", halves)


async def test_a_refusal_is_not_tried_again(s3_port: int) -> None:
    async with await faulty(s3_port, ["403"] * 99, "GET") as proxy:
        with pytest.raises(StoreRefusedError):
            await s3_store(proxy.port, "r").read_all("a")
        assert len(proxy.seen) == 1


async def test_a_fault_of_ours_is_not_taken_for_one_of_the_store(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise ZeroDivisionError("ours")

    store = open_store(f"file://{tmp_path}", {}, QUICK, random.Random(1))
    with pytest.raises(Exception, match="ours") as raised:
        await store.put_parts("a", broken)
    assert not isinstance(raised.value, StoreUnavailableError)


@pytest.mark.parametrize("url", ["", "folder", "http://x", "ftp://x/y", "file://folder", "file:///", "s3:///prefix"])
def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(LayoutError):
        open_store(url, {}, QUICK, random.Random(1))


def test_options_are_pairs() -> None:
    assert parse_options("endpoint=http://h:1, region=eu,") == {"endpoint": "http://h:1", "region": "eu"}
    with pytest.raises(LayoutError):
        parse_options("endpoint")
