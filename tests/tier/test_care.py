"""The store as a whole: orphans found and removed, damage found, streams made again from the bucket alone."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.server.client import EARLIEST, batch_of, numbered
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, admin, ask_admin, create_on, lead, number_of
from tests.server.world import Server, until
from tests.tier.segments import remote
from tests.tier.tiered import (
    TIERED,
    WIDE,
    read_numbers,
    settings,
    stored,
    tiered_cluster,
    until_tiered,
    write,
)
from tidelog import faults
from tidelog.faults import Action
from tidelog.tier.errors import LayoutError
from tidelog.tier.layout import INDEXES, LOG, MANIFEST, StreamManifest, StreamPlace, id_text
from tidelog.tier.metadata import SegmentState
from tidelog.tier.recovery import compare, recoverable
from tidelog.tier.store import Patience, StoredObject, open_store
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DeleteTopicsRequest, DeleteTopicsRequestTopic

PLACE = StreamPlace("t", UUID(int=3), 0)


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


def test_a_listing_is_compared_with_what_is_known() -> None:
    finished = remote(0, 9, state=SegmentState.COPY_FINISHED)
    half = remote(10, 19, state=SegmentState.COPY_FINISHED)
    coming, unknown = remote(20, 29), remote(0, 9)
    names = [
        PLACE.manifest,
        PLACE.object_name(finished, LOG),
        PLACE.object_name(finished, INDEXES),
        PLACE.object_name(half, LOG),
        PLACE.object_name(coming, LOG),
        PLACE.object_name(unknown, LOG),
        f"{PLACE.folder}/notes.txt",
        # Begun in a folder, and not finished:
        PLACE.manifest + "#1",
        PLACE.object_name(finished, LOG) + "#1",
        PLACE.object_name(coming, INDEXES) + "#2",
        PLACE.object_name(unknown, LOG) + "#1",
    ]
    found = compare(PLACE, [StoredObject(name, 5, 0) for name in names], [finished, half, coming])
    assert [each.name for each in found.orphans] == [
        PLACE.object_name(unknown, LOG), PLACE.object_name(finished, LOG) + "#1", PLACE.object_name(unknown, LOG) + "#1"
    ]  # fmt: skip
    assert found.foreign == (f"{PLACE.folder}/notes.txt",)
    assert found.missing == (PLACE.object_name(half, INDEXES),)
    assert found.under_way == 2


async def test_a_scrub_reports_orphans_and_removes_them_when_it_is_told_to(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    folder = stored(tmp_path)[0].parent
    orphan = folder / f"{7:020d}-{id_text(uuid4())}.log"
    orphan.write_bytes(b"left behind")
    (folder / "notes.txt").write_bytes(b"not ours")
    found = await admin(leader, "tier-scrub", topic="t", partition=0)
    assert [Path(name).name for name in found["orphans"]] == [orphan.name]
    assert (found["orphan_bytes"], found["removed"], found["missing"]) == (11, 0, [])
    assert orphan.exists()
    found = await admin(leader, "tier-scrub", topic="t", partition=0, remove=True)
    assert found["removed"] == 1
    assert not orphan.exists()
    assert (folder / "notes.txt").exists()
    assert await read_numbers(leader) == list(range(30))


@pytest.mark.parametrize("harm", ["missing", "damaged", "another's"])
async def test_a_scrub_finds_a_manifest_that_is_of_no_use_and_has_it_written_anew(
    cluster: ClusterWorld, tmp_path: Path, harm: str
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 15)
    await until(lambda: any(path.name == MANIFEST for path in stored(tmp_path)))
    path = next(path for path in stored(tmp_path) if path.name == MANIFEST)
    await until(lambda: b'"last_offset": 9' in path.read_bytes())
    good = path.read_bytes()
    assert (await admin(leader, "tier-scrub", topic="t", partition=0))["manifest"] == ""
    path.unlink()
    if harm != "missing":
        other = replace(StreamManifest.decode(good), cluster_id="other").encode()
        path.write_bytes(other if harm == "another's" else good[:-20])
    found = await admin(leader, "tier-scrub", topic="t", partition=0)
    assert {"missing": "missing", "damaged": "checksum", "another's": "cluster other"}[harm] in found["manifest"]
    assert not path.exists() or path.read_bytes() != good, "it was only to look"
    await admin(leader, "tier-scrub", topic="t", partition=0, remove=True)
    await until(lambda: path.exists() and path.read_bytes() == good)


async def test_folders_that_are_no_topics_here_are_named_and_removed_when_they_are_named(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(3, **settings(tmp_path))
    await create_on(cluster.any, "t", [1, 2, 3], **TIERED)
    await cluster.until_led("t")
    store = open_store(f"file://{tmp_path}/store", {}, Patience(tries_max=1), random.Random(1))
    theirs, headless = StreamPlace("theirs", UUID(int=8), 0), StreamPlace("headless", UUID(int=9), 0)
    await store.put(theirs.manifest, StreamManifest("other", theirs, 0, {}, 1, ()).encode())
    await store.put(headless.object_name(remote(0, 9), LOG), b"data")
    await store.put("notes/x", b"12345")
    found = await admin(cluster.any, "tier-folders", remove="")
    assert {each["folder"]: (each["whose"], each["objects"]) for each in found["strays"]} == {
        theirs.topic_folder: ("of cluster other", 1),
        headless.topic_folder: ("nobody's: it has no manifest", 1),
        "notes": ("not a topic's", 1),
    }
    await until(lambda: any(path.name == MANIFEST and "/t-" in str(path) for path in stored(tmp_path)))
    ours = next(path for path in stored(tmp_path) if "/t-" in str(path)).parent.parent.name
    for folder in (ours, "nowhere"):
        refused = await ask_admin(cluster.any, "tier-folders", remove=folder)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
    found = await admin(cluster.any, "tier-folders", remove=theirs.topic_folder)
    assert [each["folder"] for each in found["strays"]] == [headless.topic_folder, "notes"]
    assert found["topics"] == ["t"]
    assert not (tmp_path / "store" / theirs.topic_folder / "0" / MANIFEST).exists()


async def test_a_check_reads_every_chunk(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    base = leader.replica("t").remote.readable()[0].base_offset
    good = await admin(leader, "tier-check", topic="t", partition=0, base_offset=base)
    assert good["wrong"] == ""
    assert good["bytes"] > 900_000
    path = next(path for path in stored(tmp_path) if path.suffix == ".log")
    content = bytearray(path.read_bytes())
    content[500_000] ^= 1
    path.write_bytes(content)
    bad = await admin(leader, "tier-check", topic="t", partition=0, base_offset=base)
    assert "checksum" in bad["wrong"]


async def test_status_says_how_the_stream_stands(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 35)
    await until_tiered(cluster, 30)
    found = await admin(leader, "tier-status", topic="t", partition=0)
    assert (found["start_offset"], found["local_start_offset"], found["copied_until"]) == (0, 30, 30)
    assert found["high_watermark"] == 35
    assert found["RemoteLogSizeBytes"] > 2_900_000
    assert (found["RemoteCopyLagSegments"], found["RemoteDeleteLagSegments"], found["overdue_bytes"]) == (0, 0, 0)
    assert found["node"]["RemoteCopyRequests"] == 3
    other = next(server for server in cluster.servers.values() if server is not leader)
    refused = await ask_admin(other, "tier-status", topic="t", partition=0)
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def recovered(cluster: ClusterWorld, tmp_path: Path, topic: str = "") -> Server:
    """All nodes lose their disks; a new cluster is founded and told to recover."""
    for node in (1, 2, 3):
        await cluster.stop_node(node)
        cluster.wipe(node)
    await cluster.start(3, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic=topic)
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").remote.is_blank)
    return leader


async def test_topics_are_made_again_from_the_bucket_alone(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await create_on(cluster.any, "u", [1, 2, 3], [1, 2, 3], **TIERED, segment_ms="77000")
    await write(await lead(cluster, "u", 1), 25, topic="u")
    await write(leader, 35)
    await until_tiered(cluster, 30)
    await until_tiered(cluster, 20, topic="u")
    topic_id = leader.broker.state.topics["t"].id
    leader = await recovered(cluster, tmp_path)
    assert leader.broker.state.topics["t"].id == topic_id
    assert leader.broker.state.topics["u"].configs["segment.ms"] == "77000"
    assert len(leader.broker.state.topics["u"].partitions) == 2
    assert await read_numbers(leader) == list(range(30)), "what was only on the disks is lost with them"
    await write(leader, 25, first=30)
    await until_tiered(cluster, 40)
    assert await read_numbers(leader) == list(range(55))
    other = await cluster.until_led("u")
    await until(lambda: not other.replica("u").remote.is_blank)
    assert await read_numbers(other, topic="u") == list(range(20))


async def test_a_recovered_stream_begins_where_records_were_deleted_up_to(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 35)
    await until_tiered(cluster, 30)
    replica = leader.replica("t")
    replica.move_start(5, replica.now() + 5_000, lambda _: None)
    await until(lambda: replica.start_offset == 5)
    manifest = next(path for path in stored(tmp_path) if path.name == "manifest.json")
    await until(lambda: b'"start_offset": 5' in manifest.read_bytes())
    leader = await recovered(cluster, tmp_path, "t")
    client = await leader.connect()
    assert (await client.list_offset("t", EARLIEST)).offset == 5
    assert await read_numbers(leader, offset=5) == list(range(5, 30))


async def test_segments_that_the_manifest_does_not_name_yet_are_found(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 15)
    manifest = None

    def described() -> bool:
        nonlocal manifest
        manifest = next((path for path in stored(tmp_path) if path.name == "manifest.json"), None)
        return manifest is not None and b'"last_offset": 9' in manifest.read_bytes()

    await until(described)
    assert manifest is not None
    old = manifest.read_bytes()
    await write(leader, 20, first=15)
    await until_tiered(cluster, 30)
    for node in (1, 2, 3):
        await cluster.stop_node(node)
        cluster.wipe(node)
    manifest.write_bytes(old)
    await cluster.start(3, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic="t")
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").remote.is_blank)
    assert await read_numbers(leader) == list(range(30))


async def test_a_manifest_that_is_older_than_the_last_deletions_is_good_enough_and_one_with_a_hole_is_not(
    tmp_path: Path,
) -> None:
    store = open_store(f"file://{tmp_path}", {}, Patience(tries_max=1), random.Random(1))
    segments = [remote(n, n + 9, state=SegmentState.COPY_FINISHED) for n in (0, 10, 20)]
    await store.put(PLACE.manifest, StreamManifest("c", PLACE, 0, {}, 1, tuple(segments)).encode())
    for segment in segments:
        for kind in (LOG, INDEXES):
            await store.put(PLACE.object_name(segment, kind), b"content")
    assert (await recoverable(store, PLACE)).copied_until == 30
    await store.delete([PLACE.object_name(segments[0], kind) for kind in (LOG, INDEXES)])
    found = await recoverable(store, PLACE)
    assert (found.first_offset(30), found.copied_until) == (10, 30)
    await store.delete([PLACE.object_name(segments[2], LOG)])
    with pytest.raises(LayoutError, match="not there"):
        await recoverable(store, PLACE)


async def test_a_topic_that_is_not_there_or_not_lost_is_not_recovered(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 25)
    await until_tiered(cluster, 20)
    for name, why in (("t", "is in the cluster"), ("nowhere", "is not in the store")):
        refused = await ask_admin(leader, "tier-recover", topic=name)
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert why in (refused.error_message or "")
    assert (await admin(leader, "tier-recover", topic=""))["topics"] == []


def of_producer(sequence: int) -> bytearray:
    now_ms = int(time.time() * 1000)
    return batch_of(f"{sequence} {WIDE}", first_time=now_ms, producer_id=7, producer_epoch=0, base_sequence=sequence)


async def test_producers_of_a_recovered_topic_go_on_where_they_were(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    for sequence in range(15):
        assert (await client.produce("t", of_producer(sequence))).base_offset == sequence
    await until(lambda: leader.replica("t").log.start_offset == 10)
    await client.close()
    await cluster.stop_node(1)
    cluster.wipe(1)
    await cluster.start(1, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic="t")
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").awaits_store)
    client = await leader.connect()
    for known in (9, 6):
        assert (await client.produce("t", of_producer(known))).base_offset == known
    refused = await (await leader.connect()).produce("t", of_producer(11))
    assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "10 was only on the lost disk"
    assert (await client.produce("t", of_producer(10))).base_offset == 10
    await cluster.kill(1)
    leader = await cluster.start_node(1, **settings(tmp_path))
    await cluster.until_led("t")
    client = await leader.connect()
    assert (await client.produce("t", of_producer(9))).base_offset == 9, "over a restart too"
    assert await read_numbers(leader) == list(range(11))


async def test_a_stream_takes_no_record_before_it_knows_its_producers_again(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 15)
    await until(lambda: leader.replica("t").log.start_offset == 10)
    await cluster.stop_node(1)
    cluster.wipe(1)
    monkeypatch.setattr("tidelog.server.tiering.Tiering._look", lambda *_: None)
    await cluster.start(1, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic="t")
    leader = await cluster.until_led("t")
    answer = await (await leader.connect()).produce("t", numbered(7, 9, "again"))
    assert answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_what_comes_late_for_a_deleted_topic_is_removed_without_anybodys_help(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    """A node may be killed while it puts an object for a topic that is deleted in that moment."""
    await cluster.start(1, **settings(tmp_path, remote_log_deleted_keep_ms=3_600_000))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 25)
    await until(lambda: leader.replica("t").log.start_offset == 20)
    folder = stored(tmp_path)[0].parent
    client = await leader.connect()
    await client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=5_000))
    await until(lambda: [path.name for path in stored(tmp_path)] == [MANIFEST])
    late = folder / f"{20:020d}-{id_text(uuid4())}.log"
    late.write_bytes(b"what was on its way")
    half = folder / f"{20:020d}-{id_text(uuid4())}.log#1"
    half.write_bytes(b"as the store's library writes it")
    await cluster.kill(1)
    leader = await cluster.start_node(1, **settings(tmp_path, remote_log_deleted_keep_ms=3_600_000))
    await until(lambda: not late.exists() and not half.exists())
    refused = await ask_admin(leader, "tier-recover", topic="t")
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a deleted topic does not come back"
    assert [path.name for path in stored(tmp_path)] == [MANIFEST]
    await cluster.stop_node(1)
    await cluster.start_node(1, **settings(tmp_path))
    await until(lambda: stored(tmp_path) == [])


@pytest.mark.parametrize("point", ["tier.topic.marked", "tier.topic.emptied"])
async def test_a_controller_killed_while_it_removes_a_deleted_topic_is_followed_by_one_that_does(
    cluster: ClusterWorld, tmp_path: Path, point: str
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 25)
    await until_tiered(cluster, 20)
    controller = await cluster.controller()
    faults.arm(point, Action("error"))
    try:
        client = await leader.connect()
        await client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=5_000))
        await until(lambda: faults.hits().get(point, 0) > 0)
        await cluster.kill(number_of(controller))
        assert [path.name for path in stored(tmp_path) if path.name == MANIFEST] == [MANIFEST], "whose it is, is known"
    finally:
        faults.clear()
    await until(lambda: stored(tmp_path) == [])


async def test_what_was_copied_before_the_manifest_named_anything_is_found(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 15)
    await until(lambda: leader.replica("t").log.start_offset == 10)
    await cluster.stop_node(1)
    cluster.wipe(1)
    path = next(path for path in stored(tmp_path) if path.name == MANIFEST)
    path.write_bytes(replace(StreamManifest.decode(path.read_bytes()), segments=()).encode())
    await cluster.start(1, **settings(tmp_path))
    await admin(cluster.any, "tier-recover", topic="t")
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").awaits_store)
    assert await read_numbers(leader) == list(range(10))


async def test_a_stream_that_was_never_in_the_store_does_not_wait_for_it(cluster: ClusterWorld, tmp_path: Path) -> None:
    """As `tidelog restore` makes one."""
    await cluster.start(1, **settings(tmp_path))
    configs = {"remote.storage.enable": "true"}
    await admin(cluster.any, "create-restored", topic="t", start_offsets=[5], configs=configs)
    leader = await cluster.until_led("t")
    await until(lambda: not leader.replica("t").awaits_store)
    answer = await (await leader.connect()).produce("t", batch_of("first"))
    assert (answer.error_code, answer.base_offset) == (0, 5)


async def test_the_manifest_names_the_new_start_before_anything_is_deleted(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    """Whoever reads by the manifest must not be sent to what is not there."""
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 25)
    await until(lambda: leader.replica("t").log.start_offset == 20)
    tiering, replica = leader.broker.tiering, leader.replica("t")
    assert tiering is not None
    delete, starts = tiering.store.delete, list[int]()

    async def watched(names: Sequence[str]) -> None:
        path = next(path for path in stored(tmp_path) if path.name == MANIFEST)
        starts.append(StreamManifest.decode(path.read_bytes()).start_offset)
        await delete(names)

    tiering.store.delete = watched  # type: ignore[method-assign]
    replica.move_start(12, replica.now() + 5_000, lambda _: None)
    await until(lambda: len(replica.remote) == 1)
    assert starts == [12, 12]
