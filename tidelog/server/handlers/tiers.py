"""What `tidelog tier` asks: how a stream stands between its tiers, what is wrong in the store, topics made from it
again."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.cluster import Partition, Topic
from tidelog.cluster.configs import ATTACHED
from tidelog.server.handlers.call import AdminError, Call, current
from tidelog.server.replica import Replica
from tidelog.server.tiering import Tiering, place_in_store
from tidelog.server.topics import TopicError, plan_topic, submit, until_led
from tidelog.tier.errors import LayoutError, ObjectDamagedError, ObjectMissingError, TierError
from tidelog.tier.layout import MANIFEST, ObjectName, StreamManifest, StreamPlace, topic_of_folder
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
        "awaits_store": replica.awaits_store,
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
            **reads.under_way(),
            "chunk_cache": dataclasses.asdict(reads.chunks.counts),
            "index_cache": dataclasses.asdict(reads.indexes.counts),
        },
    }


async def scrub(call: Call, topic: Topic, partition: Partition, deadline_ms: int, *, remove: bool) -> Content:
    """Compare a stream's folder with what its group knows. `remove` orphans, and write a wrong manifest anew.

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
        wrong = await _wrong_manifest(tiering, replica, place)
        if remove:
            await tiering.store.delete([each.name for each in found.orphans])
            if wrong:
                tiering.begin_anew(replica)
    except TierError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    return {
        "objects": len(objects),
        "manifest": wrong,
        "orphans": [each.name for each in found.orphans],
        "orphan_bytes": sum(each.size for each in found.orphans),
        "removed": len(found.orphans) if remove else 0,
        "foreign": list(found.foreign),
        "missing": list(found.missing),
        "under_way": found.under_way,
        "segments": [each.base_offset for each in replica.remote.readable()],
    }


async def _wrong_manifest(tiering: Tiering, replica: Replica, place: StreamPlace) -> str:
    """What is wrong with the manifest of a stream that has segments; nothing of another cluster's."""
    if replica.config.attached or not replica.remote.readable():
        return ""
    try:
        found = StreamManifest.decode(await tiering.store.read_all(place.manifest))
    except ObjectMissingError:
        return "it is missing"
    except (LayoutError, ObjectDamagedError) as error:
        return str(error)
    return "" if found.cluster_id == tiering.cluster_id else f"it is that of cluster {found.cluster_id}"


async def check(call: Call, topic: Topic, partition: Partition, base_offset: int) -> Content:
    """Read one remote segment whole and compare its checksums."""
    tiering, replica = tiering_of(call.broker), _led(call.broker, partition)
    place = _place(topic, partition)
    segment = next((each for each in replica.remote.readable() if each.base_offset == base_offset), None)
    if segment is None:
        return {"bytes": 0, "wrong": ""}  # deleted meanwhile
    return {"bytes": segment.size, "wrong": await check_segment(tiering.store, place, segment)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Lost:
    """A topic that is in the store and not in the cluster."""

    folder: str
    configs: Mapping[str, str]
    start_offsets: tuple[int, ...]


async def recover(call: Call, name: str, deadline_ms: int) -> Content:
    """Make topics again that are in the store and not in the cluster: one of a name or a folder, or all of them ("").

    What is wrong with one of them keeps none of the others.
    """
    tiering = tiering_of(call.broker)
    made: list[str] = []
    problems: list[str] = []
    try:
        found = await _lost_topics(tiering, call.broker, name, problems)
    except TierError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    for topic, lost in found.items():
        if len(lost) > 1:
            folders = ", ".join(each.folder for each in lost)
            problems.append(f"there are several {topic}: name one of the folders {folders}")
            continue
        try:
            await _make_again(call, lost[0], deadline_ms)
            made.append(topic)
        except TopicError as error:
            problems.append(f"{lost[0].folder}: {error.message}")
    if name and not made:
        where = "is in the cluster" if name in call.broker.state.topics else "is not in the store"
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "; ".join(problems) or f"topic {name} {where}")
    return {"topics": made, "problems": problems}


async def _lost_topics(
    tiering: Tiering, broker: "Broker", name: str, problems: list[str]
) -> dict[str, list[_Lost]]:  # fmt: skip
    """By their names; `problems` is told of those that cannot be made again."""
    found: dict[str, list[_Lost]] = {}
    for folder in await tiering.store.folders(""):
        try:
            topic, topic_id = topic_of_folder(folder)
        except LayoutError:
            continue  # not a topic's
        if name not in ("", topic, folder) or topic_id in broker.state.topics_by_id:
            continue
        try:
            lost = await _lost_topic(tiering, broker, folder)
        except TierError as error:
            problems.append(f"{folder}: {error}")
            continue
        if lost is not None:
            found.setdefault(topic, []).append(lost)
    return found


async def _lost_topic(tiering: Tiering, broker: "Broker", folder: str) -> _Lost | None:
    """None when the topic was deleted."""
    manifest = None
    ends: dict[int, int] = {}
    for number in await tiering.store.folders(folder + "/"):
        if not number.isdecimal():
            continue  # not a partition's
        place = StreamPlace.of_folder(f"{folder}/{number}")
        try:
            found = StreamManifest.decode(await tiering.store.read_all(place.manifest))
        except ObjectMissingError:
            await _check_empty(tiering, place)
            continue
        if not found.deleted:
            manifest = found
            ends[place.partition] = (await recoverable(tiering.store, place)).end_offset
    if manifest is None:
        return None
    count = max(manifest.partitions, *(partition + 1 for partition in ends))
    if count > broker.settings.topic_partitions_max:
        raise LayoutError(f"it has {count} partitions, more than topic.partitions.max allows")
    configs = {**manifest.configs, "remote.storage.enable": "true"}
    return _Lost(folder, configs, tuple(ends.get(partition, 0) for partition in range(count)))


async def _check_empty(tiering: Tiering, place: StreamPlace) -> None:
    """Without its manifest nobody knows where a stream ends: made again, it would give its offsets to others."""
    for each in await tiering.store.objects(place.folder + "/"):
        if ObjectName.parse(each.name) is not None:
            raise LayoutError(f"{place.manifest} is missing, and there are segments")


async def _make_again(call: Call, lost: _Lost, deadline_ms: int) -> None:
    topic, topic_id = topic_of_folder(lost.folder)
    command = plan_topic(call.broker, topic, len(lost.start_offsets), configs=lost.configs)
    command = dataclasses.replace(command, id=topic_id, start_offsets=lost.start_offsets)
    applied = await submit(call.broker, command, deadline_ms)
    if applied.topic is not None:
        await until_led(call.broker, applied.topic, deadline_ms)


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
