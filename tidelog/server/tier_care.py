"""What deleted topics left in the store: found by looking, removed, and looked for again until nothing can come.

Nothing here trusts a listing alone. An object may go only if its owner is known to be this cluster (the stream's
manifest says so, and is put there before anything else and removed last), and if the state that does not name it is
at least as new as the listing: a leader confirms that it still is one after the listing, before anything is removed.

A node that is killed in the middle of a put may leave an object that comes to be there after its topic's folder was
emptied. So the manifests stay for `remote.log.deleted.keep.ms`, marked as those of a deleted topic: the next look finds
what came late, and knows whose it is. A controller that takes over begins to wait anew, and forgets nothing.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog import faults
from tidelog.cluster import CLUSTER_STREAM
from tidelog.server.handlers.call import current
from tidelog.tier.errors import LayoutError, ObjectMissingError, TierError
from tidelog.tier.layout import MANIFEST, StreamManifest, topic_of_folder
from tidelog.tier.store import ObjectStore

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

CURRENT_MS = 10_000


class DeletedTopics:
    def __init__(self, broker: "Broker", store: ObjectStore) -> None:
        self._broker = broker
        self._store = store
        self._empty_since_ms: dict[str, int] = {}
        """Folders in which nothing but manifests was left, and when this node last saw to that."""

    async def remove(self) -> int:
        """Empty the folders of topics that are no longer there, if this node is the controller; gives their number.

        It needs no memory of what was deleted, so no crash makes it forget.
        """
        broker = self._broker
        replica = broker.node.replicas.get(CLUSTER_STREAM)
        if replica is None or not replica.ready:
            self._empty_since_ms.clear()
            return 0
        folders = await self._store.folders("")
        if await current(replica, broker.now() + CURRENT_MS):
            return 0  # it is not the controller any more
        removed = 0
        for folder in folders:
            try:
                _, topic_id = topic_of_folder(folder)
            except LayoutError:
                continue  # not ours
            if topic_id not in broker.state.topics_by_id:
                try:
                    removed += await self._look_into(folder)
                except TierError as error:  # the others' turn comes all the same
                    log.warning("what is left of a deleted topic in %s is not removed yet: %s", folder, error)
        return removed

    async def _look_into(self, folder: str) -> bool:
        manifests = await self._manifests(folder)
        return _belong(manifests, self._broker.state.cluster_id) and await self._empty(folder, manifests)

    async def _manifests(self, folder: str) -> list[StreamManifest]:
        """All there are in a topic's folder; none when one cannot be read."""
        found: list[StreamManifest] = []
        for partition in await self._store.folders(folder + "/"):
            try:
                found.append(StreamManifest.decode(await self._store.read_all(f"{folder}/{partition}/{MANIFEST}")))
            except ObjectMissingError:
                continue
            except TierError as error:
                log.warning("%s/%s is left alone: %s", folder, partition, error)
                return []
        return found

    async def _empty(self, folder: str, manifests: list[StreamManifest]) -> bool:
        """Remove what is there; the manifests when nothing has come for long enough."""
        store, now_ms = self._store, self._broker.now()
        for manifest in manifests:
            if not manifest.deleted:
                marked = replace(manifest, segments=(), deleted=True)
                await store.put(manifest.place.manifest, marked.encode())
        if faults.ARMED:
            faults.hit("tier.topic.marked")
        names = [each.name for each in await store.objects(folder + "/")]
        content = [name for name in names if not name.endswith("/" + MANIFEST)]
        await store.delete(content)
        if faults.ARMED:
            faults.hit("tier.topic.emptied")
        if content or folder not in self._empty_since_ms:
            self._empty_since_ms[folder] = now_ms
            log.info("removed %d objects from %s in the store: the topic is deleted", len(content), folder)
        if now_ms - self._empty_since_ms[folder] >= self._broker.settings.remote_log_deleted_keep_ms:
            await store.delete([name for name in names if name.endswith("/" + MANIFEST)])
            del self._empty_since_ms[folder]
        return bool(content)


def _belong(manifests: list[StreamManifest], cluster_id: str) -> bool:
    """Whether all manifests of a topic's folder name this cluster, and there is one."""
    owners = {each.cluster_id for each in manifests}
    return owners == {cluster_id}
