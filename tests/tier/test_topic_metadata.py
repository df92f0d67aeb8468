"""Two places to keep what is known of remote segments: both hold what `RemoteMetadata` promises."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from tests.server.client import batch_of, records_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, create_on, lead
from tests.server.world import Server, World, until
from tests.tier.segments import random_values, remote
from tests.tier.test_reading import PLACE as READ_PLACE
from tests.tier.test_reading import Tier
from tests.tier.tiered import settings
from tidelog.server.tier_metadata import NotLeaderError, RaftMetadata
from tidelog.tier.copying import delete_segment
from tidelog.tier.errors import LayoutError, StoreTimeoutError
from tidelog.tier.layout import StreamPlace
from tidelog.tier.metadata import Outcome, RemoteLog, RemoteMetadata, SegmentAdded, SegmentMoved, SegmentState
from tidelog.tier.recovery import compare
from tidelog.tier.topic_metadata import TOPIC, TopicMetadata, partition_of
from tidelog.wire.batch import split_batches
from tidelog.wire.records import read_records

STARTED, FINISHED, DELETING, DELETED = SegmentState
PLACE = StreamPlace("t", UUID(int=5), 0)
OTHER = StreamPlace("u", UUID(int=6), 3)


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


class BrokersTopic:
    """The topic on a real broker, through Kafka's protocol."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def append(self, partition: int, record: bytes) -> int:
        client = await self._server.connect()
        answer = await client.produce(TOPIC, batch_of(record), partition=partition)
        assert answer.error_code == 0
        await client.close()
        return answer.base_offset

    async def read(self, partition: int, offset: int) -> Sequence[tuple[int, bytes]]:
        client = await self._server.connect()
        answer = await client.fetch(TOPIC, offset, partition=partition)
        await client.close()
        return [(each.offset, each.value or b"") for each in records_of(answer.records) if each.offset >= offset]


async def check_promises(metadata: RemoteMetadata) -> RemoteLog:
    """What every implementation must do."""
    first, second = remote(0, 9), remote(10, 19)
    assert await metadata.record(SegmentAdded(first, 0)) is Outcome.APPLIED
    assert await metadata.record(SegmentAdded(first, 0)) is Outcome.REPEATED
    assert metadata.log.find(0) is None
    assert await metadata.record(SegmentMoved(first.id, FINISHED, 1)) is Outcome.APPLIED
    assert metadata.log.find(0) is not None, "what is recorded can be seen"
    assert await metadata.record(SegmentAdded(second, 0)) is Outcome.APPLIED
    assert await metadata.record(SegmentMoved(second.id, DELETED, 1)) is Outcome.REFUSED
    assert await metadata.record(SegmentMoved(second.id, DELETING, 1)) is Outcome.APPLIED
    assert await metadata.record(SegmentMoved(second.id, DELETED, 1)) is Outcome.APPLIED
    assert await metadata.record(SegmentMoved(second.id, FINISHED, 1)) is Outcome.REFUSED
    assert [segment.id for segment in metadata.log.readable()] == [first.id]
    assert await metadata.record(SegmentMoved(first.id, DELETING, 1)) is Outcome.REFUSED, "it lies behind the log start"
    return metadata.log


async def test_in_the_streams_own_group(cluster: ClusterWorld, tmp_path: Path) -> None:
    hour = 3_600_000
    await cluster.start(3, **settings(tmp_path, remote_log_manager_task_interval_ms=hour))
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    log = await check_promises(RaftMetadata(leader.replica("t")))
    for server in cluster.servers.values():
        await until(lambda server=server: server.replica("t").remote.encode() == log.encode())


async def test_only_the_leader_can_record_in_the_group(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(3, **settings(tmp_path))
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead(cluster, "t", 1)
    with pytest.raises(NotLeaderError):
        await RaftMetadata(cluster.servers[2].replica("t")).record(SegmentAdded(remote(0, 9), 0))


async def test_in_the_internal_topic(world: World) -> None:
    server = await world.start()
    await server.create(TOPIC, partitions=2)
    topic = BrokersTopic(server)
    places = [PLACE, OTHER]
    logs = [await check_promises(TopicMetadata(topic, place, partitions=2)) for place in places]
    for place, log in zip(places, logs, strict=True):
        reader = TopicMetadata(topic, place, partitions=2)
        await reader.catch_up()
        assert reader.log.encode() == log.encode(), "whoever reads the topic comes to the same state"


async def test_a_stream_is_copied_read_expired_and_found_again_over_the_internal_topic(
    world: World, tmp_path: Path
) -> None:
    """All that tiering does, without a Raft group that knows of it."""
    server = await world.start()
    await server.create(TOPIC, partitions=2)
    topic = BrokersTopic(server)
    metadata = TopicMetadata(topic, READ_PLACE, partitions=2)
    tier = Tier(tmp_path, log=metadata.log)
    written: list[bytes] = []
    for number in range(3):
        values = random_values(20, 500, seed=number)
        tier.local.append(values)
        written += values
        await tier.copy(metadata.record)
    assert await values_from(tier, 0) == written
    expired = metadata.log.readable()[0]
    await metadata.move_start(expired.next_offset)
    assert await metadata.record(SegmentMoved(expired.id, DELETING, 1)) is Outcome.APPLIED
    await delete_segment(tier.store, READ_PLACE, expired)
    assert await metadata.record(SegmentMoved(expired.id, DELETED, 1)) is Outcome.APPLIED
    await tier.close()

    again = TopicMetadata(topic, READ_PLACE, partitions=2)
    await again.catch_up()
    assert again.log.encode() == metadata.log.encode(), "after a restart everything is as it was"
    assert (again.log.start_offset, again.log.copied_until) == (20, 60)
    tier = Tier(tmp_path, log=again.log)
    assert await values_from(tier, 20) == written[20:]
    found = compare(READ_PLACE, await tier.store.objects(READ_PLACE.folder + "/"), again.log.segments())
    assert (found.orphans, found.missing) == ((), ())
    await tier.close()


async def values_from(tier: Tier, offset: int) -> list[bytes]:
    found: list[bytes] = []
    while offset < tier.log.copied_until:
        data = await tier.read(offset, 1 << 20)
        records = [each for at, size in split_batches(data) for each in read_records(data[at : at + size])]
        found += [each.value or b"" for each in records if each.offset >= offset]
        offset = records[-1].offset + 1
    return found


async def test_two_writers_agree_on_what_counts(world: World) -> None:
    server = await world.start()
    await server.create(TOPIC, partitions=1)
    topic, segment = BrokersTopic(server), remote(0, 9)
    old, new = (TopicMetadata(topic, PLACE, partitions=1) for _ in range(2))
    await old.record(SegmentAdded(segment, 0))
    assert await new.record(SegmentMoved(segment.id, DELETING, 1)) is Outcome.APPLIED
    assert await old.record(SegmentMoved(segment.id, FINISHED, 1)) is Outcome.REFUSED
    assert old.log.encode() == new.log.encode()


class StuckTopic:
    """Takes records and never shows them."""

    async def append(self, partition: int, record: bytes) -> int:
        return 0

    async def read(self, partition: int, offset: int) -> Sequence[tuple[int, bytes]]:
        return []


async def test_a_record_that_cannot_be_read_back_is_an_error() -> None:
    with pytest.raises(StoreTimeoutError):
        await TopicMetadata(StuckTopic(), PLACE).record(SegmentAdded(remote(0, 9), 0))


async def test_a_record_that_is_not_ours_is_refused() -> None:
    class Strange(StuckTopic):
        async def read(self, partition: int, offset: int) -> Sequence[tuple[int, bytes]]:
            return [(0, b"short")]

    with pytest.raises(LayoutError):
        await TopicMetadata(Strange(), PLACE).catch_up()


def test_a_topics_streams_are_spread() -> None:
    found = {partition_of(StreamPlace("t", UUID(int=1), number)) for number in range(200)}
    assert len(found) > 40
    assert all(0 <= number < 50 for number in found)
