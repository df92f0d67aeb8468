"""Care for the store as a whole: what deleted topics left, what nobody knows of, and streams made again from it.

Nothing here trusts a listing alone. An object may go only if its owner is known to be this cluster (the stream's
manifest says so, and is put there before anything else and removed last), and if the state that does not name it is
at least as new as the listing: a leader confirms that it still is one after the listing, before anything is removed.
"""

import logging
from typing import TYPE_CHECKING

from tidelog.cluster import CLUSTER_STREAM
from tidelog.server.handlers.call import current
from tidelog.tier.errors import LayoutError, ObjectMissingError, TierError
from tidelog.tier.layout import MANIFEST, StreamManifest, topic_of_folder
from tidelog.tier.store import ObjectStore

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

CURRENT_MS = 10_000


async def remove_deleted_topics(broker: "Broker", store: ObjectStore) -> int:
    """Remove the folders of topics that are no longer there, if this node is the controller; gives their number.

    It needs no memory of what was deleted, so no crash makes it forget.
    """
    replica = broker.node.replicas.get(CLUSTER_STREAM)
    if replica is None or not replica.ready:
        return 0
    folders = await store.folders("")
    if await current(replica, broker.now() + CURRENT_MS):
        return 0  # it is not the controller any more
    removed = 0
    for folder in folders:
        try:
            _, topic_id = topic_of_folder(folder)
        except LayoutError:
            continue  # not ours
        if topic_id not in broker.state.topics_by_id and await _belongs(store, folder, broker.state.cluster_id):
            await _remove(store, folder)
            removed += 1
            log.info("removed %s from the store: the topic is deleted", folder)
    return removed


async def _belongs(store: ObjectStore, folder: str, cluster_id: str) -> bool:
    """Whether all manifests of a topic's folder name this cluster, and there is one."""
    owners: set[str] = set()
    for partition in await store.folders(folder + "/"):
        try:
            manifest = StreamManifest.decode(await store.read_all(f"{folder}/{partition}/{MANIFEST}"))
            owners.add(manifest.cluster_id)
        except ObjectMissingError:
            continue
        except TierError as error:
            log.warning("%s/%s is left alone: %s", folder, partition, error)
            return False
    return owners == {cluster_id}


async def _remove(store: ObjectStore, folder: str) -> None:
    """Manifests last: until then the next one who looks knows whose it is."""
    names = [each.name for each in await store.objects(folder + "/")]
    await store.delete([name for name in names if not name.endswith("/" + MANIFEST)])
    await store.delete([name for name in names if name.endswith("/" + MANIFEST)])
