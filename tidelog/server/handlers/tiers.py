"""What `tidelog tier` asks: how a stream stands between its tiers, what is wrong in the store, topics made from it
again."""

import dataclasses
from typing import TYPE_CHECKING, Any

from tidelog.cluster import Partition, Topic
from tidelog.server.handlers.call import AdminError, Call, current
from tidelog.server.replica import Replica
from tidelog.server.tiering import Tiering
from tidelog.server.topics import TopicError, plan_topic, submit, until_led
from tidelog.tier.errors import LayoutError, ObjectMissingError, TierError
from tidelog.tier.layout import StreamManifest, StreamPlace, topic_of_folder
from tidelog.tier.metadata import SegmentState
from tidelog.tier.recovery import check_segment, compare, recoverable
from tidelog.tier.retention import local_only_bytes
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

Content = dict[str, Any]


def tiering_of(broker: "Broker") -> Tiering:
    if broker.tiering is None:
        raise AdminError(ErrorCode.INVALID_REQUEST, "the node has no store: set remote.log.storage.system.enable")
    return broker.tiering


def _led(broker: "Broker", partition: Partition) -> Replica:
    replica = broker.node.replicas.get(partition.stream)
    if replica is None or not replica.ready:
        raise AdminError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {broker.settings.node_id} does not lead it")
    return replica


def status(broker: "Broker", topic: Topic, partition: Partition) -> Content:
    """One stream, as its leader knows it. Names that Kafka has a metric for are Kafka's."""
    tiering, replica = tiering_of(broker), _led(broker, partition)
    remote, views = replica.remote, replica.log.segments_view()
    gone = [each for each in remote.segments() if each.state is SegmentState.DELETE_STARTED]
    gone += [each for each in remote.readable() if each.next_offset <= replica.start_offset]
    pending = [view for view in views[:-1] if view.next_offset > max(remote.copied_until, view.base_offset)]
    reads = tiering.reads
    return {
        "enabled": replica.config.remote,
        "start_offset": replica.start_offset,
        "local_start_offset": replica.log.start_offset,
        "copied_until": remote.copied_until,
        "high_watermark": replica.high_watermark,
        "local_bytes": replica.log.size_bytes,
        "local_only_bytes": local_only_bytes(views, remote.copied_until),
        "overdue_bytes": tiering.overdue_bytes(replica),
        "RemoteLogSizeBytes": remote.readable_bytes,
        "RemoteLogMetadataCount": len(remote),
        "RemoteCopyLagBytes": sum(view.length for view in pending),
        "RemoteCopyLagSegments": len(pending),
        "RemoteDeleteLagBytes": sum(each.size for each in gone),
        "RemoteDeleteLagSegments": len(gone),
        "folder": StreamPlace(topic.name, topic.id, topic.partitions.index(partition)).folder,
        "node": {
            "RemoteCopyRequests": tiering.copies,
            "RemoteCopyErrors": tiering.copy_errors,
            "RemoteCopyBytes": tiering.copied_bytes,
            "RemoteDeleteRequests": tiering.deletes,
            "RemoteDeleteErrors": tiering.delete_errors,
            "RemoteFetchRequests": reads.requests,
            "RemoteFetchErrors": reads.errors,
            "RemoteFetchBytes": reads.bytes,
            "chunk_cache": dataclasses.asdict(reads.chunks.counts),
            "index_cache": dataclasses.asdict(reads.indexes.counts),
        },
    }


async def scrub(call: Call, topic: Topic, partition: Partition, deadline_ms: int, *, remove: bool) -> Content:
    """Compare a stream's folder with what its group knows; orphans are removed if that is wanted."""
    tiering, replica = tiering_of(call.broker), _led(call.broker, partition)
    place = StreamPlace(topic.name, topic.id, topic.partitions.index(partition))
    try:
        objects = await tiering.store.objects(place.folder + "/")
        error = await current(replica, deadline_ms)  # what is known now is at least as new as the listing
        if error:
            raise AdminError(error, "it is not led here any more")
        found = compare(place, objects, replica.remote.segments())
        if remove:
            await tiering.store.delete([each.name for each in found.orphans])
    except TierError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    return {
        "objects": len(objects),
        "orphans": [each.name for each in found.orphans],
        "orphan_bytes": sum(each.size for each in found.orphans),
        "removed": len(found.orphans) if remove else 0,
        "foreign": list(found.foreign),
        "missing": list(found.missing),
        "under_way": found.under_way,
        "segments": [each.base_offset for each in replica.remote.readable()],
    }


async def check(call: Call, topic: Topic, partition: Partition, base_offset: int) -> Content:
    """Read one remote segment whole and compare its checksums."""
    tiering, replica = tiering_of(call.broker), _led(call.broker, partition)
    place = StreamPlace(topic.name, topic.id, topic.partitions.index(partition))
    segment = next((each for each in replica.remote.readable() if each.base_offset == base_offset), None)
    if segment is None:
        return {"bytes": 0, "wrong": ""}  # deleted meanwhile
    return {"bytes": segment.size, "wrong": await check_segment(tiering.store, place, segment)}


async def recover(call: Call, name: str, deadline_ms: int) -> Content:
    """Make topics again that are in the store and not in the cluster: one of a name, or all of them ("")."""
    tiering = tiering_of(call.broker)
    made: list[str] = []
    try:
        folders = await tiering.store.folders("")
        for folder in folders:
            try:
                topic, topic_id = topic_of_folder(folder)
            except LayoutError:
                continue
            wanted = name in ("", topic) and topic_id not in call.broker.state.topics_by_id
            if wanted and await _recover_topic(call, tiering, folder, deadline_ms):
                made.append(topic)
    except TierError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    except TopicError as error:
        raise AdminError(error.code, error.message) from None
    if name and not made:
        where = "is in the cluster" if name in call.broker.state.topics else "is not in the store"
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} {where}")
    return {"topics": made}


async def _recover_topic(call: Call, tiering: Tiering, folder: str, deadline_ms: int) -> bool:
    topic, topic_id = topic_of_folder(folder)
    manifest = None
    ends: dict[int, int] = {}
    for number in await tiering.store.folders(folder + "/"):
        place = StreamPlace.of_folder(f"{folder}/{number}")
        try:
            manifest = StreamManifest.decode(await tiering.store.read_all(place.manifest))
            ends[place.partition] = (await recoverable(tiering.store, place)).copied_until
        except ObjectMissingError:
            continue
    if manifest is None:
        return False
    starts = tuple(ends.get(number, 0) for number in range(max(manifest.partitions, *(n + 1 for n in ends))))
    configs = {**manifest.configs, "remote.storage.enable": "true"}
    command = plan_topic(call.broker, topic, len(starts), configs=configs)
    command = dataclasses.replace(command, id=topic_id, start_offsets=starts)
    applied = await submit(call.broker, command, deadline_ms)
    if applied.topic is not None:
        await until_led(call.broker, applied.topic, deadline_ms)
    return True
