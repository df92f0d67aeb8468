"""Recovery when the store is not as one would wish: expired to the last segment, damaged in places, of two clusters."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from tests.server.client import EARLIEST, LATEST, batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, admin, ask_admin, create_on
from tests.server.world import Server, until
from tests.tier.segments import remote
from tests.tier.tiered import TIERED, read_numbers, settings, stored, write
from tidelog.tier.errors import LayoutError
from tidelog.tier.layout import (
    INDEXES,
    LOG,
    MANIFEST,
    PackedIndex,
    StreamManifest,
    StreamPlace,
    about_segment,
    id_text,
)
from tidelog.tier.metadata import RemoteSegment
from tidelog.tier.recovery import recoverable
from tidelog.tier.store import Patience, RetriedStore, open_store
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DeleteTopicsRequest, DeleteTopicsRequestTopic

PLACE = StreamPlace("t", UUID(int=3), 0)


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


@pytest.fixture
def store(tmp_path: Path) -> RetriedStore:
    return open_store(f"file://{tmp_path}/store", {}, Patience(tries_max=1), random.Random(1))


def manifest_of(place: StreamPlace = PLACE, start_offset: int = 0, **changed: Any) -> StreamManifest:
    return replace(StreamManifest("old", place, start_offset, {}, 1, ()), **changed)


async def put_segment(store: RetriedStore, first: int, last: int, place: StreamPlace = PLACE) -> RemoteSegment:
    segment = remote(first, last)
    index = PackedIndex(first, 4, b"", b"", b"", segment.epochs, 4, (), b"", about_segment(place, segment))
    await store.put(place.object_name(segment, LOG), b"data")
    await store.put(place.object_name(segment, INDEXES), index.encode())
    return segment


# Where a stream ends


async def test_a_stream_whose_segments_have_all_expired_ends_where_it_began(store: RetriedStore) -> None:
    await store.put(PLACE.manifest, manifest_of(start_offset=30).encode())
    assert (await recoverable(store, PLACE)).end_offset == 30


@pytest.mark.parametrize(
    ("why", "start", "segments", "end"),
    [
        ("records are deleted behind all that was copied", 35, [(0, 9), (10, 29)], 35),
        ("the first copy after that holds the start", 35, [(10, 29), (30, 49)], 50),
        ("it may begin behind what was copied before", 35, [(10, 19), (33, 49), (50, 59)], 60),
        ("what lies behind a hole is not the stream's", 35, [(10, 19), (36, 49)], 35),
        ("expired ones are still there", 30, [(10, 19), (20, 29)], 30),
    ],
)
async def test_where_a_stream_ends_that_begins_behind_what_the_manifest_names(
    store: RetriedStore, why: str, start: int, segments: list[tuple[int, int]], end: int
) -> None:
    for first, last in segments:
        await put_segment(store, first, last)
    await store.put(PLACE.manifest, manifest_of(start_offset=start).encode())
    assert (await recoverable(store, PLACE)).end_offset == end, why


async def test_of_two_copies_of_one_segment_everybody_takes_the_same(store: RetriedStore) -> None:
    copies = [await put_segment(store, 0, last) for last in range(1, 9)]
    await store.put(PLACE.manifest, manifest_of().encode())
    found = await recoverable(store, PLACE)
    assert [each.id for each in found.readable()] == [min(copies, key=lambda each: id_text(each.id)).id]


async def test_an_index_of_an_unknown_form_is_no_fault_of_the_program(store: RetriedStore) -> None:
    segment = remote(0, 9)
    index = PackedIndex(0, 4, b"", b"", b"", segment.epochs, 4, (), b"", {"segment_id": id_text(segment.id)})
    await store.put(PLACE.object_name(segment, INDEXES), index.encode())
    await store.put(PLACE.manifest, manifest_of().encode())
    with pytest.raises(LayoutError, match="unknown form"):
        await recoverable(store, PLACE)


# Whole clusters


async def deleted_topic(server: Server, name: str) -> None:
    client = await server.connect()
    await client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=name)], timeout_ms=5_000))
    await client.close()


async def test_a_recovered_stream_of_which_nothing_is_left_gives_no_offset_again(
    cluster: ClusterWorld, tmp_path: Path, store: RetriedStore
) -> None:
    await store.put(PLACE.manifest, manifest_of(start_offset=30).encode())
    await cluster.start(1, **settings(tmp_path))
    assert (await admin(cluster.any, "tier-recover", topic="t"))["topics"] == ["t"]
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").awaits_store)
    client = await leader.connect()
    assert (await client.list_offset("t", EARLIEST)).offset == 30
    assert (await client.produce("t", batch_of("first"))).base_offset == 30


async def test_a_stream_is_recovered_whose_records_were_deleted_behind_all_that_was_copied(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 15)
    replica = leader.replica("t")
    await until(lambda: replica.log.start_offset == 10)
    path = next(path for path in stored(tmp_path) if path.name == MANIFEST)
    await until(lambda: b'"last_offset": 9' in path.read_bytes())
    await cluster.stop_node(1)
    cluster.wipe(1)
    path.write_bytes(replace(StreamManifest.decode(path.read_bytes()), start_offset=12).encode())
    await cluster.start(1, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic="t")
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").awaits_store)
    client = await leader.connect()
    assert (await client.list_offset("t", EARLIEST)).offset == 12
    assert (await client.list_offset("t", LATEST)).offset == 12
    await write(leader, 3, first=12)
    assert await read_numbers(leader, offset=12) == [12, 13, 14]


async def test_topics_that_cannot_be_recovered_are_named_and_keep_no_other_from_it(
    cluster: ClusterWorld, tmp_path: Path, store: RetriedStore
) -> None:
    def place(topic: str, number: int, partition: int = 0) -> StreamPlace:
        return StreamPlace(topic, UUID(int=number), partition)

    await store.put(place("a-damaged", 1).manifest, b"not a manifest")
    twice = [place("b-twice", number) for number in (2, 3)]
    for each in twice:
        await store.put(each.manifest, manifest_of(each, 7).encode())
    huge = place("c-huge", 4)
    await store.put(huge.manifest, manifest_of(huge, partitions=10**9).encode())
    headless = place("d-headless", 5)
    await store.put(headless.manifest, manifest_of(headless).encode())
    await put_segment(store, 0, 9, place("d-headless", 5, 1))
    good = place("z-good", 6)
    await store.put(good.manifest, manifest_of(good, 5).encode())
    await store.put(good.topic_folder + "/notes/x", b"not a partition")
    await cluster.start(1, **settings(tmp_path))
    found = await admin(cluster.any, "tier-recover", topic="")
    assert found["topics"] == ["z-good"]
    said = "\n".join(found["problems"])
    for what in ("a-damaged", "several b-twice", "1000000000 partitions", f"{headless.topic_folder}/1/{MANIFEST}"):
        assert what in said
    refused = await ask_admin(cluster.any, "tier-recover", topic="b-twice")
    assert twice[0].topic_folder in (refused.error_message or "")
    assert (await admin(cluster.any, "tier-recover", topic=twice[1].topic_folder))["topics"] == ["b-twice"]
    assert cluster.any.broker.state.topics["b-twice"].id == UUID(int=3)
    found = await admin(cluster.any, "tier-recover", topic="")
    assert any("is there already" in problem for problem in found["problems"])


async def test_a_recovered_topic_is_this_clusters_also_where_nothing_was_copied(
    cluster: ClusterWorld, tmp_path: Path, store: RetriedStore
) -> None:
    """So that deleting it removes its folder."""
    for partition, start in ((0, 0), (1, 30)):
        place = replace(PLACE, partition=partition)
        await store.put(place.manifest, manifest_of(place, start, partitions=2).encode())
    await cluster.start(1, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic="t")
    cluster_id = cluster.any.broker.state.cluster_id

    def owners() -> set[str]:
        return {
            StreamManifest.decode(path.read_bytes()).cluster_id for path in stored(tmp_path) if path.name == MANIFEST
        }

    await until(lambda: owners() == {cluster_id})
    await deleted_topic(cluster.any, "t")
    await until(lambda: stored(tmp_path) == [])


# Deleted topics


async def test_one_folder_that_cannot_be_emptied_blocks_no_other(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(1, **settings(tmp_path))
    for name in ("a", "b"):
        await create_on(cluster.any, name, [1], **TIERED)
        await write(await cluster.until_led(name), 15, topic=name)
        await until(lambda name=name: cluster.any.replica(name).log.start_offset == 10)
    tiering = cluster.any.broker.tiering
    assert tiering is not None
    delete = tiering.store.delete

    async def refused(names: Any) -> None:
        if any(name.startswith("a-") for name in names):
            raise LayoutError("this one not")
        await delete(names)

    tiering.store.delete = refused  # type: ignore[method-assign]
    await deleted_topic(cluster.any, "a")
    await deleted_topic(cluster.any, "b")
    await until(lambda: not any(path.relative_to(tmp_path / "store").parts[0][0] == "b" for path in stored(tmp_path)))
    assert stored(tmp_path) != []


async def test_a_manifest_with_other_fields_ends_no_node(
    cluster: ClusterWorld, tmp_path: Path, store: RetriedStore
) -> None:
    """As a later version may write it: its checksum is right."""
    value = {"format": 1, "cluster_id": "c", "begins_at": 0}
    line = json.dumps(value).encode()
    await store.put(PLACE.manifest, b"%s\n%08x\n" % (line, crc32c(line)))
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "other", [1], **TIERED)
    leader = await cluster.until_led("other")
    await write(leader, 15, topic="other")
    await until(lambda: leader.replica("other").log.start_offset == 10)
    refused = await ask_admin(leader, "tier-recover", topic="t")
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "unknown form" in (refused.error_message or "")
    assert (await ask_admin(leader, "tier-attach", source="t", topic="")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert await read_numbers(leader, "other") == list(range(15))
