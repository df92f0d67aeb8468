"""What `tidelog tier` asks: how a stream stands between its tiers, what is wrong in the store, topics made from it
again."""

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from tidelog.cluster import Partition, Topic
from tidelog.cluster.configs import ATTACHED
from tidelog.server.handlers.call import AdminError, Call, current
from tidelog.server.replica import Replica
from tidelog.server.tiering import Tiering, place_in_store
from tidelog.server.topics import TopicError, plan_topic, submit, until_led
from tidelog.tier.errors import LayoutError, ObjectMissingError, TierError
from tidelog.tier.layout import MANIFEST, StreamManifest, StreamPlace, topic_of_folder
from tidelog.tier.metrics import lags_of
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


def _place(topic: Topic, partition: Partition) -> StreamPlace:
    return place_in_store(topic, topic.partitions.index(partition))


def status(broker: "Broker", topic: Topic, partition: Partition) -> Content:
    """One stream, as its leader knows it. Names that Kafka has a metric for are Kafka's."""
    tiering, replica = tiering_of(broker), _led(broker, partition)
    remote, views = replica.remote, replica.log.segments_view()
    reads, metrics = tiering.reads, tiering.metrics
    return {
        "enabled": replica.config.remote,
        "attached": replica.config.attached,
        "start_offset": replica.start_offset,
        "local_start_offset": replica.local_start,
        "copied_until": remote.copied_until,
        "high_watermark": replica.high_watermark,
        "local_bytes": replica.log.size_bytes,
        "local_only_bytes": local_only_bytes(views, remote.copied_until),
        "overdue_bytes": tiering.overdue_bytes(replica),
        "RemoteLogSizeBytes": remote.readable_bytes,
        "RemoteLogMetadataCount": len(remote),
        **lags_of(views, remote, replica.start_offset).named(),
        "folder": _place(topic, partition).folder,
        "topic": metrics.topic(topic.name).named(),
        "node": {
            "node": broker.settings.node_id,
            **metrics.node.named(),
            "chunk_cache": dataclasses.asdict(reads.chunks.counts),
            "index_cache": dataclasses.asdict(reads.indexes.counts),
        },
    }


async def scrub(call: Call, topic: Topic, partition: Partition, deadline_ms: int, *, remove: bool) -> Content:
    """Compare a stream's folder with what its group knows; orphans are removed if that is wanted.

    Of an attached one only what is missing is told: whatever else is there is its owner's.
    """
    tiering, replica = tiering_of(call.broker), _led(call.broker, partition)
    place = _place(topic, partition)
    try:
        objects = await tiering.store.objects(place.folder + "/")
        error = await current(replica, deadline_ms)  # what is known now is at least as new as the listing
        if error:
            raise AdminError(error, "it is not led here any more")
        found = compare(place, objects, replica.remote.segments())
        if replica.config.attached:
            found = dataclasses.replace(found, orphans=(), foreign=())
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
    place = _place(topic, partition)
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
            found = StreamManifest.decode(await tiering.store.read_all(place.manifest))
            if found.deleted:
                continue
            manifest = found
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


async def attach(call: Call, source: str, name: str, deadline_ms: int) -> Content:
    """Make a topic that shows another cluster's. `source` is that topic's name or its folder; `name` as it is to be
    called here, "" for the same."""
    tiering = tiering_of(call.broker)
    try:
        folder = await _source_folder(tiering, source)
        manifests = [
            StreamManifest.decode(await tiering.store.read_all(f"{folder}/{number}/{MANIFEST}"))
            for number in await tiering.store.folders(folder + "/")
        ]
        partitions = max((each.partitions for each in manifests if not each.deleted), default=0)
        if not partitions:
            raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{folder} describes no topic, or a deleted one")
        topic = name or topic_of_folder(folder)[0]
        command = plan_topic(call.broker, topic, partitions, configs={ATTACHED: folder})
        applied = await submit(call.broker, command, deadline_ms)
    except TierError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    except TopicError as error:
        raise AdminError(error.code, error.message) from None
    if applied.topic is not None:
        await until_led(call.broker, applied.topic, deadline_ms)
    return {"topic": topic, "folder": folder, "partitions": partitions}


async def _source_folder(tiering: Tiering, source: str) -> str:
    found: list[str] = []
    for folder in await tiering.store.folders(""):
        with contextlib.suppress(LayoutError):  # not a topic's
            if source in (folder, topic_of_folder(folder)[0]):
                found.append(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {source} is not in the store")
    raise AdminError(ErrorCode.INVALID_REQUEST, f"there are several: name one of the folders {', '.join(found)}")
