"""The store's folders, against the topics of the cluster: which of them belong to none, and whose they are.

Another cluster may have the same store, and so may somebody who is no cluster at all. So nothing is removed but a
folder that was named, and never one of a topic that is here, or is shown here.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from tidelog.cluster import CLUSTER_STREAM
from tidelog.server.handlers.call import AdminError, current
from tidelog.server.handlers.tiers import tiering_of
from tidelog.server.tiering import place_in_store
from tidelog.tier.errors import LayoutError, TierError
from tidelog.tier.layout import MANIFEST, StreamManifest, topic_of_folder
from tidelog.tier.store import ObjectStore
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

CURRENT_MS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Stray:
    """A folder that is no topic's of this cluster."""

    folder: str
    whose: str
    objects: int
    bytes: int


async def folders(broker: "Broker", remove: str) -> dict[str, Any]:
    """All folders in the store; with `remove`, empty that one first. At the controller, who knows all topics."""
    store = tiering_of(broker).store
    try:
        found = await store.folders("")
        replica = broker.node.replicas.get(CLUSTER_STREAM)
        error = ErrorCode.NOT_CONTROLLER if replica is None else await current(replica, broker.now() + CURRENT_MS)
        if error:  # a topic made since the listing must be known
            raise AdminError(error, "it is not the controller any more")
        ours = {
            place_in_store(topic, 0).topic_folder: topic.name
            for topic in broker.state.topics.values()
            if not topic.internal
        }
        if remove:
            if remove in ours or remove not in found:
                where = f"is that of {ours[remove]}" if remove in ours else "is not in the store"
                raise AdminError(ErrorCode.INVALID_REQUEST, f"{remove} {where}")
            await _empty(store, remove)
        strays = [await _stray(store, each, broker.state.cluster_id) for each in found if each not in ours]
    except TierError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    return {
        "topics": [ours[each] for each in found if each in ours],
        "strays": [dataclasses.asdict(each) for each in strays if each.objects],
    }


async def _empty(store: ObjectStore, folder: str) -> None:
    """Manifests last: until then they say whose the rest is."""
    names = [each.name for each in await store.objects(folder + "/")]
    await store.delete([name for name in names if not name.endswith("/" + MANIFEST)])
    await store.delete([name for name in names if name.endswith("/" + MANIFEST)])


async def _stray(store: ObjectStore, folder: str, cluster_id: str) -> Stray:
    objects = await store.objects(folder + "/")
    manifests = [each.name for each in objects if each.name.endswith("/" + MANIFEST)]
    return Stray(
        folder, await _whose(store, folder, manifests, cluster_id), len(objects), sum(each.size for each in objects)
    )


async def _whose(store: ObjectStore, folder: str, manifests: list[str], cluster_id: str) -> str:
    try:
        topic_of_folder(folder)
    except LayoutError:
        return "not a topic's"
    owners: set[str] = set()
    for name in manifests:
        try:
            owners.add(StreamManifest.decode(await store.read_all(name)).cluster_id)
        except TierError as error:
            return f"{name}: {error}"
    if owners == {cluster_id}:
        return "a deleted topic's, and is being removed"
    return f"of cluster {', '.join(sorted(owners))}" if owners else "nobody's: it has no manifest"
