"""A segment's way into the store and back out of it: the same bytes, whatever is asked for and however it is sealed."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c

from tests.tier.segments import LocalLog, random_values
from tidelog.server.tier_producers import ProducersFollowed
from tidelog.storage import StorageSettings
from tidelog.tier.cache import DiskCache, InFlight
from tidelog.tier.copying import BATCHES_A_TURN, TURN_S, BatchCheck, SegmentCopy, copy_segment, delete_segment
from tidelog.tier.errors import ObjectDamagedError, ObjectMissingError
from tidelog.tier.image import image_of
from tidelog.tier.layout import StreamPlace
from tidelog.tier.metadata import (
    Event,
    Outcome,
    RemoteLog,
    RemoteSegment,
    SegmentAdded,
    SegmentMoved,
    SegmentState,
)
from tidelog.tier.reading import CHECK_BYTES, RemoteReader, _crc_of
from tidelog.tier.sealing import KeyRing, Seal
from tidelog.tier.store import Patience, RetriedStore, open_store
from tidelog.wire.batch import check_batch, split_batches
from tidelog.wire.records import read_records

PLACE = StreamPlace("t", UUID(int=5), 0)
CHUNK = 10_000
ROOMY = StorageSettings(segment_bytes=4 << 20, rows_bytes=1 << 20, staging_bytes=1 << 20)
RING = KeyRing({"k": bytes(32)})
Record = Callable[[Event], Awaitable[Outcome]]


async def at_once(_size: int) -> None:
    pass


class Tier:
    """A store in a folder, a log with remote segments, and a reader."""

    def __init__(
        self, folder: Path, ring: KeyRing | None = None, ahead: int = 2, *, log: RemoteLog | None = None
    ) -> None:
        self.threads = ThreadPoolExecutor(2)
        self.store: RetriedStore = open_store(
            f"file://{folder}/store", {}, Patience(tries_max=2, pause_s=0.001), random.Random(1)
        )
        self.ring = ring
        self.log = RemoteLog() if log is None else log
        self.local = LocalLog(ROOMY)
        self.gets: list[str] = []
        read = self.store.read

        async def counted(name: str, position: int, length: int) -> memoryview:
            self.gets.append(f"{name[-30:]} {position}")
            return await read(name, position, length)

        self.store.read = counted  # type: ignore[method-assign]
        room = InFlight(64 << 20)
        self.chunks = DiskCache(str(folder / "chunks"), 1 << 30, 1 << 30, room, self.threads, keeps_first=True)
        self.indexes = DiskCache(str(folder / "indexes"), 1 << 30, 1 << 30, room, self.threads, keeps_first=True)
        self.harm: Callable[[bytes], bytes] = lambda data: data
        self.reader = RemoteReader(
            self.store, self.chunks, self.indexes, ring, ahead, self.threads, lambda *_: None
        )  # fmt: skip

    async def copy(
        self, record: Record | None = None, *, compress: bool = False, pause: Callable[[int], Awaitable[None]] = at_once
    ) -> RemoteSegment:
        """Close the log's last segment and copy it; what is done is recorded, or applied at once."""
        record = record or self._apply
        self.local.roll()
        segment = self.local.closed()[-1]
        image = image_of(segment, self.local.rows(segment), self.log.copied_until)
        assert image is not None
        remote = RemoteSegment(
            uuid4(), image.base_offset, image.next_offset - 1, image.size, image.newest_timestamp, image.epochs, 1, 0
        )
        seal = Seal.new(remote.id, compress=compress, ring=self.ring)
        copy = SegmentCopy(
            PLACE, remote, image, lambda at, size: self.harm(self.local.read(segment, at, size)),
            lambda: ProducersFollowed(b"", 1_000), seal, CHUNK,
        )  # fmt: skip
        await record(SegmentAdded(remote, 0))
        await copy_segment(self.store, copy, pause, self.threads)
        await record(SegmentMoved(remote.id, SegmentState.COPY_FINISHED, 0))
        return remote

    async def _apply(self, event: Event) -> Outcome:
        return self.log.apply(event)

    async def read(self, offset: int, bytes_max: int, *, first: bool = True) -> bytes:
        segment = self.log.find(offset)
        assert segment is not None
        return b"".join(await self.reader.read(PLACE, self.log, segment, offset, bytes_max, first=first))

    async def close(self) -> None:
        await self.reader.close()
        await self.chunks.close()
        await self.indexes.close()


def offsets_of(data: bytes) -> list[int]:
    return [record.offset for at, size in split_batches(data) for record in read_records(data[at : at + size])]


def fill(tier: Tier, batches: int = 60, size: int = 1_500) -> None:
    for number in range(batches):
        tier.local.append(random_values(3, size // 3, seed=number), timestamp=1_000 + number)
        if number % 13 == 5:
            tier.local.own()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("ring", [None, RING])
async def test_every_offset_is_read_as_it_was_written(tmp_path: Path, compress: bool, ring: KeyRing | None) -> None:
    tier = Tier(tmp_path, ring)
    fill(tier)
    await tier.copy(compress=compress)
    log = tier.local.log
    for offset in (0, 1, 2, 3, 77, 100, 178, 179):
        data = await tier.read(offset, 5_000)
        header = check_batch(data[: split_batches(data).__next__()[1]])
        assert header.base_offset <= offset <= header.base_offset + header.last_offset_delta
        assert len(data) <= 5_000
    everything, offset = b"", 0
    while offset < log.next_offset:
        data = await tier.read(offset, 7_777)
        everything += data
        offset = offsets_of(data)[-1] + 1
    assert offsets_of(everything) == list(range(180))
    for at, size in split_batches(everything):
        check_batch(everything[at : at + size])
    await tier.close()


async def test_the_object_of_a_segment_that_is_not_sealed_is_a_plain_kafka_segment(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    fill(tier, batches=20)
    segment = await tier.copy()
    (path,) = (tmp_path / "store").rglob("*.log")
    content = path.read_bytes()
    assert path.name.startswith(f"{0:020d}-")
    assert offsets_of(content) == list(range(60))
    assert len(content) == segment.size
    await tier.close()


async def test_a_batch_larger_than_allowed_comes_for_the_first_who_asks_only(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.local.append([bytes(30_000)])
    tier.local.append([bytes(100)])
    await tier.copy()
    assert offsets_of(await tier.read(0, 10, first=True)) == [0]
    assert await tier.read(0, 10, first=False) == b""
    assert offsets_of(await tier.read(1, 1_000_000)) == [1]
    await tier.close()


async def test_reading_through_costs_one_get_a_chunk_and_fetches_ahead_across_segments(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    for _ in range(3):
        fill(tier)
        await tier.copy()
    offset, chunks = 0, sum(-(-segment.size // CHUNK) for segment in tier.log.readable())
    while offset < tier.log.copied_until:
        offset = offsets_of(await tier.read(offset, 4_000))[-1] + 1
    assert len(tier.gets) == len(set(tier.gets)) == chunks
    await tier.close()


async def test_the_beginning_of_the_next_segment_is_there_before_anybody_asks(tmp_path: Path) -> None:
    tier = Tier(tmp_path, ahead=100)
    for _ in range(2):
        fill(tier, batches=20)
        await tier.copy()
    await tier.read(0, 4_000)
    while tier.reader._thinking_ahead or tier.chunks._loading:
        await asyncio.gather(*tier.reader._thinking_ahead, *tier.chunks._loading.values())
    gets = len(tier.gets)
    await tier.read(60, 4_000)
    await tier.read(119, 4_000)
    assert len(tier.gets) == gets
    await tier.close()


async def test_a_single_read_in_the_middle_fetches_nothing_ahead(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    fill(tier)
    await tier.copy()
    await tier.read(90, 2_000)
    assert not tier.chunks._loading
    assert len(tier.gets) <= 2
    await tier.close()


async def test_damage_in_the_store_is_noticed_and_not_cached(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    fill(tier)
    await tier.copy()
    (path,) = (tmp_path / "store").rglob("*.log")
    good = path.read_bytes()
    path.write_bytes(good[:5] + bytes([good[5] ^ 1]) + good[6:])
    with pytest.raises(ObjectDamagedError):
        await tier.read(0, 4_000)
    path.write_bytes(good)
    assert offsets_of(await tier.read(0, 4_000))[0] == 0
    await tier.close()


async def test_the_index_of_another_segment_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    for _ in range(2):
        fill(tier, batches=5)
        await tier.copy()
    first, second = sorted((tmp_path / "store").rglob("*.indexes"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(ObjectDamagedError):
        await tier.read(0, 4_000)
    await tier.close()


async def test_the_first_record_at_a_time_is_found(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    fill(tier)
    segment = await tier.copy()
    for time, offset in ((0, 0), (1_000, 0), (1_001, 3), (1_040, 120), (1_059, 177)):
        assert await tier.reader.first_at_time(PLACE, segment, time, 0) == (offset, max(time, 1_000))
    assert await tier.reader.first_at_time(PLACE, segment, 1_001, 50) == (50, 1_016)
    assert await tier.reader.first_at_time(PLACE, segment, 1_060, 0) is None
    await tier.close()


@pytest.mark.parametrize("position", [70, 5_000, 9_999])
async def test_what_the_disk_has_damaged_is_not_copied(tmp_path: Path, position: int) -> None:
    tier = Tier(tmp_path)
    fill(tier)
    tier.harm = lambda data: (
        data[:position] + bytes(b ^ 1 for b in data[position : position + 1]) + data[position + 1 :]
    )
    with pytest.raises(ObjectDamagedError, match="on disk"):
        await tier.copy()
    assert not list((tmp_path / "store").rglob("*.log"))
    await tier.close()


def test_batches_are_followed_through_pieces_of_any_size() -> None:
    local = LocalLog(ROOMY)
    for number in range(20):
        local.append(random_values(2, 100, seed=number))
    local.roll()
    segment = local.closed()[0]
    data = local.read(segment, 0, segment.length)
    for size in (1, 7, 61, 1_000, len(data)):
        check = BatchCheck(0, lambda _: None)
        for at in range(0, len(data), size):
            check.feed(data[at : at + size])
        check.finish(40)
    for wrong in (39, 41):
        with pytest.raises(ObjectDamagedError):
            check.finish(wrong)
    with pytest.raises(ObjectDamagedError):
        BatchCheck(1, lambda _: None).feed(data)
    cut = BatchCheck(0, lambda _: None)
    cut.feed(data[:-1])
    with pytest.raises(ObjectDamagedError):
        cut.finish(40)


def test_one_who_follows_batches_lets_others_have_the_interpreter_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the event loop waits for it, longer than a produce takes."""
    pauses: list[float] = []
    monkeypatch.setattr("tidelog.tier.copying.time.sleep", pauses.append)
    log = LocalLog(ROOMY)
    for number in range(2 * BATCHES_A_TURN + 1):
        log.append([b"x"], timestamp=number)
    log.roll()
    segment = log.closed()[-1]
    check = BatchCheck(0, lambda _: None)
    check.feed(log.read(segment, 0, segment.length))
    assert pauses == [TURN_S] * 2


async def test_small_batches_are_gone_through_at_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = Tier(tmp_path)
    fill(tier, batches=100, size=60)
    await tier.copy()
    taken: list[int] = []
    ranged = tier.reader._range

    async def counted(opened: object, start: int, end: int) -> list[memoryview]:
        taken.append(start)
        return await ranged(opened, start, end)  # type: ignore[arg-type]

    monkeypatch.setattr(tier.reader, "_range", counted)
    assert offsets_of(await tier.read(299, 10))[-1] == 299
    assert len(taken) < 10, "not once a batch"
    await tier.close()


async def test_what_is_deleted_is_gone_and_can_be_deleted_again(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    fill(tier, batches=5)
    segment = await tier.copy()
    for _ in range(2):
        await delete_segment(tier.store, PLACE, segment)
    assert not list((tmp_path / "store").rglob("*.*"))
    with pytest.raises(ObjectMissingError):
        await tier.read(0, 4_000)
    await tier.close()


async def test_a_copy_is_paused_chunk_by_chunk_as_quotas_demand(tmp_path: Path) -> None:
    tier, sent = Tier(tmp_path), []

    async def pause(size: int) -> None:
        sent.append(size)

    fill(tier)
    segment = await tier.copy(pause=pause)
    assert sum(sent) == segment.size
    assert max(sent) == CHUNK
    await tier.close()


async def test_a_chunk_is_checked_piece_by_piece_between_turns_of_the_loop() -> None:
    data = memoryview(random.Random(1).randbytes(3 * CHECK_BYTES + 1))
    checking = asyncio.ensure_future(_crc_of(data))
    turns = 0
    while not checking.done():
        await asyncio.sleep(0)
        turns += 1
    assert checking.result() == crc32c(data)
    assert turns >= 4
